"""The command on a node's files as the plugin writes them; NVML is one that is not there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from apportion import kube
from apportion.cli import status
from apportion.config import Config
from apportion.enforce.shares import Shares
from apportion.errors import KubeForbiddenError
from apportion.inventory.nvml import Nvml
from apportion.ledger import schema
from apportion.ledger.schema import Record, State
from apportion.ledger.store import boot_id
from apportion.model import Capacity, DeviceName, Excluded, GpuUuid, Inventory, Share, ShareKey
from apportion.watch.processes import Processes

from tests.fakes import samples

SHARE = Share(
    key=ShareKey(f"{samples.CLAIM_UID}-0"),
    request="single-gpu",
    pool=samples.NODE,
    device=DeviceName("gpu-0"),
    share_id=samples.SHARE_ID,
    uuid=GpuUuid("GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000"),
    capacity=Capacity(cores=30, memory=4 * samples.GIB),
)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    given = {
        "plugins_dir": tmp_path / "plugins",
        "shares_dir": tmp_path / "shares",
        "driver_root_mount": tmp_path / "no-driver",
        "node_name": samples.NODE,
    }
    for name, value in given.items():
        monkeypatch.setenv(f"APPORTION_{name.upper()}", str(value))
    return Config(**given)  # type: ignore[arg-type]


def _prepare(settings: Config) -> None:
    claims = settings.plugin_dir / "claims"
    claims.mkdir(parents=True)
    Shares(settings.driver_shares_dir).prepare(SHARE)
    record = Record(
        boot_id(settings.proc), State.COMPLETED, samples.REF, ("pod-0",), "build", (SHARE,)
    )
    (claims / f"{samples.CLAIM_UID}.json").write_bytes(schema.dump(record))


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    status.add_arguments(parser)
    return status.run(parser.parse_args(argv))


@pytest.mark.usefixtures("settings")
def test_a_machine_without_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run() == 1
    shown = capsys.readouterr()
    assert shown.out == "Nothing could be read.\n"
    assert "! no libnvidia-ml.so.1 below" in shown.err
    assert "! no plugin has run here" in shown.err
    assert "--cluster" in shown.err


def test_shares_are_shown_without_nvml(
    settings: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(settings)
    assert _run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == [
        "gpu-0", "test-dra/single-gpu-0", "pod-0", "0", "/", "4096MiB", "30", "prepared",
    ]  # fmt: skip


def test_json_says_what_could_not_be_read(
    settings: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(settings)
    assert _run("-o", "json") == 1
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err == ""
    assert found["complete"] is False
    (problem,) = found["problems"]
    assert problem.startswith("no libnvidia-ml.so.1")
    (share,) = found["cards"][0]["shares"]
    assert (share["memoryLimitBytes"], share["memoryUsedBytes"]) == (4 * samples.GIB, 0)
    assert share["processes"] == 0


def test_damaged_files_are_named_and_the_rest_is_shown(
    settings: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(settings)
    (settings.plugin_dir / "claims" / "other.json").write_text("{}", encoding="utf-8")
    (settings.driver_shares_dir / SHARE.key / "ledger").write_bytes(b"short")
    assert _run() == 1
    shown = capsys.readouterr()
    assert "the record of claim UID other" in shown.err
    assert "ledger is damaged" in shown.err
    assert "- / 4096MiB" in shown.out


def test_a_blind_guard_is_said_unless_it_is_off(
    settings: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _prepare(settings)
    monkeypatch.setattr(Processes, "blindness", lambda _self: "it sees nothing; mend it")
    _run()
    assert "! the guard is blind: it sees nothing; mend it" in capsys.readouterr().err
    _run("--guard", "off")
    assert "the guard" not in capsys.readouterr().err


def test_an_unreadable_folder_is_said(settings: Config, capsys: pytest.CaptureFixture[str]) -> None:
    settings.plugin_dir.parent.mkdir(parents=True)
    settings.plugin_dir.write_text("a file where a folder should be", encoding="utf-8")
    assert _run() == 1
    assert f"cannot read {settings.plugin_dir}" in capsys.readouterr().err


def test_bad_settings_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--cores-min", "200") == 2
    assert "cores_min" in capsys.readouterr().err


class _Api:
    """As much of kube.Kube as --cluster calls."""

    def __init__(self, slices: Sequence[dict[str, Any]], claims: list[dict[str, Any]]) -> None:
        self._slices, self._claims = slices, claims

    def list_slices(self, driver: str) -> kube.SliceList:
        assert driver == samples.DRIVER
        return kube.SliceList(tuple(self._slices), "1")

    def list_claims(self) -> list[dict[str, Any]]:
        return self._claims


class _Forbidding(_Api):
    def list_claims(self) -> list[dict[str, Any]]:
        raise KubeForbiddenError("GET claims: 403 no", 403)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the API server; gives the kubeconfigs that were asked for."""
    asked: list[str] = []

    def connect(kubeconfig: str, _timeout_s: float, _account: Path) -> _Api:
        asked.append(kubeconfig)
        return _Api([], [samples.claim()] if kubeconfig == "with-claim" else [])

    monkeypatch.setattr(kube, "connect", connect)
    return asked


@pytest.mark.usefixtures("connected")
def test_the_cluster_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--cluster", "--kubeconfig", "with-claim") == 0
    shown = capsys.readouterr()
    assert "test-dra/single-gpu-0" in shown.out
    assert "is not published" in shown.err


@pytest.mark.usefixtures("connected")
def test_an_empty_cluster_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--cluster") == 0
    shown = capsys.readouterr()
    assert shown.out == "No GPU of driver apportion.gpu.\n"
    assert "is the DaemonSet running" in shown.err


def test_the_kubeconfig_is_the_one_kubectl_takes(connected: list[str]) -> None:
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for settings, environ in (
        (Config(kubeconfig="a"), in_pod),
        (Config(), {"KUBECONFIG": "b:c"} | in_pod),
        (Config(), in_pod),
        (Config(), {"HOME": "/home/x"}),
    ):
        status.of_cluster(settings, environ)
    assert connected[:3] == ["a", "b:c", ""]
    assert connected[3].endswith("/.kube/config")


def test_missing_rights_say_whose_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "connect", lambda *_: _Forbidding([], []))
    with pytest.raises(KubeForbiddenError, match="administrator's kubeconfig") as caught:
        status.of_cluster(Config())
    assert caught.value.status == 403
    assert "ServiceAccount" not in str(caught.value)


def test_cards_come_from_nvml_and_a_complete_answer_is_success(
    settings: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(settings)
    inventory = Inventory((samples.gpu(),), (Excluded("GPU-x", "MIG is on"),))
    monkeypatch.setenv("APPORTION_DEVICE_NAMING", "index")
    monkeypatch.setattr(status, "scan", lambda _nvml, _sysfs: inventory)
    monkeypatch.setattr(Nvml, "used_memory", lambda _self, _uuid: 452 * samples.MIB)
    assert _run() == 0
    shown = capsys.readouterr()
    card = shown.out.splitlines()[1]
    assert card.startswith("gpu-0   Tesla T4  GPU-6d1c2f5e-")
    assert card.endswith("  452 / 14917MiB  4096 / 14917MiB  30 / 100")
    assert shown.err == "! GPU GPU-x is not shared: MIG is on\n"


def test_a_card_has_what_is_published_of_it(
    settings: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _prepare(settings)
    monkeypatch.setenv("APPORTION_CORES_MODE", "mps")
    monkeypatch.setattr(status, "scan", lambda _nvml, _sysfs: Inventory((samples.gpu(),)))
    monkeypatch.setattr(Nvml, "used_memory", lambda _self, _uuid: 0)
    assert _run() == 0
    assert f" 0 / {14917 - 128}MiB " in capsys.readouterr().out


def test_an_age_is_never_negative_and_what_is_no_time_has_none() -> None:
    assert status._age("2999-01-01T00:00:00Z") == 0
    assert (status._age("2020-01-01T00:00:00Z") or 0) > 86400
    for odd in ("", "yesterday", "2020-01-01", "2020-01-01T00:00:00"):
        assert status._age(odd) is None
