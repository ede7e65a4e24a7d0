"""Stream-ordered pools: charged with what they have reserved, and held to the share."""

from __future__ import annotations

import time

import pytest

from tests.fakes.fakegpu import RECHECK_S
from tests.shim.support import (
    BLOCK,
    GIB,
    INVALID,
    MIB,
    OK,
    OOM,
    SENTINEL,
    Container,
    gpus_conf,
    uuid,
)  # fmt: skip

CHUNK = 32 * MIB
LIMIT = 8 * CHUNK
RESERVED, USED = 5, 7
HOST, HOST_NUMA, DEVICE, PINNED, MANAGED = 2, 3, 1, 1, 2
KEEP_ALL = (1 << 64) - 1


@pytest.mark.parametrize("variant", ["", "-ptsz"])
@pytest.mark.parametrize(
    ("size", "charge"),
    [(4, CHUNK), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK), (100 * MIB, 4 * CHUNK), (LIMIT, LIMIT)],
)
def test_a_pool_is_charged_by_what_it_takes(
    container: Container, size: int, charge: int, variant: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        result, pointer = app.ask(f"pool-async{variant}", size, 0)
        assert (result, share.total) == (OK, charge)
        assert app.ask("pool-attribute", 0, RESERVED) == [OK, charge]
        assert app.ask(f"pool-free{variant}", pointer, 0) == [OK]
        assert share.total == charge
        assert app.ask(f"pool-sync{variant}", 0) == [OK]
        assert share.total == 0


@pytest.mark.parametrize("size", [LIMIT + 1, GIB, 1 << 45, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("variant", ["", "-ptsz"])
def test_over_the_limit_is_refused_untouched(container: Container, size: int, variant: str) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new", 1, 0) == [OK]
        for command in (f"pool-async{variant}", f"pool-from{variant}"):
            assert app.ask(command, size, 0, 1) == [OOM, SENTINEL]
        assert (share.total, share.denied) == (0, 2)


def test_the_last_chunk_is_granted_and_no_more(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-fill", 20 * MIB, 100) == [OOM, LIMIT // (20 * MIB)]
        assert share.total == LIMIT
        assert share.peak == LIMIT
        assert app.alloc(1) == OOM


def test_small_pieces_share_a_chunk(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-fill", 4096, 8192) == [OK, 8192]
        assert share.total == CHUNK
        assert app.ask("pool-fill", 1, 1) == [OK, 1]
        assert share.total == 2 * CHUNK


@pytest.mark.parametrize("how", ["pool-sync", "pool-sync-context", "pool-sync-event"])
def test_freed_memory_is_another_process_s_after_synchronising(
    container: Container, how: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        _, pointer = one.ask("pool-async", LIMIT, 0)
        assert one.ask("pool-free", pointer, 0) == [OK]
        assert two.alloc(BLOCK) == OOM
        assert one.ask(how, 0) == [OK]
        assert share.total == 0
        assert two.alloc(LIMIT) == OK


def test_what_a_pool_keeps_stays_charged(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app, container.client().start() as other:
        assert app.ask("pool-threshold", 0, KEEP_ALL) == [OK]
        _, pointer = app.ask("pool-async", 100 * MIB, 0)
        assert app.ask("pool-free", pointer, 0) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 4 * CHUNK
        assert other.alloc(LIMIT) == OOM
        assert app.info() == (LIMIT - 4 * CHUNK, LIMIT)
        assert app.ask("pool-trim", 0, CHUNK) == [OK]
        assert share.total == CHUNK


@pytest.mark.parametrize("command", ["alloc", "managed", "pool-async", "vmm-create"])
def test_idle_pools_make_room_before_anything_is_refused(
    container: Container, command: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        for pool in (1, 2):
            assert app.ask("pool-new", pool, 0) == [OK]
            assert app.ask("pool-threshold", pool, KEEP_ALL) == [OK]
            _, pointer = app.ask("pool-from", 100 * MIB, 0, pool)
            assert app.ask("pool-free", pointer, 0) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == LIMIT
        assert app.ask(command, 200 * MIB, 0)[0] == OK
        assert share.total == 200 * MIB if command != "pool-async" else 7 * CHUNK
        assert app.ask("alloc", 100 * MIB) == [OOM, SENTINEL]


def test_memory_freed_in_stream_order_is_used_again(container: Container) -> None:
    """Also when the pool must give it back first, for one of another size."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        for size in (200 * MIB, 220 * MIB, 256 * MIB, 10 * MIB):
            result, pointer = app.ask("pool-async", size, 0)
            assert result == OK
            assert app.ask("pool-free", pointer, 0) == [OK]
        assert app.ask("pool-churn", 200 * MIB, 50) == [OK, 50]
        assert share.total <= LIMIT


def test_hc93_from_an_own_pool(container: Container) -> None:
    """Project-HAMi/HAMi-core#93: uncharged, and its release failed before it came to the driver."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new", 1, 0) == [OK]
        assert app.ask("pool-from", LIMIT + 1, 0, 1) == [OOM, SENTINEL]
        result, pointer = app.ask("pool-from", LIMIT, 0, 1)
        assert (result, share.total) == (OK, LIMIT)
        assert app.ask("pool-from", 1, 0, 1) == [OOM, SENTINEL]
        assert app.ask("pool-free", pointer, 0) == [OK]
        assert app.ask("pool-attribute", 1, USED) == [OK, 0]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 0


def fault(container: Container, text: str) -> None:
    """Change the simulated driver's faults for good."""
    conf = gpus_conf(fault=text) if text else gpus_conf()
    (container.state / "gpus.conf").write_text(conf)
    time.sleep(RECHECK_S)


def test_hc306_a_pool_that_does_not_say_leaks_nothing(container: Container) -> None:
    """Project-HAMi/HAMi-core#306: an error after the driver's allocation lost the allocation."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        fault(container, "cuMemPoolGetAttribute:999")
        result, pointer = app.ask("pool-async", 100 * MIB, 0)
        assert (result, share.total) == (OK, 4 * CHUNK)
        assert app.ask("pool-async", 200 * MIB, 0) == [OOM, SENTINEL]
        assert app.ask("pool-free", pointer, 0) == [OK]
        fault(container, "")
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 0
        assert app.ask("pool-attribute", 0, RESERVED) == [OK, 0]


def test_cudajl1670_trim_then_allocate_again(container: Container) -> None:
    """JuliaGPU/CUDA.jl#1670: the driver's pools ignored the application's limit."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-threshold", 0, KEEP_ALL) == [OK]
        for _ in range(3):
            result, pointer = app.ask("pool-async", LIMIT, 0)
            assert result == OK
            assert app.ask("pool-attribute", 0, RESERVED) == [OK, LIMIT]
            assert app.ask("pool-free", pointer, 0) == [OK]
            assert app.ask("pool-sync", 0) == [OK]
            assert app.ask("pool-trim", 0, 0) == [OK]
            assert app.ask("pool-attribute", 0, RESERVED) == [OK, 0]
            assert share.total == 0


def test_a_driver_that_has_too_little_leaves_no_charge(container: Container) -> None:
    share = container.share(40 * GIB)
    with container.client().start() as app:
        assert app.ask("pool-async", 20 * GIB, 0) == [OOM, SENTINEL]
        assert app.ask("pool-trim", 0, 0) == [OK]
        assert share.total == 0
        assert share.denied == 0


def test_a_destroyed_pool_is_charged_until_its_memory_is_freed(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new", 1, 0) == [OK]
        assert app.ask("pool-set", 1, 0) == [OK]
        _, pointer = app.ask("pool-async", 100 * MIB, 0)
        _, last = app.ask("pool-async", 4, 0)
        assert app.ask("pool-end", 1) == [OK]
        assert share.total == 4 * CHUNK
        for command in ("pool-end", "pool-trim", "pool-threshold"):
            if command != "pool-threshold":
                assert app.ask(command, 1, 0) == [INVALID]
        assert app.ask("pool-from", 4, 0, 1) == [INVALID, SENTINEL]
        assert app.ask("pool-free", pointer, 0) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == CHUNK
        result, other = app.ask("pool-async", 4, 0)
        assert (result, share.total) == (OK, 2 * CHUNK)
        for address in (last, other):
            assert app.ask("pool-free", address, 0) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 0


def test_an_idle_pool_is_destroyed_with_its_charge(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        for _ in range(3):
            assert app.ask("pool-new", 1, 0) == [OK]
            assert app.ask("pool-threshold", 1, KEEP_ALL) == [OK]
            _, pointer = app.ask("pool-from", LIMIT, 0, 1)
            assert app.ask("pool-free", pointer, 0) == [OK]
            assert share.total == LIMIT
            assert app.ask("pool-end", 1) == [OK]
            assert share.total == 0
        assert app.ask("pool-end", 0) == [INVALID]


def test_a_pool_s_memory_freed_at_once(container: Container) -> None:
    """By cuMemFree, of which the pool's attribute of use never hears."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        for _ in range(20):
            result, pointer = app.ask("pool-async", 100 * MIB, 0)
            assert result == OK
            assert app.ask("free", pointer) == [OK]
            assert share.total == 0
        assert app.ask("free", pointer) == [INVALID]
        assert app.ask("pool-threshold", 0, KEEP_ALL) == [OK]
        for _ in range(20):
            result, pointer = app.ask("pool-async", 200 * MIB, 0)
            assert (result, share.total) == (OK, 7 * CHUNK)
            assert app.ask("free", pointer) == [OK]
        assert app.ask("pool-trim", 0, 0) == [OK]
        assert share.total == 0


def test_linear_memory_freed_in_stream_order(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        for size in (100 * MIB, 512):
            ends: list[tuple[str, int]]
            ends = [("pool-sync", 1), ("pool-sync-context", 0), ("alloc", LIMIT)]
            for end in ends:
                result, pointer = app.ask("alloc", size)
                assert result == OK
                assert app.ask("pool-free", pointer, 1) == [OK]
                assert share.total == max(size, BLOCK)
                assert app.ask("pool-free", pointer, 1) == [INVALID]
                answer = app.ask(*end)
                assert answer[0] == OK
                if end[0] == "alloc":
                    assert app.ask("free", answer[1]) == [OK]
                assert share.total == 0
        _, pointer = app.ask("alloc", LIMIT)
        assert app.ask("pool-free", pointer, 1) == [OK]
        assert app.ask("pool-stream-end", 1) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 0
        _, pointer = app.ask("alloc", LIMIT)
        assert app.ask("pool-free-ptsz", pointer, 0) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == 0


def test_managed_memory_cannot_be_freed_in_stream_order(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        _, pointer = app.ask("managed", 4 * MIB)
        assert app.ask("pool-free", pointer, 0) == [801]
        assert share.total == 4 * MIB
        assert app.ask("free", pointer) == [OK]
        assert share.total == 0


def test_pools_on_the_host_are_not_charged(container: Container) -> None:
    share = container.share(BLOCK)
    with container.client().start() as app:
        for number, place in enumerate((HOST, HOST_NUMA), 1):
            assert app.ask("pool-new-at", number, place, PINNED, 0) == [OK]
            assert app.ask("pool-from", LIMIT, 0, number)[0] == OK
            assert app.ask("pool-place", number + 10, place, PINNED) == [OK]
            assert app.ask("pool-from", LIMIT, 0, number + 10)[0] == OK
        assert share.total == 0


def test_managed_pools_are_charged_in_full(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new-at", 1, DEVICE, MANAGED, 0) == [OK]
        assert app.ask("pool-from", LIMIT + 1, 0, 1) == [OOM, SENTINEL]
        assert app.ask("pool-from", CHUNK, 0, 1)[0] == OK
        assert share.total == CHUNK
        assert app.ask("pool-place", 2, HOST, MANAGED) == [OK]
        assert app.ask("pool-from", CHUNK, 0, 2)[0] == OK
        assert share.total == 2 * CHUNK


def test_the_current_pool_may_be_set_in_two_ways(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        for number, command in (
            (1, ("pool-set", 1, 0)),
            (2, ("pool-place-set", 2, DEVICE, PINNED)),
        ):
            assert app.ask("pool-new", number, 0) == [OK]
            assert app.ask("pool-async", 4, 0)[0] == OK
            assert app.ask(*command) == [OK]
            assert app.ask("pool-async", 4, 0)[0] == OK
            assert app.ask("pool-attribute", number, RESERVED) == [OK, CHUNK]
            assert app.ask("pool-place-current", 5, DEVICE, PINNED) == [OK]
            assert app.ask("pool-from", 4, 0, 5)[0] == OK
        assert share.total == 3 * CHUNK


def test_an_imported_pool_is_its_exporter_s(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-new", 1, 0) == [OK]
        assert app.ask("pool-from", 4, 0, 1)[0] == OK
        assert app.ask("pool-import", 1, 2) == [OK]
        assert app.ask("pool-from", 4, 0, 2) == [INVALID, SENTINEL]
        assert app.ask("pool-trim", 2, 0) == [INVALID]
        assert app.ask("pool-end", 2) == [OK]
        assert share.total == CHUNK


def test_a_device_without_a_share_gets_nothing(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("start", 1) == [OOM]
        assert app.ask("pool-new", 1, 1) == [OK]
        assert app.ask("pool-from", 4, 0, 1) == [OOM, SENTINEL]
        assert app.ask("pool-new", 2, 0) == [OK]
        assert app.ask("pool-from", 4, 0, 2)[0] == OK


def test_each_device_has_its_own_pool(container: Container) -> None:
    shares = [container.share(LIMIT), container.share(LIMIT, gpu=uuid(1))]
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("retain", 1) == [OK]
        assert app.ask("set", 0) == [OK]
        assert app.ask("pool-async", 4, 0)[0] == OK
        assert [share.total for share in shares] == [0, CHUNK]
        assert app.ask("pool-async", 40 * MIB, 1)[0] == OK
        assert [share.total for share in shares] == [2 * CHUNK, CHUNK]


def test_null_and_zero_get_the_driver_s_answers(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client() as app:
        assert app.ask("pool-async", 4, 0) == [3, SENTINEL]
        app.start()
        assert app.ask("pool-async", 0, 0) == [OK, 0]
        assert app.ask("pool-free", 0, 0) == [OK]
        assert app.ask("pool-free", 4096, 0) == [INVALID]
        assert share.total == 0


def test_a_thousand_pools_and_not_one_more(container: Container) -> None:
    share = container.share(2048 * CHUNK)
    with container.client().start() as app:
        assert app.ask("pool-async", 4, 0)[0] == OK
        for number in range(1, 1024):
            assert app.ask("pool-new", number, 0) == [OK]
        assert app.ask("pool-new", 1024, 0) == [OOM]
        assert app.ask("pool-end", 700) == [OK]
        assert app.ask("pool-new", 1024, 0) == [OK]
        assert app.ask("pool-from", 4, 0, 1024)[0] == OK
        assert share.total == 2 * CHUNK


def test_a_killed_process_leaves_no_charge(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        assert one.ask("pool-async", LIMIT, 0)[0] == OK
        assert two.ask("pool-async", 4, 0) == [OOM, SENTINEL]
        one.kill()
        assert two.ask("pool-async", LIMIT, 0)[0] == OK
