from __future__ import annotations

import threading

import pytest
from apportion.app.loops import Loops
from apportion.errors import StorageError


def _messages(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == level]


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


def test_a_loop_that_fails_ends_the_process_with_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ValueError("boom")

    loops = Loops()
    loops.start("publish", fail)
    assert loops.stopping.wait(20)
    loops.join(20)
    assert loops.failed
    (record,) = (r for r in caplog.records if r.levelname == "ERROR")
    assert record.exc_info
    assert vars(record)["loop"] == "publish"


def test_no_loop_starts_once_all_are_told_to_end() -> None:
    ran: list[str] = []
    loops = Loops()
    loops.stop()
    loops.start("publish", lambda: ran.append("publish"))
    loops.every("scan", lambda: 0.0, lambda: ran.append("scan"))
    loops.join(20)
    assert ran == []
    assert not loops.failed


def test_a_loop_that_just_ends_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    loops = Loops()
    loops.start("publish", lambda: None)
    assert loops.stopping.wait(20)
    loops.join(20)
    assert loops.failed
    assert _messages(caplog, "ERROR") == ["a loop ended before its time; the process ends"]


def test_a_loop_that_ends_when_told_is_none() -> None:
    loops = Loops()
    loops.start("publish", lambda: _wait(loops.stopping))
    loops.stop()
    loops.join(20)
    assert not loops.failed


def test_foreseen_errors_are_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    loops = Loops()
    rounds: list[int] = []

    def sweep() -> None:
        rounds.append(1)
        if len(rounds) <= 3:
            raise StorageError("the disk is full")
        loops.stop()

    loops.every("sweep", lambda: 0.001, sweep)
    loops.join(20)
    assert not loops.failed
    assert len(rounds) == 4
    assert _messages(caplog, "WARNING") == ["sweep: the disk is full"]
    assert _messages(caplog, "INFO") == ["sweep: all is well again"]


def test_an_unforeseen_error_of_a_timer_ends_the_process() -> None:
    def scan() -> None:
        raise KeyError("x")

    loops = Loops()
    loops.every("scan", lambda: 0.001, scan)
    assert loops.stopping.wait(20)
    loops.join(20)
    assert loops.failed


def test_a_loop_that_does_not_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    loops = Loops()
    release = threading.Event()
    loops.start("watch", lambda: _wait(release))
    loops.stop()
    assert not loops.join(0.01)
    release.set()
    assert loops.join(20)
    (record,) = (r for r in caplog.records if r.levelname == "WARNING")
    assert vars(record)["loop"] == "watch"
