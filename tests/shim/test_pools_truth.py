"""Pools under threads and at random: the ledger keeps to what the driver has."""

from __future__ import annotations

from random import Random

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import MIB, OK, OOM, SENTINEL, Container

CHUNK = 32 * MIB
LIMIT = 8 * CHUNK
KEEP_ALL = (1 << 64) - 1


def test_threads_leave_nothing_behind(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new", 1, 0) == [OK]
        errors, granted, refused = app.ask("pool-threads", 1000, 40 * MIB, 1, 6)
        assert errors == 0
        assert granted > 0
        assert refused > 0
        assert app.ask("pool-sync-context", 0) == [OK]
        assert share.total == 0
        assert FakeDriver(container.state).used(0) == 0
        assert share.peak <= LIMIT


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_the_charge_is_what_the_card_lost(container: Container, seed: int) -> None:
    """Random calls; after each, the ledger has what the driver has, and no more than the share."""
    share, driver = container.share(LIMIT), FakeDriver(container.state)
    choose = Random(seed)  # noqa: S311 - to be the same every time
    live: list[int] = []
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        for pool in (1, 2):
            assert app.ask("pool-new", pool, 0) == [OK]
            assert app.ask("pool-threshold", pool, choose.choice((0, CHUNK, KEEP_ALL))) == [OK]
        for _ in range(150):
            size = choose.choice((512, 5 * MIB, 31 * MIB, CHUNK, 40 * MIB, 100 * MIB))
            done = choose.choice(("take", "take", "free", "wait", "trim"))
            if done == "take":
                how = choose.choice(("pool-async", "pool-from", "alloc"))
                result, pointer = app.ask(how, size, choose.randrange(2), choose.randrange(3))
                assert (result, pointer == SENTINEL) in {(OK, False), (OOM, True)}
                live += [pointer] * (result == OK)
            elif done == "free" and live:
                pointer = live.pop(choose.randrange(len(live)))
                assert app.ask(choose.choice(("free", "pool-free")), pointer, 1) == [OK]
            elif done == "wait":
                assert app.ask("pool-sync", choose.randrange(2)) == [OK]
            elif done == "trim":
                assert app.ask("pool-trim", choose.randrange(3), choose.choice((0, size))) == [OK]
            assert app.info() == (LIMIT - share.total, LIMIT)
            assert driver.used(0) <= share.total <= LIMIT
        for pointer in live:
            assert app.ask("free", pointer) == [OK]
        for pool in (1, 2):
            assert app.ask("pool-end", pool) == [OK]
        assert app.ask("pool-sync-context", 0) == [OK]
        assert app.info() == (LIMIT, LIMIT)
        assert driver.used(0) == 0


def test_what_waits_for_another_stream_is_waited_for(container: Container) -> None:
    """The driver takes new memory beside it at first; when that does not fit, it comes out."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        for size in (200 * MIB, 250 * MIB, 100 * MIB):
            result, pointer = app.ask("pool-async", size, 1)
            assert result == OK
            assert app.ask("pool-free", pointer, 1) == [OK]
            result, pointer = app.ask("pool-async", size, 0)
            assert result == OK
            assert FakeDriver(container.state).used(0) == share.total
            assert app.ask("pool-free", pointer, 0) == [OK]
            assert share.total <= LIMIT
        assert share.denied == 0
