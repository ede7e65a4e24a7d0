"""Registry, RPC, cgroup and mount listings: what the supervisor rests on."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness import HarnessError, cgroups, mounts, registry, rpc


@contextmanager
def _server(path: Path) -> Iterator[None]:
    """A server that gives back what it was asked, and refuses `bad`."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "bad":
            raise HarnessError("not that")
        return {"got": request}

    with selectors.DefaultSelector() as selector:
        read, write = os.pipe()
        selector.register(read, selectors.EVENT_READ, None)
        server = rpc.Server(path, handle, selector)

        def serve() -> None:
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    key.data()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            os.close(write)
            thread.join()
            server.close()
            os.close(read)


def test_a_call_is_answered_also_below_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with _server(folder / "socket"):
        assert rpc.call(folder / "socket", 5, op="a", text="ü") == {"got": {"op": "a", "text": "ü"}}
        assert rpc.server_pid(folder / "socket", 5) == os.getpid()
        assert (folder / "socket").stat().st_mode & 0o777 == 0o600


def test_a_refusal_is_an_error_and_the_server_lives_on(tmp_path: Path) -> None:
    with _server(tmp_path / "s"):
        with pytest.raises(HarnessError, match="not that"):
            rpc.call(tmp_path / "s", 5, op="bad")
        with rpc.connection(tmp_path / "s", 5):
            pass  # one who says nothing
        assert rpc.call(tmp_path / "s", 5, op="a")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_CLUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_record_is_alive_while_its_process_is(empty_cache: Path) -> None:
    path, record = registry.add("x", empty_cache / "state", "cgroup-of-x", keep_state=False)
    assert registry.records() == [(path, record)]
    assert record.alive
    assert not replace(record, start_time=record.start_time + 1).alive
    assert not replace(record, boot_id="another").alive
    assert replace(record, pid_namespace="pid:[1]", start_time=0).alive


def test_an_ended_process_has_no_start_time() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert registry.start_time(process.pid)
        process.kill()
    assert registry.start_time(process.pid) is None


@pytest.mark.parametrize("keep", [True, False])
def test_a_sweep_removes_the_dead_alone(empty_cache: Path, *, keep: bool) -> None:
    states = [empty_cache / "alive", empty_cache / "dead"]
    for state in states:
        state.mkdir()
        (state / "file").touch()
    registry.add("alive", states[0], "cgroup-alive", keep_state=False)
    path, _ = registry.add("dead", states[1], "cgroup-dead", keep_state=keep)
    path.write_text(path.read_text().replace(registry.machine_boot_id(), "before"))
    registry.sweep()
    assert [record.name for _, record in registry.records()] == ["alive"]
    assert [state.exists() for state in states] == [True, keep]


def test_cgroup_hierarchies_are_found_in_both_versions(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
    )
    assert cgroups.hierarchies(table) == [
        cgroups.Hierarchy(Path("/sys/fs/cgroup/cpu"), is_v2=False),
        cgroups.Hierarchy(Path("/sys/fs/cgroup/unified"), is_v2=True),
    ]


def test_mount_points_below_a_folder_are_listed_unescaped(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    line = "36 35 98:0 / {} rw - ext4 /dev/x rw\n"
    points = ["/var/lib/b", "/var/lib", "/var/library", r"/var/lib/a\040b"]
    table.write_text("".join(line.format(point) for point in points))
    assert mounts.points_below("/var/lib", table) == ["/var/lib/a b", "/var/lib/b"]


@pytest.mark.parametrize(
    ("path", "overlay"),
    [("/tmp/x", True), ("/data", False), ("/data/x", False), ("/database", True)],
)
def test_an_overlay_is_told_by_the_innermost_and_last_mount(
    tmp_path: Path, path: str, *, overlay: bool
) -> None:
    table = tmp_path / "mountinfo"
    lines = [("/", "overlay"), ("/data", "overlay"), ("/data", "tmpfs")]
    table.write_text("".join(f"1 2 0:1 / {p} rw shared:1 - {kind} x rw\n" for p, kind in lines))
    assert mounts.is_overlay(Path(path), table) == overlay
