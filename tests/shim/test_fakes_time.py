"""The simulated card executes in time: who gets how much of it, in which order, and for how long.

All by the card's own accounts, which are exact however late the processes are woken up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes import FakeDriver
from tests.fakes.card import Card, card, stop
from tests.fakes.fakegpu import DEFAULT_GPUS
from tests.fakes.machine import Machine, machine
from tests.fakes.process import Out
from tests.shim.load import Load
from tests.shim.mps import Daemon
from tests.shim.support import PROGRAMS

MS = 1_000_000
SECOND = 1000 * MS
SLICE, LOSS = 2 * MS, 9 * MS // 50
NOT_READY = 600
DEPTH = 1024
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
FORBIDDEN, SPOILT, CAPTURED = 900, 901, 907


@pytest.fixture
def t4s(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "machine") as two_t4s:
        two_t4s.driver.set_option(0, "executes", "yes")
        yield two_t4s


@pytest.fixture
def load(t4s: Machine) -> Iterator[Callable[..., Load]]:
    """Start a load that has a context on the first card."""
    with ExitStack() as running:

        def started(**environment: str) -> Load:
            env = {**os.environ, **t4s.environment, **environment}
            return running.enter_context(Load([str(PROGRAMS / "load")], env)).start(0)

        yield started


@pytest.fixture
def pipe(t4s: Machine) -> Iterator[dict[str, str]]:
    """A running MPS daemon of the first card, by the variable that names it."""
    daemon = Daemon(Path(t4s.environment["FAKEGPU_DIR"]), gpu=DEFAULT_GPUS[0].uuid).start()
    yield {"CUDA_MPS_PIPE_DIRECTORY": str(daemon.folder)}
    daemon.end()


def until(driver: FakeDriver, asker: Load, true: Callable[[Card], bool]) -> Card:
    """Let the card's time pass until something is true of it; nobody else need ask it."""
    for _ in range(100_000):
        asker.ask("query")
        if true(seen := card(driver, 0)):
            return seen
        time.sleep(0.001)
    raise AssertionError(seen)


def test_work_takes_its_time_and_no_more(t4s: Machine, load: Callable[..., Load]) -> None:
    alone = load()
    before = card(t4s.driver, 0)
    assert alone.ask("timed", 3 * MS, 20) >= 60 * MS
    assert alone.ask("query") == 0
    seen = card(t4s.driver, 0)
    assert seen.busy - before.busy == seen.served(alone.pid)
    assert 60 * MS <= seen.served(alone.pid) < 60.01 * MS  # an event takes 2 us of the GPU
    assert seen.at - before.at >= 60 * MS
    assert (seen.switching, seen.switches) == (0, 1)


def test_it_takes_none_where_that_is_off(t4s: Machine, load: Callable[..., Load]) -> None:
    t4s.driver.set_option(0, "executes", "no")
    alone = load()
    assert alone.ask("queue", 3600 * SECOND, 2000, "plain") == 0
    assert alone.ask("query") == alone.ask("sync") == 0


@pytest.mark.parametrize("how", ["plain", "ex", "cooperative", "legacy"])
def test_every_way_to_launch(t4s: Machine, load: Callable[..., Load], how: str) -> None:
    alone = load()
    assert alone.ask("queue", MS, 5, how) == 0
    assert alone.ask("sync") == 0
    assert card(t4s.driver, 0).served(alone.pid) == 5 * MS


def test_a_graph_is_the_sum_of_its_kernels(t4s: Machine, load: Callable[..., Load]) -> None:
    alone = load()
    steps = alone.run(MS, 7, "graph", seconds=0.1)
    queue = card(t4s.driver, 0).queues[0]
    assert queue.served == sum(step.count for step in steps) * MS
    assert queue.pushed == queue.done == len(steps)


def test_questions_and_waits_follow_the_work(t4s: Machine, load: Callable[..., Load]) -> None:
    alone = load()
    for wait in ("sync", "copy"):
        alone.ask("queue", 200 * MS, 1, "plain")
        assert alone.ask("query") == NOT_READY
        assert alone.ask(wait) == 0
        assert alone.ask("query") == 0
    assert card(t4s.driver, 0).served(alone.pid) == 400 * MS


def test_fills_and_copies_within_a_card_take_time_where_they_have_a_speed(t4s: Machine) -> None:
    t4s.driver.set_option(0, "memory_gb_s", "4")
    process, size = t4s.cuda().ready(), 8 << 20
    (_, one), (_, other) = (process.alloc(size) for _ in range(2))
    assert process.call("cuMemsetD8Async", one, 7, size, 0) == (0,)
    assert process.call("cuMemsetD32_v2", one, 7, size // 4) == (0,)
    assert process.call("cuMemcpyDtoDAsync_v2", other, one, size, 0) == (0,)
    assert process.call("cuMemcpyDtoD_v2", one, other, size) == (0,)
    assert process.call("cuCtxSynchronize") == (0,)
    seen = card(t4s.driver, 0)
    assert seen.served(process.pid) == (1 + 1 + 2 + 2) * size // 4
    assert seen.queues[0].done == 4


def test_a_full_queue_holds_launches_back(t4s: Machine, load: Callable[..., Load]) -> None:
    alone = load()
    alone.ask("queue", MS // 10, DEPTH + 500, "plain")
    queue = card(t4s.driver, 0).queues[0]
    assert queue.pushed == DEPTH + 500
    assert queue.done >= 500
    assert alone.ask("sync") == 0
    assert card(t4s.driver, 0).served(alone.pid) == (DEPTH + 500) * MS // 10


@pytest.mark.parametrize("count", [2, 3])
def test_processes_take_turns_of_a_slice(
    t4s: Machine, load: Callable[..., Load], count: int
) -> None:
    loads = [load() for _ in range(count)]
    for each in loads:
        each.ask("queue", 400 * MS, 1, "plain")
    busy = until(t4s.driver, loads[0], lambda c: all(q.pushed > q.done for q in c.queues))
    later = until(t4s.driver, loads[0], lambda c: c.at > busy.at + 20 * count * SLICE)
    got = [later.served(each.pid) - busy.served(each.pid) for each in loads]
    assert max(got) - min(got) <= SLICE
    assert sum(got) == later.busy - busy.busy
    # Never idle: what no work ran in went into switching.
    assert sum(got) + later.switching - busy.switching == later.at - busy.at
    lost = (later.switches - busy.switches) * LOSS
    assert abs(later.switching - busy.switching - lost) <= LOSS
    for each in loads:
        assert each.ask("sync") == 0
    done = card(t4s.driver, 0)
    assert [done.served(each.pid) for each in loads] == [400 * MS] * count


def test_the_work_of_one_that_is_killed_ends_with_it(
    t4s: Machine, load: Callable[..., Load]
) -> None:
    victim, other = load(), load()
    victim.ask("queue", 3600 * SECOND, 3, "plain")
    other.ask("queue", 10 * MS, 1, "plain")
    assert other.ask("sync") == 0
    victim.kill()
    other.ask("queue", 10 * MS, 10, "plain")
    assert other.ask("sync") == 0
    seen = card(t4s.driver, 0)
    assert seen.served(other.pid) == 110 * MS
    assert [queue.pid for queue in seen.queues] == [other.pid]


def test_the_work_of_one_that_is_stopped_goes_on(t4s: Machine, load: Callable[..., Load]) -> None:
    stopped, other = load(), load()
    stopped.ask("queue", 10 * MS, 20, "plain")
    stop(t4s.driver, stopped.pid)
    seen = until(t4s.driver, other, lambda c: c.served(stopped.pid) == 200 * MS)
    assert {queue.pid for queue in seen.queues} == {stopped.pid, other.pid}
    stopped.signal(signal.SIGCONT)
    assert stopped.ask("sync") == 0


@pytest.mark.parametrize("inside", [False, True])
def test_killed_anywhere_it_leaves_a_card_that_works(
    t4s: Machine, load: Callable[..., Load], *, inside: bool
) -> None:
    other = load()
    for _ in range(10):
        victim = load()
        victim.send("queue", 0, 1_000_000_000, "plain")
        stop(t4s.driver, victim.pid, inside=inside)
        victim.kill()
    other.ask("queue", MS, 10, "plain")
    assert other.ask("sync") == 0
    seen = card(t4s.driver, 0)
    assert all(queue.pushed == queue.done for queue in seen.queues)
    assert seen.served(other.pid) == 10 * MS


def test_clients_of_mps_run_at_once_within_their_percentages(
    t4s: Machine, load: Callable[..., Load], pipe: dict[str, str]
) -> None:
    some = load(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30", **pipe)
    some.ask("queue", 100 * MS, 20, "plain")
    begin = until(t4s.driver, some, lambda c: c.busy > 0)
    end = until(t4s.driver, some, lambda c: c.at > begin.at + 50 * MS)
    assert end.busy - begin.busy == pytest.approx(0.3 * (end.at - begin.at), abs=1)
    most = load(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="60", **pipe)
    most.ask("queue", 100 * MS, 20, "plain")
    begin = until(t4s.driver, most, lambda c: c.served(most.pid) > 0)
    end = until(t4s.driver, most, lambda c: c.at > begin.at + 50 * MS)
    passed = end.at - begin.at
    for each, percent in ((some, 30), (most, 60)):
        got = end.served(each.pid) - begin.served(each.pid)
        assert got == pytest.approx(percent / 100 * passed, abs=2)
    assert end.switching == 0


def test_clients_of_mps_that_ask_for_more_than_there_is_share_it(
    t4s: Machine, load: Callable[..., Load], pipe: dict[str, str]
) -> None:
    percentages = ["20", "100", "100"]
    loads = [load(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=each, **pipe) for each in percentages]
    for each in loads:
        each.ask("queue", 100 * MS, 20, "plain")
    begin = until(t4s.driver, loads[0], lambda c: all(q.served > 0 for q in c.queues))
    end = until(t4s.driver, loads[0], lambda c: c.at > begin.at + 50 * MS)
    for each, rate in zip(loads, (0.2, 0.4, 0.4), strict=True):
        got = end.served(each.pid) - begin.served(each.pid)
        assert got == pytest.approx(rate * (end.at - begin.at), abs=2)


def test_percentages_mean_nothing_without_a_daemon(
    t4s: Machine, load: Callable[..., Load], tmp_path: Path
) -> None:
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    load(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30", **pipe)
    (queue,) = card(t4s.driver, 0).queues
    assert (queue.percent, queue.mps) == (100, False)


def test_a_mistake_in_the_slices_is_named(t4s: Machine) -> None:
    t4s.driver.set_option(0, "slice_us", "0")
    done = subprocess.run(
        [PROGRAMS / "load"], input="start 0\n", env={**os.environ, **t4s.environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "100\n"
    assert "without slices" in done.stderr


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("question", ["cuEventQuery", "cuEventSynchronize", "cuStreamQuery"])
def test_questions_spoil_a_capture_as_recorded(t4s: Machine, question: str, mode: int) -> None:
    process = t4s.cuda().ready()
    (_, captured), (_, other) = (process.call("cuStreamCreate", Out(), 1) for _ in range(2))
    _, event = process.call("cuEventCreate", Out(), 0)
    assert process.call("cuEventRecord", event, other) == (0,)
    assert process.call("cuStreamBeginCapture_v2", captured, mode) == (0,)
    assert process.call("cuEventRecord", event, other) == (0,)
    asked = other if question == "cuStreamQuery" else event
    assert process.call(question, asked) == (0 if mode == RELAXED else FORBIDDEN,)
    ended = process.call("cuStreamEndCapture", captured, Out())[0]
    assert ended == (0 if mode == RELAXED else SPOILT)


def test_an_event_in_a_capture_has_no_state(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    _, stream = process.call("cuStreamCreate", Out(), 1)
    _, event = process.call("cuEventCreate", Out(), 0)
    assert process.call("cuStreamBeginCapture_v2", stream, RELAXED) == (0,)
    assert process.call("cuEventRecord", event, stream) == (0,)
    assert process.call("cuEventQuery", event) == (CAPTURED,)
    assert process.call("cuStreamEndCapture", stream, Out())[0] == SPOILT
