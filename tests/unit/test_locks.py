from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from apportion import locks
from apportion.errors import StorageError

_HOLDER = """
import sys, time
from pathlib import Path
from apportion import locks
with locks.held(Path(sys.argv[1]), locks.byte_of("a")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_name_excludes_itself_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.held(path, locks.byte_of("a")) as first:
        with locks.held(path, locks.byte_of("a"), wait=False) as second:
            assert (first, second) == (True, False)
        with locks.held(path, locks.byte_of("b"), wait=False) as other:
            assert other
        with locks.held(path, 0, wait=False) as number:
            assert number
    with locks.held(path, locks.byte_of("a"), wait=False) as again:
        assert again


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locks.held(tmp_path / "lock", 0):
                inside += 1
                most = max(most, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_the_kernel_releases_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with locks.held(path, locks.byte_of("a"), wait=False) as mine:
            assert not mine
        holder.kill()
        with locks.held(path, locks.byte_of("a")) as mine:
            assert mine


def test_asking_sees_locks_of_others_in_the_range_and_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.held(path, 105):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert locks.is_held(fd, 100, 10)
            assert not locks.is_held(fd, 106, 10)
            assert not locks.is_held(fd, 95, 10)
        finally:
            os.close(fd)


def test_a_lock_file_that_cannot_be_opened_is_an_error_with_its_path(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=str(tmp_path / "none")),
        locks.held(tmp_path / "none/lock", 0),
    ):
        pass


def test_a_file_system_without_these_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> bytes:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(StorageError, match="local file system"), locks.held(tmp_path / "l", 0):
        pass
