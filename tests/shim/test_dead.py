"""The driver frees a killed process's memory a moment after its lock in the ledger is gone."""

from __future__ import annotations

import subprocess

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import BLOCK, MIB, OK, OOM, WAIT_S, Container, Share
from tests.shim.test_storms import Watch

LIMIT = 100 * MIB
MOST = 90 * MIB
ROUNDS = 15
ASKED = 50
FLOAT = 0x20
HEAP = 2
FEW = 10
SLOTS, SLOT = 4096, 64
FIELDS = {"pid": (16, 4), "died": (40, 8)}
"""Offset and size in a slot of the ledger."""


@pytest.fixture
def share(container: Container) -> Share:
    return container.share(LIMIT)


def linger(container: Container, milliseconds: int) -> None:
    FakeDriver(container.state).set_option(None, "dead_ms", str(milliseconds))


def truth(container: Container) -> int:
    return FakeDriver(container.state).used(0)


def test_what_a_killed_process_had_is_granted_when_the_driver_has_freed_it(
    container: Container, share: Share
) -> None:
    linger(container, 40)
    for _ in range(ROUNDS):
        with container.client().start() as killed, container.client().start() as peer:
            assert killed.alloc(MOST) == OK
            # Some before its death, some after it, some while it dies.
            for _ in range(ASKED):
                peer.send("alloc", MOST)
            killed.kill()
            results: list[int] = []
            while OK not in results and len(results) < ASKED:
                results += peer.read()[:1]
            if OK not in results:
                results.append(peer.alloc(MOST))
            assert truth(container) <= LIMIT
            assert OK in results
            peer.kill()
    assert share.peak <= LIMIT


@pytest.mark.parametrize(
    "words", [("alloc", 1), ("vmm-create", 64 * MIB), ("pool-async", 64 * MIB)]
)
def test_other_families_wait_as_well(
    container: Container, share: Share, words: tuple[str, int]
) -> None:
    linger(container, 40)
    with container.client().start() as killed, container.client().start() as peer:
        assert killed.alloc(LIMIT) == OK
        killed.kill()
        assert peer.ask(*words)[0] == OK
        assert truth(container) == share.total == max(BLOCK, words[1])


def test_so_do_arrays(container: Container, share: Share) -> None:
    linger(container, 40)
    with (
        container.client().start() as killed,
        container.client(program="families").start() as peer,
    ):
        assert killed.alloc(LIMIT) == OK
        killed.kill()
        assert peer.ask("array", 0, 0, 16, 16, 0, FLOAT, 4, 0) == [OK, 1]
        assert truth(container) == share.total == BLOCK
    with (
        container.client().start() as killed,
        container.client(program="families").start() as peer,
    ):
        assert killed.alloc(LIMIT) == OK
        killed.kill()
        assert peer.ask("array", 0, 0, 1024, 1024, 4, FLOAT, 4, 0) == [OK, 1]
        assert truth(container) == share.total == 64 * MIB


def test_so_does_a_graph(container: Container, share: Share) -> None:
    linger(container, 40)
    with container.client().start() as killed, container.client().start() as peer:
        assert peer.ask("graph-new", 1) == [OK]
        assert peer.ask("graph-alloc", 1, 60 * MIB, 0)[0] == OK
        assert peer.ask("graph-exec", 1, 0, 0) == [OK]
        assert killed.alloc(MOST) == OK
        killed.kill()
        assert peer.ask("graph-launch", 1, 0) == [OK]
        assert truth(container) == share.total == 64 * MIB


def test_a_heap_and_a_process_that_captures_wait_too(container: Container, share: Share) -> None:
    linger(container, 40)
    with container.client().start() as killed, container.client().start() as peer:
        assert peer.ask("pool-stream", 1) == [OK]
        assert peer.ask("graph-capture", 1, 0, 0) == [OK]
        assert killed.alloc(MOST) == OK
        killed.kill()
        assert peer.ask("code-limit", HEAP, 64 * MIB) == [OK]
        assert truth(container) == 0
        assert share.total == 64 * MIB + BLOCK
        assert peer.ask("graph-captured", 1, 1) == [OK]


def looks_at_processes(container: Container) -> FakeDriver:
    """Let the driver count how often it is asked for its processes: while one waits, every 5 ms."""
    driver = FakeDriver(container.state)
    driver.count("nvmlDeviceGetComputeRunningProcesses")
    return driver


def test_what_would_not_fit_without_the_dead_either_is_refused_at_once(
    container: Container, share: Share
) -> None:
    linger(container, 1_000_000)
    with container.client().start() as killed, container.client().start() as peer:
        assert peer.alloc(60 * MIB) == OK
        assert killed.alloc(20 * MIB) == OK
        killed.kill()
        driver = looks_at_processes(container)
        assert peer.alloc(LIMIT + MIB) == OOM
        assert peer.alloc(42 * MIB) == OOM
        assert driver.counted <= FEW
        assert share.total == truth(container) == 80 * MIB


def test_what_fits_beside_the_dead_does_not_wait_for_them(
    container: Container, share: Share
) -> None:
    linger(container, 1_000_000)
    with container.client().start() as killed, container.client().start() as peer:
        assert peer.ask("pool-threshold", 0, LIMIT) == [OK]
        result, pointer = peer.ask("pool-async", 32 * MIB)
        assert result == OK
        assert killed.alloc(40 * MIB) == OK
        killed.kill()
        driver = looks_at_processes(container)
        assert peer.alloc(20 * MIB) == OK
        assert peer.ask("pool-free", pointer, 0) == [OK]
        assert peer.ask("pool-sync", 0) == [OK]
        assert share.total == 92 * MIB
        assert peer.alloc(40 * MIB) == OK
        assert driver.counted <= FEW
        assert share.total == truth(container) == LIMIT


def test_while_many_are_killed_the_driver_never_holds_more_than_the_limit(
    container: Container, share: Share
) -> None:
    linger(container, 10)
    command = container.command("/run/bin/storm", "100", "4", str(30 * MIB), "3")
    with (
        container.client().start(),  # so that there are accounts to look at
        subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as storm,
    ):
        assert storm.stdout
        with Watch(container, share) as watch:
            kills, errors, _ = map(int, storm.stdout.readline().split())
        assert (kills, errors) == (100, 0)
        storm.communicate(timeout=WAIT_S)
    assert watch.looks > 0
    # A piece below 1 MiB may turn out not to fit: a block for each process, for that call.
    assert watch.most <= LIMIT + 4 * BLOCK


def test_a_process_that_starts_takes_no_slot_of_one_that_lingers(
    container: Container, share: Share
) -> None:
    linger(container, 40)
    with container.client().start() as killed:
        assert killed.alloc(MOST) == OK
        killed.kill()
        with container.client().start() as fresh:
            assert fresh.alloc(MOST) == OK
            assert truth(container) == share.total == MOST


def test_memory_that_the_driver_never_frees_is_waited_for_only_so_long(
    container: Container, share: Share
) -> None:
    linger(container, 1_000_000)
    with container.client().start() as killed, container.client().start() as peer:
        assert killed.alloc(MOST) == OK
        killed.kill()
        assert peer.alloc(MOST) == OK
        assert share.total == MOST
        assert peer.alloc(MOST) == OOM


def change(share: Share, used: int, **fields: int) -> None:
    """Write into the slot that has `used` bytes."""
    at = SLOTS + SLOT * share.slots().index(used)
    with share.ledger.open("r+b") as file:
        for name, value in fields.items():
            offset, size = FIELDS[name]
            file.seek(at + offset)
            file.write(value.to_bytes(size, "little"))


def test_a_pid_that_a_living_process_has_by_now_speaks_of_that_one(
    container: Container, share: Share
) -> None:
    with (
        container.client().start() as killed,
        container.client().start() as other,
        container.client().start() as peer,
    ):
        assert [killed.alloc(MOST), other.alloc(2 * BLOCK)] == [OK, OK]
        killed.kill()
        change(share, MOST, pid=other.process.pid)
        driver = looks_at_processes(container)
        assert peer.alloc(MOST) == OK
        assert driver.counted <= FEW


def test_a_death_in_time_to_come_is_waited_for_no_longer(
    container: Container, share: Share
) -> None:
    linger(container, 1_000_000)
    with container.client().start() as killed, container.client().start() as peer:
        assert killed.alloc(MOST) == OK
        killed.kill()
        change(share, MOST, died=1 << 62)
        assert peer.alloc(MOST) == OK


def test_a_program_that_goes_on_by_exec_does_not_wait_for_itself(
    container: Container, share: Share
) -> None:
    linger(container, 1_000_000)
    with container.client().start() as app:
        assert app.alloc(MOST) == OK
        assert app.ask("exec") == [0]
        app.start()
        assert app.alloc(MOST) == OK
        assert share.total == MOST


def test_of_other_namespaces_nothing_is_known(container: Container, share: Share) -> None:
    linger(container, 1_000_000)
    container.entry = "unshare --pid --fork"
    with container.client().start() as peer:
        container.entry = ""
        with container.client().start() as killed:
            assert killed.alloc(MOST) == OK
            killed.kill()
            assert peer.alloc(MOST) == OK
            assert share.total == MOST
