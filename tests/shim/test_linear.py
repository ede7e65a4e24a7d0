"""Linear, pitched and managed memory against the limit of one share."""

from __future__ import annotations

import pytest

from tests.shim.support import BLOCK, INVALID, MIB, NO_CONTEXT, OK, OOM, SENTINEL, Container

LIMIT = 64 * MIB


def test_exactly_the_limit_is_granted(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(LIMIT) == OK
        assert share.total == LIMIT
        assert app.ask("alloc", 1) == [OOM, SENTINEL]
        assert share.denied == 1
        assert share.peak == LIMIT


def test_one_byte_more_than_the_limit_is_refused(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("alloc", LIMIT + 1) == [OOM, SENTINEL]
        assert share.total == 0
        assert app.alloc(LIMIT) == OK


@pytest.mark.parametrize("size", [1 << 45, 1 << 62, (1 << 64) - 1, (1 << 64) - BLOCK])
def test_absurd_sizes_are_refused(container: Container, size: int) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("alloc", size) == [OOM, SENTINEL]
        assert app.ask("managed", size) == [OOM, SENTINEL]
        assert app.ask("pitch", size, 4) == [OOM, SENTINEL, SENTINEL]
        assert app.ask("pitch", 4, size) == [OOM, SENTINEL, SENTINEL]
        assert share.total == 0


def test_freed_memory_is_usable_at_once(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        for _ in range(3):
            assert app.ask("fill", 10 * MIB, 100) == [OOM, 6]
            assert app.ask("free-each", 1) == [OK, 6]
            assert share.total == 0


@pytest.mark.parametrize(
    ("size", "charge"),
    [
        (1, BLOCK), (512, BLOCK), (MIB, BLOCK), (MIB + 1, BLOCK), (BLOCK, BLOCK),
        (BLOCK + 1, 2 * BLOCK), (3 * MIB, 4 * MIB), (33 * MIB, 34 * MIB),
    ],
)  # fmt: skip
def test_the_charge_is_what_the_driver_takes(container: Container, size: int, charge: int) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        result, pointer = app.ask("alloc", size)
        assert (result, share.total) == (OK, charge)
        assert app.ask("free", pointer) == [OK]
        assert share.total == 0


def test_small_pieces_share_blocks(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("fill", 4096, 512) == [OK, 512]
        assert share.total == BLOCK
        assert app.ask("fill", 4096, 1) == [OK, 1]
        assert share.total == 2 * BLOCK


def test_half_empty_blocks_stay_charged(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("fill", 4096, 2048) == [OK, 2048]
        assert app.ask("free-each", 2) == [OK, 1024]
        assert share.total == 4 * BLOCK
        assert app.ask("free-each", 1) == [OK, 1024]
        assert share.total == 0


def test_small_pieces_fill_the_last_block(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(LIMIT - BLOCK) == OK
        assert app.ask("fill", 4096, 1000) == [OOM, 512]
        assert share.total == LIMIT


def test_a_limit_between_blocks_is_usable_down_to_the_block(container: Container) -> None:
    share = container.share(LIMIT + MIB)
    with container.client().start() as app:
        assert app.ask("alloc", LIMIT + MIB) == [OOM, SENTINEL]
        assert app.alloc(LIMIT) == OK
        assert app.ask("alloc", 1) == [OOM, SENTINEL]
        assert share.total == LIMIT


def test_pitch_is_charged_by_rows_as_they_lie(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pitch", 4, LIMIT // 512 + 1) == [OOM, SENTINEL, SENTINEL]
        result, pointer, pitch = app.ask("pitch", 4, LIMIT // 512)
        assert (result, pitch, share.total) == (OK, 512, LIMIT)
        assert app.ask("free", pointer) == [OK]
        assert app.ask("pitch", 513, 1000)[0::2] == [OK, 1024]
        assert share.total == BLOCK


def test_pitched_rows_of_4_bytes_do_not_get_around_the_limit(container: Container) -> None:
    """One of the ways by which a peer's limit was passed: 4 MiB asked for, 512 taken."""
    share = container.share(256 * MIB)
    with container.client().start() as app:
        assert app.ask("pitch", 4, 1 << 20) == [OOM, SENTINEL, SENTINEL]
        assert (share.total, share.denied) == (0, 1)


def test_managed_memory_is_charged_in_full(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("managed", LIMIT + 1) == [OOM, SENTINEL]
        result, pointer = app.ask("managed", 33 * MIB)
        assert (result, share.total) == (OK, 34 * MIB)
        assert app.ask("free", pointer) == [OK]
        assert share.total == 0


def test_unknown_and_stale_pointers_are_the_drivers_affair(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        _, pointer = app.ask("alloc", 4 * MIB)
        assert app.ask("free", 0x1234) == [INVALID]
        assert app.ask("free", pointer + 512) == [INVALID]
        assert share.total == 4 * MIB
        assert app.ask("free", pointer) == [OK]
        assert app.ask("free", pointer) == [INVALID]
        assert share.total == 0


def test_null_and_zero_get_the_drivers_answers(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("null") == [OK, OK, OK, INVALID, INVALID, OK]
        assert app.ask("alloc", 0) == [INVALID, SENTINEL]
        assert app.ask("pitch", 0, 5)[0] == INVALID


def test_without_a_context_the_error_is_the_drivers(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client() as app:
        assert app.ask("alloc", 4096)[0] == 3
        assert app.start().ask("set", 1) == [OK]
        assert app.ask("alloc", 4096) == [NO_CONTEXT, SENTINEL]
        assert share.total == 0


def test_the_drivers_refusal_gives_the_charge_back(container: Container) -> None:
    share = container.share(40 << 30)
    with container.client().start() as app:
        assert app.ask("alloc", 20 << 30) == [OOM, SENTINEL]
        assert share.total == 0


def test_errno_and_umask_are_left_alone(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("errno") == [4711, 0o22]


def test_a_hundred_thousand_live_allocations(container: Container) -> None:
    share = container.share(1 << 30)
    with container.client().start() as app:
        assert app.ask("fill", 512, 100_000) == [OK, 100_000]
        assert share.total == -(-100_000 * 512 // BLOCK) * BLOCK
        assert app.ask("free-each", 1) == [OK, 100_000]
        assert share.total == 0


def test_threads_leave_nothing_behind(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        errors, granted, refused = app.ask("churn", 5000, 4 * MIB, 1, 8)
        assert errors == 0
        assert granted > 0
        assert refused > 0
        assert share.total == 0
        assert share.peak <= LIMIT
