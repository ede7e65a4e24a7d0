"""Launches wait for their share's slots; nothing else does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.shim.cores import executes_in_time
from tests.shim.load import Load
from tests.shim.schedules import (
    CLOSED,
    FAR,
    MS,
    NAME,
    OPEN,
    Account,
    schedule_bytes,
    state_bytes,
    timeslice,
    wait_until_wanted,
    write,
)
from tests.shim.support import MIB, OK, OOM, Container, limits_text, uuid

HOWS = ["plain", "ex", "cooperative", "legacy"]


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def load(container: Container, running: ExitStack) -> Load:
    """Start the load program with a context on the first card."""
    return running.enter_context(Load(container.command("/run/bin/load"))).start(0)


@pytest.mark.parametrize("how", HOWS)
def test_launches_of_every_kind_wait_for_the_slot(
    container: Container, running: ExitStack, how: str
) -> None:
    share = timeslice(container, CLOSED)
    app = load(container, running)
    app.send("queue", 1000, 3, how)
    wait_until_wanted(share)
    wait_until_wanted(share)
    assert Account.of(share).waited == 0
    write(share, OPEN)
    assert app.line() == "0"
    assert Account.of(share).waited > 0
    assert app.ask("sync") == 0


def test_launches_wait_in_every_stream(container: Container) -> None:
    share = timeslice(container)
    with container.client().start() as app:
        streams = range(5)  # 0: the default one
        for stream in streams[1:]:
            assert app.ask("pool-stream", stream) == [OK]
        assert [app.ask("graph-kernel", stream) for stream in streams] == [[OK]] * len(streams)
        for stream in streams:
            write(share, CLOSED)
            waited = Account.of(share).waited
            app.send("graph-kernel", stream)
            wait_until_wanted(share)
            wait_until_wanted(share)
            assert Account.of(share).waited == waited
            write(share, OPEN)
            assert app.read() == [OK]
            assert Account.of(share).waited > waited


def test_without_a_limit_by_time_nothing_waits_or_is_counted(
    container: Container, running: ExitStack
) -> None:
    share = container.share(64 * MIB)
    app = load(container, running)
    assert [app.ask("queue", 1000, 3, how) for how in HOWS] == [OK] * len(HOWS)
    assert Account.of(share) == Account(0, 0, 0, 0, 0)


@pytest.mark.parametrize("cores", ["cores 100", "cores 30"])
def test_all_cores_and_none_limited_need_no_schedule(container: Container, cores: str) -> None:
    mode = "timeslice" if cores == "cores 100" else "none"
    text = limits_text("k", uuid(), 64 * MIB).replace("cores 30", cores)
    container.share(key="k", text=text + f"cores-mode {mode}\n")
    with container.client().start() as app:
        assert app.alloc(MIB) == OK


def test_a_share_without_its_schedule_is_refused(container: Container) -> None:
    share = timeslice(container)
    (share.folder / NAME).unlink()
    with container.client() as app:
        assert app.ask("start", 0) == [OOM]


GOOD = schedule_bytes(OPEN)


@pytest.mark.parametrize(
    "file",
    [
        b"", GOOD[:-1], GOOD + b"\0", b"X" + GOOD[1:], GOOD[:8] + b"\2" + GOOD[9:],
        GOOD[:16] + bytes(8) + GOOD[24:],
        schedule_bytes(state_bytes([], period=100)),
        schedule_bytes(state_bytes([(0, 30)], period=0)),
        schedule_bytes(state_bytes([(0, 30)], period=1 << 60)),
        schedule_bytes(state_bytes([(0, 0)], period=100)),
        schedule_bytes(state_bytes([(0, 101)], period=100)),
        schedule_bytes(state_bytes([(100, 1)], period=100)),
        schedule_bytes(state_bytes([(0, 30), (29, 5)], period=100)),
        schedule_bytes(state_bytes([(50, 10), (0, 10)], period=100)),
        schedule_bytes(state_bytes([(1, (1 << 64) - 1)], period=100)),
        schedule_bytes(state_bytes([(0, 30)], period=100, guest=[(90, 20)])),
    ],
)  # fmt: skip
def test_a_schedule_with_a_fault_is_refused(container: Container, file: bytes) -> None:
    timeslice(container, file=file)
    with container.client() as app:
        assert app.ask("start", 0) == [OOM]


@pytest.mark.parametrize("fault", ["no mark", "another's mark", "a link", "writable"])
def test_a_schedule_that_is_not_the_plugins_is_refused(container: Container, fault: str) -> None:
    share = timeslice(container)
    path = share.folder / NAME
    if fault == "no mark":
        os.removexattr(path, "security.apportion")
    elif fault == "another's mark":
        os.setxattr(path, "security.apportion", b"other")
    elif fault == "a link":
        path.rename(share.folder / "elsewhere")
        path.symlink_to("elsewhere")
    else:
        share.read_only = False
    with container.client() as app:
        assert app.ask("start", 0) == [OOM]


def test_a_state_with_a_fault_leaves_the_last_one_in_force(
    container: Container, running: ExitStack
) -> None:
    share = timeslice(container)
    app = load(container, running)
    assert app.ask("queue", 1000, 1, "plain") == OK
    write(share, state_bytes([(0, 0)], period=FAR))
    assert app.ask("queue", 1000, 1, "plain") == OK


def test_guest_slots_end_by_themselves(container: Container, running: ExitStack) -> None:
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def until(end: int) -> bytes:
        return state_bytes([(0, 1)], period=FAR, guest=[(1, FAR - 1)], guest_until=end)

    share = timeslice(container, until(now + 10**15))
    app = load(container, running)
    assert app.ask("queue", 1000, 1, "plain") == OK
    write(share, until(now))
    app.send("queue", 1000, 1, "plain")
    wait_until_wanted(share)
    wait_until_wanted(share)
    write(share, until(now + 10**15))
    assert app.line() == "0"


@pytest.mark.parametrize("states", [(CLOSED, OPEN), (OPEN, CLOSED)], ids=["second", "first"])
def test_two_shares_of_a_card_have_the_slots_of_both(
    container: Container, running: ExitStack, states: tuple[bytes, bytes]
) -> None:
    shares = [timeslice(container, state) for state in states]
    assert load(container, running).ask("queue", 1000, 3, "plain") == OK
    assert all(Account.of(share).wanted > 0 for share in shares)  # by which time is lent


def test_beside_a_share_of_all_cores_no_slots_count(
    container: Container, running: ExitStack
) -> None:
    for key, cores in (("a", 30), ("b", 100), ("c", 30)):
        if cores == 100:
            text = limits_text(key, uuid(), 64 * MIB).replace("cores 30", "cores 100")
            container.share(key=key, text=text + "cores-mode timeslice\n")
        else:
            timeslice(container, CLOSED, key=key)
    assert load(container, running).ask("queue", 1000, 3, "plain") == OK


def test_each_card_has_its_own_slots(container: Container, running: ExitStack) -> None:
    closed = timeslice(container, CLOSED)
    timeslice(container, OPEN, gpu=uuid(1))
    other = running.enter_context(Load(container.command("/run/bin/load"))).start(1, 0)
    assert other.ask("queue", 1000, 3, "plain") == OK
    app = load(container, running)
    app.send("queue", 1000, 1, "plain")
    wait_until_wanted(closed)
    write(closed, OPEN)
    assert app.line() == "0"


def test_what_is_captured_does_not_wait_but_its_graph_does(container: Container) -> None:
    share = timeslice(container, CLOSED)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("graph-capture", 1, 0, 0) == [OK]
        assert app.ask("graph-kernel", 1) == [OK]
        assert app.ask("graph-captured", 1, 1) == [OK]
        assert app.ask("graph-exec", 1, 2, 0) == [OK]
        assert Account.of(share).wanted == 0
        app.send("graph-launch", 1, 1)
        wait_until_wanted(share)
        write(share, OPEN)
        assert app.read() == [OK]
        assert Account.of(share).waited > 0


@pytest.mark.parametrize("end", ["release", "reset"])
def test_contexts_come_and_go_between_launches(container: Container, end: str) -> None:
    timeslice(container)
    with container.client() as app:
        for _ in range(40):
            assert app.ask("start", 0) == [OK]
            assert app.ask("pool-stream", 1) == [OK]
            assert [app.ask("graph-kernel", 1) for _ in range(5)] == [[OK]] * 5
            assert app.ask("code-context", 2, 1) == [OK, 1]
            assert app.ask("graph-kernel", 0) == [OK]
            assert app.ask("code-destroy", 1) == [OK]
            assert app.ask(end, 0) == [OK]


def test_who_is_killed_while_it_waits_leaves_nothing_behind(
    container: Container, running: ExitStack
) -> None:
    share = timeslice(container, CLOSED)
    for _ in range(3):
        app = load(container, running)
        app.send("queue", 1000, 1, "plain")
        wait_until_wanted(share)
        app.kill()
    write(share, OPEN)
    assert load(container, running).ask("queue", 1000, 100, "plain") == OK
    assert Account.of(share).carry == 0


def test_time_is_counted(container: Container, running: ExitStack) -> None:
    share = timeslice(container, state_bytes([(0, 100 * MS)]))
    executes_in_time(container)
    app = load(container, running)
    for how in [*HOWS, "graph"]:
        before = Account.of(share).used
        app.run(2 * MS, 4, how, seconds=0.2)
        assert Account.of(share).used > before + 20 * MS
    assert Account.of(share).overrun == 0
