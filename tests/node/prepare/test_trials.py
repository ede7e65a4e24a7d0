"""A slow disk, interrupted system calls, a clock that jumps, claims of absurd size."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
from apportion.model import ClaimOutcome

from tests.node.prepare.world import UUIDS, World, result

GIB = 1 << 30


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_claim_whose_disk_is_slow_holds_no_other_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    entered, go_on = threading.Event(), threading.Event()
    sync, slow_thread = os.fsync, threading.local()

    def fsync(fd: int) -> None:
        if getattr(slow_thread, "is", False):
            entered.set()
            assert go_on.wait(30)
        sync(fd)

    def slowly() -> ClaimOutcome:
        setattr(slow_thread, "is", True)
        return preparer.prepare(slow)

    monkeypatch.setattr(os, "fsync", fsync)
    slow = world.add("slow", result(0, memory="1Gi", cores="10"))
    quick = world.add("quick", result(0, memory="1Gi", cores="10"))
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(slowly)
        assert entered.wait(30)
        assert preparer.prepare(quick).devices
        assert preparer.unprepare(quick) == ClaimOutcome()
        go_on.set()
        assert late.result(30).devices


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """A signal every half millisecond; system calls of the main thread end with EINTR."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGALRM, note)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# The test runner's own time limit would use the timer that interrupts.
@pytest.mark.timeout(120, method="thread")
def test_interrupted_system_calls_change_nothing(world: World, interrupts: list[int]) -> None:
    before = world.state()
    preparer = world.preparer()
    for number in range(30):
        wanted = world.add(f"c{number}", result(number % 2, memory="1Gi", cores="5"))
        assert preparer.prepare(wanted).error == ""
        assert preparer.unprepare(wanted) == ClaimOutcome()
    assert len(interrupts) > 30
    preparer.retire()
    assert world.state() == before


@pytest.mark.parametrize("jump", [-400 * 86400.0, 400 * 86400.0])
def test_a_clock_that_jumps_moves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    wanted = world.add("c")
    first = world.preparer().prepare(wanted)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    for path in (world.record_path("c"), world.share("c") / "limits"):
        os.utime(path, (real() + jump, real() + jump))
    after = world.restarted()
    after.preparer().sweep(ask=True)
    assert after.preparer().prepare(wanted) == first
    assert after.preparer().unprepare(wanted) == ClaimOutcome()


def test_thousands_of_results_of_others_are_passed_over(world: World) -> None:
    foreign = [
        result(0, request=f"r{n}", share_id=f"s{n}") | {"driver": "gpu.example.com"}
        for n in range(5000)
    ]
    outcome = world.preparer().prepare(world.add("c", *foreign, result(1)))
    assert len(outcome.devices) == 1
    assert world.key("c", 5000) in world.enforcer.share_keys()


def test_thousands_of_shares_are_refused_in_one_line_and_leave_nothing(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    before = world.state()
    many = [
        result(n % 2, request=f"r{n}", memory="1Mi", cores="1", share_id=f"s{n}")
        for n in range(5000)
    ]
    outcome = preparer.prepare(world.add("c", *many))
    assert "cores" in outcome.error
    assert len(outcome.error) < 1000
    assert world.state() == before


def test_as_many_shares_as_a_node_has_cores_are_prepared_and_go(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    before = world.state()
    many = [
        result(n % 2, request=f"r{n}", memory="1Mi", cores="1", share_id=f"s{n}")
        for n in range(200)
    ]
    wanted = world.add("c", *many)
    outcome = preparer.prepare(wanted)
    assert len(outcome.devices) == 200, outcome.error
    assert world.store.held(UUIDS[0]).cores == world.store.held(UUIDS[1]).cores == 100
    assert preparer.unprepare(wanted) == ClaimOutcome()
    assert world.state() == before
