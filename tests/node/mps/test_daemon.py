"""MPS daemons started, watched and started anew: real processes of the simulated driver."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path

import pytest
from apportion.mps import logs
from apportion.mps.control import PROGRAM, Control, Driver
from apportion.mps.daemon import Kind

from tests.node.mps.support import LIBDIR, Node, until


def test_a_daemon_is_started_once_and_found_by_the_next_plugin(node: Node) -> None:
    first, second = node.daemon(), node.daemon()
    first.look()
    second.look()
    assert first.view.ready
    assert first.view.processes == second.view.processes != ()
    words = Path(f"/proc/{first.view.processes[0].pid}/cmdline").read_bytes().split(b"\0")
    assert b"-multiuser-server" in words, "or a second user waits for all of the first"
    assert node.told == []


def test_one_that_is_killed_comes_back_and_that_is_told(node: Node) -> None:
    daemon = node.daemon()
    daemon.look()
    (before,) = daemon.view.processes
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: node.control.process(before.pid) != before)
    daemon.look()
    assert daemon.view.ready
    assert daemon.view.processes[0] != before
    assert [kind for kind, _ in node.told] == [Kind.DAEMON_ENDED]
    assert str(before.pid) in node.told[0][1]


def test_a_servers_end_is_told(node: Node) -> None:
    daemon = node.daemon()
    daemon.look()
    client = node.client()
    daemon.look()
    server = daemon.view.processes[1]
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: node.control.process(server.pid) is None)
    daemon.look()
    assert [kind for kind, _ in node.told] == [Kind.SERVER_ENDED]
    client.communicate()


def test_a_fatal_fault_is_told_until_all_clients_have_ended(node: Node) -> None:
    clock = [0.0]
    daemon = node.daemon(lambda: clock[0])
    daemon.look()
    guilty, other = node.client(), node.client()
    assert guilty.stdin
    guilty.stdin.write("fault\n")
    guilty.stdin.flush()
    until(lambda: "FAULT" in (node.place.pipe / "state").read_text())
    # What the server wrote makes it ask.
    daemon.look()
    daemon.look()
    assert not daemon.view.ready
    assert [kind for kind, _ in node.told] == [Kind.FAULT]
    guilty.communicate()
    clock[0] += 2
    daemon.look()
    assert not daemon.view.ready
    other.communicate()
    until(lambda: "ACTIVE" in (node.place.pipe / "state").read_text())
    clock[0] += 2
    daemon.look()
    assert daemon.view.ready
    assert len(node.told) == 1


def test_a_fault_that_is_over_already_is_told_all_the_same(node: Node) -> None:
    daemon = node.daemon()
    daemon.look()
    daemon.suspect("Xid 31")
    daemon.look()
    assert node.told == [], "nobody used it"
    client = node.client()
    daemon.look()
    daemon.suspect()
    daemon.look()
    assert node.told == []
    daemon.suspect("Xid 31")
    daemon.look()
    daemon.look()
    ((kind, text),) = node.told
    assert kind is Kind.FAULT
    assert text.startswith("Xid 31; ")
    client.communicate()


def test_a_driver_without_mps_is_said_once_and_tried_again(node: Node) -> None:
    root = node.folder / "driver"
    (root / "usr/bin").mkdir(parents=True)
    node.control = Control(node.place, Driver(root, root, LIBDIR, leave=False))
    clock = [0.0]
    daemon = node.daemon(lambda: clock[0])
    for _ in range(3):
        daemon.look()
        clock[0] += 100
    assert not daemon.view.ready
    assert [kind for kind, _ in node.told] == [Kind.UNFIT]
    assert PROGRAM in node.told[0][1]
    assert "nvidia-compute-utils" in node.told[0][1]
    for name in (PROGRAM, "nvidia-cuda-mps-server"):
        shutil.copy(node.root / "usr/bin" / name, root / "usr/bin" / name)
    daemon.look()
    assert daemon.view.ready


def test_a_log_is_read_on_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "control.log"
    tail = logs.Tail(path, skip=True)
    assert tail.lines() == []
    path.write_text("one\ntwo\nhal")
    assert tail.lines() == ["one", "two"]
    with path.open("a") as file:
        file.write("f\n")
        assert tail.lines() == []
        file.flush()
        assert tail.lines() == ["half"]
        file.write("x" * logs.MOST + "\nlast\n")
    assert tail.lines()[-1] == "last"
    assert path.stat().st_size == 0
    path.write_text("after\n")
    assert tail.lines() == ["after"]


def test_what_the_daemon_says_is_in_the_plugins_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "apportion.mps")
    daemon = node.daemon()
    daemon.look()
    with (node.place.log / "control.log").open("a") as file:
        file.write("said by the daemon\n")
    daemon.look()
    said = [vars(record).get("line") for record in caplog.records if record.msg == "MPS says"]
    assert "said by the daemon" in said
