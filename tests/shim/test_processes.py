"""Several processes in one share: together, racing, forked, replaced, killed."""

from __future__ import annotations

import fcntl
import struct

import pytest

from tests.shim.support import BLOCK, MIB, OK, OOM, SENTINEL, Container, several

LIMIT = 64 * MIB
F_OFD_SETLK = 37


def test_two_processes_cannot_exceed_the_share_together(container: Container) -> None:
    share = container.share(LIMIT)
    with several(container, 2) as (one, two):
        assert one.alloc(40 * MIB) == OK
        assert two.alloc(26 * MIB) == OOM
        assert two.alloc(24 * MIB) == OK
        assert one.alloc(1) == OOM
        assert one.info() == two.info() == (0, LIMIT)
        assert sorted(share.slots())[-2:] == [24 * MIB, 40 * MIB]


def test_containers_of_one_share_count_together(container: Container) -> None:
    container.share(LIMIT)
    other = Container(container.folder, container.state, list(container.shares))
    with container.client().start() as one, other.client().start() as two:
        assert one.alloc(LIMIT - BLOCK) == OK
        assert two.alloc(2 * BLOCK) == OOM
        assert two.alloc(BLOCK) == OK


@pytest.mark.parametrize("piece", [BLOCK, 3 * MIB, 4096])
def test_sixteen_race_for_the_last_bytes(container: Container, piece: int) -> None:
    share = container.share(LIMIT)
    with several(container, 16) as clients:
        for client in clients:
            client.send("fill", piece, 100_000)
        answers = [client.read() for client in clients]
        assert {result for result, _ in answers} == {OOM}
        charge = -(-piece // BLOCK) * BLOCK
        assert share.total == share.peak == LIMIT == sum(share.slots())
        if piece >= BLOCK:
            assert sum(count for _, count in answers) == LIMIT // charge


@pytest.mark.parametrize("end", ["kill", "end"])
def test_what_a_process_held_is_free_after_it(container: Container, end: str) -> None:
    share = container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        assert one.alloc(LIMIT) == OK
        assert two.alloc(BLOCK) == OOM
        getattr(one, end)()
        assert two.alloc(LIMIT) == OK
        assert share.total == LIMIT
        assert sorted(share.slots())[-2:] == [0, LIMIT]


def test_memory_info_forgets_the_dead_too(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        assert one.alloc(LIMIT) == OK
        one.kill()
        free = 0
        for _ in range(1_000_000):
            free, _ = two.info()
            if free:
                break
        assert free == LIMIT


def test_a_new_process_takes_the_slot_of_a_dead_one(container: Container) -> None:
    share = container.share(LIMIT)
    for _ in range(5):
        with container.client().start() as app:
            assert app.alloc(LIMIT) == OK
            app.kill()
    assert share.slots()[0] == LIMIT
    assert share.slots()[1:] == [0] * 1023


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_a_forked_child_owns_nothing(container: Container, way: str) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(4 * MIB) == OK
        app.send(way, 4096)
        result, pointer, freed = app.read()
        assert result not in {OK, OOM}, "the driver refuses a forked child; so must we"
        assert pointer == SENTINEL
        assert freed != OK
        assert share.total == 4 * MIB
        assert app.alloc(LIMIT - 4 * MIB) == OK


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_a_child_made_before_the_driver_was_used_has_a_slot_of_its_own(
    container: Container, way: str
) -> None:
    share = container.share(LIMIT)
    with container.client() as app:
        app.send(f"start-in-{way}", 4 * MIB)
        assert app.read() == [OK]
        assert app.start().alloc(6 * MIB) == OK
        assert sorted(share.slots())[-2:] == [4 * MIB, 6 * MIB]
        assert share.total == 10 * MIB


def test_exec_gives_everything_back(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(LIMIT) == OK
        assert app.ask("exec") == [0]
        assert app.start().alloc(LIMIT) == OK
        assert share.total == LIMIT


def test_an_application_that_closes_all_descriptors_keeps_its_slot(container: Container) -> None:
    share = container.share(LIMIT)
    with several(container, 2) as (one, two):
        assert one.alloc(10 * MIB) == OK
        assert one.ask("closefrom") == [0]
        assert two.alloc(LIMIT) == OOM
        assert share.total == 10 * MIB
        assert one.alloc(10 * MIB) == OK
        assert two.alloc(LIMIT - 20 * MIB) == OK


def test_an_application_that_leaves_its_root_keeps_its_limit(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(BLOCK) == OK
        assert app.ask("chdir") == [0]
        assert app.alloc(LIMIT) == OOM
        assert app.ask("free-each", 1) == [OK, 1]
        assert share.total == 0


def test_survivors_and_ledger_agree_after_kills(container: Container) -> None:
    share = container.share(LIMIT)
    with several(container, 6) as clients:
        for client in clients:
            client.send("churn", 30_000, 2 * MIB, 5, 2)
        for client in clients[::2]:
            client.kill()
        for client in clients[1::2]:
            errors, granted, _ = client.read()
            assert errors == 0
            assert granted > 0
        survivor = clients[1]
        assert survivor.alloc(LIMIT) == OK
        assert share.total == sum(share.slots()) == LIMIT


def test_all_slots_taken_by_the_living_is_a_refusal(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app, share.ledger.open("r+b") as ledger:
        hold_slots(ledger.fileno())
        assert app.ask("alloc", BLOCK) == [OOM, SENTINEL]
    with container.client().start() as app:
        assert app.alloc(BLOCK) == OK


def hold_slots(descriptor: int, first: int = 0, end: int = 1024) -> None:
    """Lock the bytes of the slots from `first` to before `end`, as living processes would."""
    what = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0x40000000 + first, end - first, 0)
    fcntl.fcntl(descriptor, F_OFD_SETLK, what)
