"""Memory that one process made and others opened: charged once while any of them has it."""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import BLOCK, INVALID, MIB, NO_CONTEXT, OK, OOM, SENTINEL, Client, Container
from tests.shim.test_processes import hold_slots

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT: Final = 64 * MIB
PIECE: Final = 32 * MIB


@contextmanager
def applications(container: Container, count: int) -> Iterator[list[Client]]:
    """Start applications in one container, all with a context."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(container.client(program="families").start()) for _ in range(count)
        ]


def truth(container: Container) -> int:
    """Return the bytes that the simulated driver has given out."""
    return FakeDriver(container.state).used(0)


def made(app: Client, size: int = PIECE, place: int = 0) -> list[int]:
    """Allocate and return a handle of it."""
    assert app.ask("ipc-alloc", place, size) == [OK]
    result, *handle = app.ask("ipc-get", place)
    assert result == OK
    return handle


@pytest.mark.parametrize("version", ["ipc-open", "ipc-open1"])
def test_what_many_have_open_is_charged_once(container: Container, version: str) -> None:
    share = container.share(LIMIT)
    with applications(container, 4) as (maker, *others):
        handle = made(maker)
        assert share.total == PIECE
        for other in others:
            assert other.ask(version, 0, *handle)[0] == OK
            assert other.info()[0] == LIMIT - PIECE
        assert share.total == truth(container) == PIECE
        assert maker.ask("ipc-alloc", 1, PIECE) == [OK]
        assert maker.ask("ipc-alloc", 2, 1) == [OOM]


def test_it_stays_charged_until_the_last_has_closed_it(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        handle = made(maker)
        assert one.ask("ipc-open", 0, *handle)[0] == OK
        assert two.ask("ipc-open", 0, *handle)[0] == OK
        assert maker.ask("ipc-free", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert one.ask("ipc-close", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert two.ask("ipc-close", 0) == [OK]
        assert share.total == truth(container) == 0


def test_it_stays_charged_when_its_maker_dies(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        handle = made(maker)
        assert one.ask("ipc-open", 0, *handle)[0] == OK
        assert two.ask("ipc-open", 0, *handle)[0] == OK
        maker.kill()
        assert one.ask("ipc-alloc", 1, LIMIT - PIECE + BLOCK) == [OOM]
        assert share.total == truth(container) == PIECE
        one.kill()
        assert two.ask("ipc-alloc", 1, LIMIT) == [OOM]
        assert share.total == truth(container) == PIECE
        two.kill()
        with container.client(program="families").start() as last:
            assert last.ask("ipc-alloc", 0, LIMIT) == [OK]
            assert share.total == truth(container) == LIMIT


def test_a_second_opening_is_the_same_one(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        handle = made(maker)
        result, first = other.ask("ipc-open", 0, *handle)
        assert other.ask("ipc-open", 1, *handle) == [result, first] == [OK, first]
        assert maker.ask("ipc-free", 0) == [OK]
        assert other.ask("ipc-close", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert other.ask("ipc-close", 1) == [OK]
        assert share.total == truth(container) == 0
        assert other.ask("ipc-close", 1) == [INVALID]


def test_handles_are_for_the_whole_allocation(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        made(maker)
        result, *handle = maker.ask("ipc-get", 0, 4096)
        assert result == OK
        assert other.ask("ipc-open", 0, *handle)[0] == OK
        assert share.total == truth(container) == PIECE


def test_small_pieces_cost_a_block_where_they_are_open(container: Container) -> None:
    """The driver maps the block that they lie in; here each process pays for it."""
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        handles = [made(maker, 4096, place) for place in range(2)]
        for place, handle in enumerate(handles):
            assert other.ask("ipc-open", place, *handle)[0] == OK
        assert truth(container) == BLOCK
        assert share.total == 2 * BLOCK
        assert [maker.ask("ipc-free", place) for place in range(2)] == [[OK], [OK]]
        assert share.total == truth(container) == BLOCK
        assert [other.ask("ipc-close", place) for place in range(2)] == [[OK], [OK]]
        assert share.total == truth(container) == 0


def test_what_another_share_made_is_charged_here_too(container: Container) -> None:
    ours = container.share(LIMIT)
    elsewhere = Container(container.folder / "elsewhere", container.state)
    theirs = elsewhere.share(LIMIT)
    with applications(elsewhere, 1) as (maker,), applications(container, 2) as (one, two):
        handle = made(maker)
        assert one.ask("ipc-open", 0, *handle)[0] == OK
        assert (theirs.total, ours.total) == (PIECE, PIECE)
        assert two.ask("ipc-alloc", 0, PIECE) == [OK]
        assert two.ask("ipc-open", 0, *handle) == [OOM, SENTINEL]
        maker.kill()
        assert ours.total == 2 * PIECE == truth(container)
        assert one.ask("ipc-close", 0) == [OK]
        assert ours.total == PIECE == truth(container)


def test_an_opening_that_does_not_fit_is_refused_and_closed(container: Container) -> None:
    share = container.share(BLOCK)
    elsewhere = Container(container.folder / "elsewhere", container.state)
    elsewhere.share(LIMIT)
    with applications(elsewhere, 1) as (maker,), applications(container, 1) as (other,):
        handle = made(maker)
        assert other.ask("ipc-open", 0, *handle) == [OOM, SENTINEL]
        assert (share.total, share.denied) == (0, 1)
        assert maker.ask("ipc-free", 0) == [OK]
        assert truth(container) == 0


def test_the_drivers_errors_stay_its_own(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        handle = made(maker)
        assert maker.ask("ipc-open", 0, *handle) == [NO_CONTEXT, SENTINEL]
        assert maker.ask("ipc-get", 9)[0] == INVALID
        assert other.ask("ipc-open", 0, *handle)[0] == OK
        assert other.ask("ipc-free-opened", 0) == [INVALID]
        assert other.ask("ipc-close", 5) == [INVALID]
        assert share.total == PIECE
        assert other.ask("ipc-close", 0) == [OK]
        assert maker.ask("ipc-free", 0) == [OK]
        assert share.total == 0


def test_it_goes_with_the_context_that_opened_it(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        handle = made(maker)
        assert other.ask("ctx-create", 1) == [OK]
        assert other.ask("ipc-open", 0, *handle)[0] == OK
        assert maker.ask("ipc-free", 0) == [OK]
        assert other.ask("ctx-destroy", 1) == [OK]
        assert share.total == truth(container) == 0


def test_without_a_free_slot_each_is_charged(container: Container) -> None:
    """More than once, then; never too little. The last 256 slots are for processes only."""
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other), share.ledger.open("r+b") as ledger:
        assert maker.ask("ipc-alloc", 0, BLOCK) == [OK]
        assert other.ask("ipc-alloc", 0, BLOCK) == [OK]
        hold_slots(ledger.fileno(), 2, 1024 - 256)
        handle = made(maker, PIECE, 1)
        assert share.total == PIECE + 2 * BLOCK
        assert other.ask("ipc-open", 0, *handle) == [OOM, SENTINEL]
        handle = made(maker, BLOCK, 2)
        assert other.ask("ipc-open", 0, *handle)[0] == OK
        assert share.total == truth(container) + BLOCK
        assert maker.ask("ipc-free", 2) == [OK]
        assert share.total == truth(container)
        with container.client(program="families").start() as newcomer:
            assert newcomer.ask("ipc-alloc", 0, BLOCK) == [OK]


def test_a_handle_whose_memory_is_freed_opens_nothing_new(container: Container) -> None:
    """It may come to mean another allocation of the same process."""
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        handle = made(maker)
        assert one.ask("ipc-open", 0, *handle)[0] == OK
        assert maker.ask("ipc-free", 0) == [OK]
        assert two.ask("ipc-open", 0, *handle)[0] == OK
        assert share.total == 2 * PIECE > truth(container)


def test_after_kills_at_any_time_ledger_and_truth_agree(container: Container) -> None:
    """Processes make, open, close and free each other's memory, and are killed meanwhile."""
    share = container.share(16 * LIMIT)
    chance = random.Random(4711)  # noqa: S311 - a test that runs the same each time
    with ExitStack() as stack:
        apps: list[Client] = []
        for round_ in range(24):
            while len(apps) < 4:
                apps.append(stack.enter_context(container.client(program="families").start()))
            handles = [made(app, BLOCK * chance.randint(1, 8), round_) for app in apps]
            for app in apps:
                for place, handle in enumerate(handles):
                    if chance.random() < 0.7:
                        app.send("ipc-open", round_ * 4 % 60 + place, *handle)
                        assert app.read()[0] in {OK, NO_CONTEXT}
            for app in apps:
                app.send("ipc-close", round_ * 4 % 60 + chance.randint(0, 3))
            apps.pop(chance.randrange(len(apps))).kill()
            for app in apps:
                assert app.read()[0] in {OK, INVALID}
            assert apps[0].ask("ipc-alloc", 60, 16 * LIMIT) == [OOM]
            assert share.total == truth(container) == sum(share.slots())
