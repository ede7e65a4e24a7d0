"""Who is told of what happens to a GPU's MPS daemon."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apportion.app.mps import Dividing, Tell
from apportion.config import Config
from apportion.errors import NvmlUnavailableError, StorageError
from apportion.model import Allowance, Capacity, CoresMode, Device, DeviceName, ShareKey
from apportion.mps import places
from apportion.mps.control import PROGRAM, Driver, Process
from apportion.mps.daemon import Kind, View

from tests.fakes import samples
from tests.unit.watch.node import Node

ONE, TWO = samples.gpu(0), samples.gpu(1)
WHOLE = Capacity(100, 1 << 30)


class Site:
    """Stands for the parts of the plugin around it."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.told: list[tuple[str, str]] = []
        self.counted: list[tuple[str, str]] = []
        self.hastened = 0
        self.boot = "boot"
        self.modes = {ShareKey("uid-a-0"): CoresMode.MPS, ShareKey("uid-b-0"): CoresMode.TIMESLICE}
        self.failure: Exception | None = None
        self.compute_mode = 0
        self.dividing = Dividing(
            config=Config(
                cores_modes=f"{ONE.uuid}=mps", shares_dir=Path("/run/x/shares"), proc=proc
            ),
            nvml=self.itself,
            devices=lambda: {
                DeviceName(f"gpu-{n}"): Device(DeviceName(f"gpu-{n}"), gpu, WHOLE)
                for n, gpu in enumerate((ONE, TWO))
            },
            enforcer=lambda: self.itself,
            store=lambda: self.itself,
            others=lambda: False,
            tell=Tell(self.itself, lambda *what: self.counted.append(what), self.hasten),
        )

    @property
    def itself(self) -> Any:
        return self

    def optional(self, _uuid: str, function: str) -> int:
        assert function == "nvmlDeviceGetComputeMode"
        if self.failure:
            raise self.failure
        return self.compute_mode

    def hasten(self) -> None:
        self.hastened += 1

    def allowances(self) -> tuple[Allowance, ...]:
        return tuple(
            Allowance(key, ONE.uuid, Capacity(30, 1 << 30), mode=mode)
            for key, mode in self.modes.items()
        )

    def records(self) -> Any:
        if self.failure:
            raise self.failure
        made = Node().records()
        return [
            replace(record, shares=tuple(replace(s, uuid=ONE.uuid) for s in record.shares))
            for record in made
        ]

    def on_node(self, reason: str, _text: str, *, warning: bool = True) -> None:
        assert warning
        self.told.append(("node", reason))

    def on_pods(self, ref: Any, reason: str, _text: str, *, warning: bool = True) -> None:
        assert warning
        self.told.append((ref.name, reason))


@pytest.fixture
def site() -> Site:
    return Site()


def show(site: Site, monkeypatch: pytest.MonkeyPatch, view: View) -> None:
    monkeypatch.setattr(site.dividing.supervisor, "view", lambda _uuid: view)


def test_the_pods_with_a_share_that_needs_it_are_told(site: Site) -> None:
    site.dividing._happened(ONE.uuid, Kind.DAEMON_ENDED, "it ended")
    names = [name for name, _ in site.told]
    assert names[0] == "node"
    assert len(names) == 2, "the one of the other mode is not told"
    assert {reason for _, reason in site.told} == {"MpsDaemonEnded"}
    assert site.counted == [(ONE.uuid, "MpsDaemonEnded")]
    assert site.hastened == 1
    site.told.clear()
    site.dividing._happened(TWO.uuid, Kind.DAEMON_ENDED, "it ended")
    assert [name for name, _ in site.told] == ["node"]


def test_records_that_cannot_be_read_keep_nobody_else_from_knowing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.failure = StorageError("the disk is gone")
    site.dividing._happened(ONE.uuid, Kind.FAULT, "a fault")
    assert site.told == [("node", "MpsFault")]
    assert "the disk is gone" in caplog.text


def test_a_daemon_that_does_not_work_is_a_condition_of_its_gpu(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(site, monkeypatch, View(ready=False, text="it ended", since=7))
    (found,) = site.dividing.conditions(ONE.uuid)
    assert (found.name, found.since, "it ended" in found.text) == ("mps", 7, True)
    assert site.dividing.conditions(TWO.uuid) == [], "no setting wants one there"
    show(site, monkeypatch, View(ready=False, text="", since=7))
    assert site.dividing.conditions(ONE.uuid) == [], "it was not looked at yet"
    show(site, monkeypatch, View(ready=True, text="", since=7))
    assert site.dividing.conditions(ONE.uuid) == []


def test_an_xid_is_a_reason_to_look_and_some_are_a_fault(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(site.dividing.supervisor, "suspect", lambda *what: seen.append(what))
    for xid in (31, 45):
        site.dividing.on_xid(ONE.uuid, xid)
    assert [fault.partition(" of")[0] for _, fault in seen] == ["Xid 31", ""]


@pytest.mark.parametrize(("mode", "name"), [(2, "Prohibited"), (3, "Exclusive_Process"), (9, "9")])
def test_a_compute_mode_that_keeps_shares_out_is_said(site: Site, mode: int, name: str) -> None:
    assert site.dividing._unfit(ONE.uuid) == ""
    site.compute_mode = mode
    assert f"its compute mode is {name}," in site.dividing._unfit(ONE.uuid)
    site.failure = NvmlUnavailableError("nothing", 999)
    assert site.dividing._unfit(ONE.uuid) == ""


POD = "0::/kubepods/burstable/pod{}/cri\n"
OURS, THEIRS = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")
DRIVER = Driver(Path("/"), Path("/"), "/usr/lib")


def process(proc: Path, pid: str, cgroup: str, pipe: Path) -> None:
    """Lay out a process that says it is the daemon."""
    folder = proc / pid
    folder.mkdir()
    (folder / "cmdline").write_text(f"{PROGRAM}\0-d\0")
    (folder / "environ").write_text(f"CUDA_MPS_PIPE_DIRECTORY={pipe}\0")
    (folder / "cgroup").write_text(cgroup)
    (folder / "stat").write_text(f"{pid} (x) S " + " ".join(["0"] * 18) + " 7")


def test_a_pods_process_that_calls_itself_the_daemon_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard would leave it alone, whatever memory it took."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(POD.format(OURS))
    supervisor = Site(tmp_path).dividing.supervisor
    monkeypatch.setattr(supervisor, "_driver", lambda: DRIVER)
    place = places.place(supervisor._root, supervisor._name, ONE.uuid)
    control = supervisor._made(ONE.uuid)._control
    process(tmp_path, "41", POD.format(THEIRS), place.pipe)
    process(tmp_path, "42", POD.format(THEIRS).rstrip() + "/apportion-mps\n", place.pipe)
    assert control.find() is None
    process(tmp_path, "50", "0::/../../../apportion-mps\n", place.pipe)
    assert control.find() == Process(50, 7)


def test_a_daemon_that_an_earlier_plugin_started_is_found(tmp_path: Path) -> None:
    """Of the cgroups of an old node it may not have left all, and that pod is gone."""
    dividing = Site(tmp_path).dividing
    left = "4:memory:/apportion-mps\n1:name=other:" + POD.format(THEIRS).removeprefix("0::")
    assert not dividing._is_another_pods(left)
    assert dividing._is_another_pods(left.replace("/apportion-mps", "/"))


@pytest.mark.parametrize("pid", [1, 7])
def test_a_pod_is_left_whatever_the_plugins_pid_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int
) -> None:
    """Without hostPID it is 1, and only who tries to leave is told that it cannot."""
    monkeypatch.setattr(os, "getpid", lambda: pid)
    (tmp_path / "self").mkdir()
    for cgroup, leave in ((POD.format(OURS), True), ("0::/user.slice\n", False)):
        (tmp_path / "self/cgroup").write_text(cgroup)
        dividing = Site(tmp_path).dividing
        monkeypatch.setattr(dividing, "_driver_files", lambda: SimpleNamespace(libdir="/lib"))
        assert dividing._driver().leave is leave
    (tmp_path / "self/cgroup").unlink()
    assert Site(tmp_path).dividing._pod is None


def test_the_guard_is_told_of_its_processes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = frozenset({Process(7, 100), Process(8, 101)})
    monkeypatch.setattr(site.dividing.supervisor, "processes", lambda: found)
    assert site.dividing.servers() == {(7, 100), (8, 101)}
