from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from apportion import kube, slices
from apportion.cli import doctor
from apportion.config import Config
from apportion.enforce.library import FILES
from apportion.errors import KubeForbiddenError
from apportion.model import Excluded, Inventory

from tests.fakes import samples


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(argv))


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """A node where everything is missing."""
    return Config(
        node_name=samples.NODE,
        plugins_dir=tmp_path / "plugins",
        registry_dir=tmp_path / "registry",
        cdi_dir=tmp_path / "cdi",
        shares_dir=tmp_path / "shares",
        shim_dir=tmp_path / "shim",
        driver_root=tmp_path / "root",
        driver_root_mount=tmp_path / "root",
        kubeconfig=str(tmp_path / "none"),
    )


class _Nvml:
    def __init__(self, _root: Path) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def driver_version(self) -> str:
        return "580.159.04"


class _Api:
    """An API server with these slices."""

    bodies: tuple[dict[str, Any], ...] = ()

    def list_slices(self, _driver: str, node: str) -> kube.SliceList:
        assert node == samples.NODE
        return kube.SliceList(self.bodies, "1")


@pytest.fixture
def healthy(settings: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Api]:
    """The same node with all it needs; gives its API server."""
    libraries = settings.driver_root / "usr/lib/x86_64-linux-gnu"
    ours = (settings.plugin_dir, settings.registry_dir, settings.cdi_dir)
    for folder in (libraries, settings.driver_root / "dev", settings.shim_dir, *ours):
        folder.mkdir(parents=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        (libraries / f"{name}.580.159.04").touch()
        (libraries / f"{name}.1").symlink_to(f"{name}.580.159.04")
    for name in ("nvidiactl", "nvidia0"):
        (settings.driver_root / "dev" / name).touch()
    for name in FILES:
        (settings.shim_dir / name).touch()
    inventory = Inventory((samples.gpu(),), (Excluded("GPU-x", "MIG is on"),))
    monkeypatch.setattr(doctor, "Nvml", _Nvml)
    monkeypatch.setattr(doctor, "scan", lambda _nvml, _sysfs: inventory)
    policy = slices.Policy(driver=samples.DRIVER, node=samples.NODE)
    api = _Api()
    api.bodies = tuple(slices.slices(slices.devices(inventory, policy), policy, generation=1))
    monkeypatch.setattr(kube, "connect", lambda *_: api)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(settings.plugin_dir / "dra-0123abcd.sock"))
        server.listen()
        yield api


def _states(findings: list[doctor.Finding]) -> dict[str, str]:
    return {finding.name: finding.state for finding in findings}


def _text(findings: list[doctor.Finding], name: str) -> str:
    return next(finding.text for finding in findings if finding.name == name)


def test_an_empty_node(settings: Config) -> None:
    findings = doctor.examine(settings)
    assert _states(findings) == {
        "driver files": "bad",
        "NVML": "bad",
        "GPUs": "left out",
        "device nodes": "left out",
        "front libraries": "bad",
        "folders": "bad",
        "claims": "left out",
        "plugin": "bad",
        "guard": "good",
        "health": "good",
        "API server": "bad",
        "published": "left out",
    }
    assert _text(findings, "device nodes") == "needs driver files, GPUs"


@pytest.mark.usefixtures("healthy")
def test_a_good_node(settings: Config) -> None:
    findings = doctor.examine(settings)
    assert set(_states(findings).values()) == {"good"}, findings
    assert _text(findings, "NVML") == "driver 580.159.04"
    gpus = f"Tesla T4 {samples.gpu().uuid}; GPU-x not: MIG is on"
    assert _text(findings, "GPUs") == gpus
    assert _text(findings, "device nodes").endswith("dev/nvidia0")
    assert _text(findings, "published") == "gpu-0000-3b-00-0"


@pytest.mark.usefixtures("healthy")
def test_a_missing_device_node(settings: Config) -> None:
    (settings.driver_root / "dev/nvidia0").unlink()
    findings = doctor.examine(settings)
    assert _states(findings)["device nodes"] == "bad"
    assert "dev/nvidia0 is missing" in _text(findings, "device nodes")


@pytest.mark.usefixtures("healthy")
def test_no_gpu_that_can_be_shared(settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "scan", lambda _nvml, _sysfs: Inventory((), (Excluded("GPU-x", "MIG is on"),))
    )
    findings = doctor.examine(settings)
    assert _text(findings, "GPUs") == "no GPU can be shared; GPU-x not: MIG is on"
    assert _states(findings)["device nodes"] == "left out"
    monkeypatch.setattr(doctor, "scan", lambda _nvml, _sysfs: Inventory(()))
    assert "NVML sees none" in _text(doctor.examine(settings), "GPUs")


def test_fields_that_the_api_server_dropped(settings: Config, healthy: _Api) -> None:
    for device in healthy.bodies[0]["spec"]["devices"]:
        del device["allowMultipleAllocations"]
    assert "DRAConsumableCapacity" in _text(doctor.examine(settings), "published")


def test_a_policy_that_the_api_server_dropped(settings: Config, healthy: _Api) -> None:
    del healthy.bodies[0]["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"]
    assert "DRAConsumableCapacity" in _text(doctor.examine(settings), "published")


def test_nothing_published(settings: Config, healthy: _Api) -> None:
    healthy.bodies = ()
    assert "no slice of this node" in _text(doctor.examine(settings), "published")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("setting", ["registry_dir", "cdi_dir"])
def test_a_folder_that_is_not_there(settings: Config, setting: str) -> None:
    getattr(settings, setting).rmdir()
    findings = doctor.examine(settings)
    assert _states(findings)["folders"] == "bad"
    text = _text(findings, "folders")
    assert f"there is no folder {getattr(settings, setting)}" in text
    assert f"correct {setting}" in text


@pytest.mark.usefixtures("healthy")
def test_the_folder_of_shares_comes_with_the_first(settings: Config) -> None:
    later = f"{settings.driver_shares_dir} (made with the first share)"
    assert _text(doctor.examine(settings), "folders").endswith(later)
    settings.driver_shares_dir.mkdir(parents=True)
    text = _text(doctor.examine(settings), "folders")
    assert text.endswith(str(settings.driver_shares_dir))


def test_missing_rights_are_the_service_accounts(
    settings: Config, healthy: _Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_driver: str, _node: str) -> kube.SliceList:
        raise KubeForbiddenError("GET slices: 403 no", 403)

    monkeypatch.setattr(healthy, "list_slices", refuse)
    assert "403 no; does the plugin's ServiceAcc" in _text(doctor.examine(settings), "API server")


@pytest.mark.usefixtures("healthy")
def test_a_folder_that_cannot_be_written(settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: path != settings.plugin_dir)
    findings = doctor.examine(settings)
    assert f"{settings.plugin_dir} cannot be written" in _text(findings, "folders")


@pytest.mark.usefixtures("healthy")
def test_a_record_that_cannot_be_read(settings: Config) -> None:
    assert _text(doctor.examine(settings), "claims") == "0 recorded"
    (settings.plugin_dir / "claims/uid-odd.json").mkdir(parents=True)
    os.mkfifo(settings.plugin_dir / "claims/uid-pipe.json")
    findings = doctor.examine(settings)
    assert _states(findings)["claims"] == "bad"
    assert "cannot be read: uid-odd, uid-pipe; " in _text(findings, "claims")


def test_text_and_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [
        doctor.Finding("a", "good", "fine"),
        doctor.Finding("longer", "bad", "do this"),
        doctor.Finding("c", "left out", "needs longer"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda _settings: findings)
    assert _run() == 1
    assert capsys.readouterr().out == "✓ a       fine\n✗ longer  do this\n- c       needs longer\n"
    assert _run("-o", "json") == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks[1] == {"name": "longer", "state": "bad", "text": "do this"}
    del findings[1:]
    assert _run() == 0


def test_bad_settings_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--cores-min", "200") == 2
    assert "cores_min" in capsys.readouterr().err


@pytest.mark.usefixtures("healthy")
def test_a_guard_that_cannot_see(settings: Config, tmp_path: Path) -> None:
    pod = "0::/kubepods/pod0d9b9f8e-3c1a-4f6e-9a53-8f1c2b7d6e40"
    for process, container in (("1", "pause"), ("self", "main")):
        (tmp_path / "proc" / process).mkdir(parents=True)
        (tmp_path / "proc" / process / "cgroup").write_text(f"{pod}/{container}\n")
    findings = doctor.examine(dataclasses.replace(settings, proc=tmp_path / "proc"))
    assert _states(findings)["guard"] == "bad"
    assert "set hostPID: true" in _text(findings, "guard")


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(("mode", "said"), [("off", "off"), ("kill", "kill every 2 s")])
def test_a_guard_that_sees(settings: Config, mode: str, said: str) -> None:
    findings = doctor.examine(dataclasses.replace(settings, guard=mode))
    assert _text(findings, "guard").endswith(said)
