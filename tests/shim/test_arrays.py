"""Arrays and mipmapped arrays: charged by what the driver takes, whatever their shape."""

from __future__ import annotations

from typing import Final

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import BLOCK, GIB, INVALID, MIB, NO_CONTEXT, OK, OOM, Client, Container

LIMIT: Final = 64 * MIB
NOT_INITIALIZED: Final = 3

UINT8, HALF, FLOAT, BC1, BC7, NV12 = 0x01, 0x10, 0x20, 0x91, 0x9D, 0xB0
LAYERED, SURFACE, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x02, 0x04, 0x40, 0x80

Shape = tuple[int, int, int, int, int, int]

# Width, height, depth, format, channels, flags; levels; bytes that driver 580.159.04 asks for on an
# H200 (cuArrayGetMemoryRequirements and its sister).
MEASURED: Final[list[tuple[Shape, int, int]]] = [
    ((16, 0, 0, FLOAT, 4, 0), 0, 65_536),
    ((1000, 0, 0, FLOAT, 4, 0), 0, 131_072),
    ((131_072, 0, 0, FLOAT, 4, 0), 0, 16_777_216),
    ((100, 100, 0, FLOAT, 4, 0), 0, 262_144),
    ((500, 500, 0, FLOAT, 4, 0), 0, 4_128_768),
    ((1000, 1000, 0, FLOAT, 4, SURFACE), 0, 16_384_000),
    ((4097, 4097, 0, UINT8, 1, 0), 0, 17_629_184),
    ((3, 5000, 0, FLOAT, 4, 0), 0, 327_680),
    ((5000, 3, 0, FLOAT, 4, 0), 0, 655_360),
    ((32, 32, 32, UINT8, 1, 0), 0, 65_536),
    ((100, 100, 100, FLOAT, 4, 0), 0, 18_677_760),
    ((130, 130, 130, HALF, 2, 0), 0, 11_337_728),
    ((500, 300, 200, FLOAT, 1, 0), 0, 129_499_136),
    ((10, 10, 1000, FLOAT, 4, 0), 0, 3_145_728),
    ((300, 300, 300, FLOAT, 2, SURFACE), 0, 224_788_480),
    ((512, 512, 7, FLOAT, 4, LAYERED), 0, 29_360_128),
    ((1000, 0, 9, FLOAT, 1, LAYERED), 0, 327_680),
    ((100, 100, 100, UINT8, 4, LAYERED), 0, 5_767_168),
    ((300, 300, 12, FLOAT, 4, LAYERED | CUBEMAP), 0, 22_151_168),
    ((1024, 1024, 0, BC1, 4, 0), 0, 524_288),
    ((1000, 1000, 0, BC7, 4, 0), 0, 1_048_576),
    ((2048, 1024, 1024, FLOAT, 4, 0), 0, 34_359_738_368),
    ((1024, 1024, 0, FLOAT, 4, 0), 11, 22_413_312),
    ((1000, 700, 0, UINT8, 4, 0), 5, 4_259_840),
    ((128, 128, 128, FLOAT, 1, 0), 8, 9_633_792),
    ((512, 512, 6, FLOAT, 4, CUBEMAP), 10, 33_619_968),
    ((500, 500, 20, HALF, 4, LAYERED), 9, 55_377_920),
    ((1024, 1024, 0, FLOAT, 4, 0), 40, 22_413_312),
]


def up(size: int, step: int = BLOCK) -> int:
    """Round up."""
    return -(-size // step) * step


def application(container: Container) -> Client:
    """Start an application with a context."""
    return container.client(program="families").start()


@pytest.mark.parametrize(("shape", "levels", "size"), MEASURED)
def test_the_simulated_driver_asks_for_what_the_real_one_does(
    container: Container, shape: Shape, levels: int, size: int
) -> None:
    container.share(LIMIT)
    with application(container) as app:
        deferred = (*shape[:5], shape[5] | DEFERRED)
        assert app.ask("array-needs", 0, levels, *deferred) == [OK, size, 64 << 10]


@pytest.mark.parametrize("asked", [True, False], ids=["as the driver says", "as they lie"])
def test_the_charge_is_what_the_driver_takes(container: Container, *, asked: bool) -> None:
    """Also of a driver before CUDA 11.6, that cannot be asked."""
    share = container.share(12 * GIB)
    driver = FakeDriver(container.state)
    if not asked:
        driver.inject(None, "cuArrayGetMemoryRequirements", 801)
        driver.inject(None, "cuMipmappedArrayGetMemoryRequirements", 801)
    with application(container) as app:
        for shape, levels, size in MEASURED:
            kind = "mip" if levels else "array"
            if size > 12 * GIB:
                assert app.ask("array", 0, 0, *shape) == [OOM, 0]
                continue
            assert app.ask(kind, 0, levels, *shape) == [OK, 1]
            assert share.total == driver.used(0) == up(size)
            assert app.ask(f"{kind}-destroy", 0) == [OK]
            assert share.total == driver.used(0) == 0


def test_a_32_gib_3d_array_does_not_get_around_the_limit(container: Container) -> None:
    """One of the ways by which a peer's limit was passed."""
    share = container.share(4 * GIB)
    with application(container) as app:
        assert app.ask("array", 0, 0, 2048, 1024, 1024, FLOAT, 4, 0) == [OOM, 0]
        assert (share.total, share.denied) == (0, 1)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_every_version_is_held(container: Container, which: int) -> None:
    share = container.share(LIMIT)
    with application(container) as app:
        assert app.ask("array", 0, which, 2048, 2048, 0, FLOAT, 4, 0) == [OK, 1]
        assert share.total == FakeDriver(container.state).used(0) == LIMIT
        assert app.ask("array", 1, which, 16, 16, 0, FLOAT, 4, 0) == [OOM, 0]
        assert app.ask("alloc", 0, 1)[0] == OOM
        assert app.ask("array-destroy", 0) == [OK]
        assert share.total == 0
        assert share.denied == 2


def test_mipmapped_arrays_are_refused_at_the_limit(container: Container) -> None:
    share = container.share(24 * MIB)
    with application(container) as app:
        assert app.ask("mip", 0, 11, 1024, 1024, 0, FLOAT, 4, 0) == [OK, 1]
        assert app.ask("mip", 1, 11, 1024, 1024, 0, FLOAT, 4, 0) == [OOM, 0]
        assert share.total == 22 * MIB
        assert app.ask("mip-destroy", 0) == [OK]
        assert app.ask("mip", 1, 11, 1024, 1024, 0, FLOAT, 4, 0) == [OK, 1]


@pytest.mark.parametrize(
    ("shape", "count", "blocks"),
    [
        ((16, 16, 0, FLOAT, 4, 0), 300, 1),
        ((64, 64, 0, FLOAT, 4, 0), 200, 7),
        ((100, 100, 0, FLOAT, 1, 0), 200, 6),
        ((256, 256, 0, FLOAT, 4, 0), 40, 20),
        ((300, 300, 0, FLOAT, 4, 0), 20, 20),
        ((1000, 0, 0, FLOAT, 4, 0), 200, 13),
        ((384, 384, 0, FLOAT, 4, 0), 10, 20),
    ],
)
def test_small_arrays_share_blocks(
    container: Container, shape: Shape, count: int, blocks: int
) -> None:
    """As many as were measured: what the driver takes, and what is charged."""
    share = container.share(LIMIT)
    with application(container) as app:
        assert app.ask("array-many", 0, count, *shape) == [OK, count]
        assert FakeDriver(container.state).used(0) == share.total == blocks * BLOCK
        assert app.ask("alloc", 0, 4096)[0] == OK
        assert FakeDriver(container.state).used(0) == share.total == (blocks + 1) * BLOCK
        assert app.ask("array-none") == [OK]
        assert share.total == BLOCK


def test_small_arrays_end_at_the_limit(container: Container) -> None:
    share = container.share(4 * BLOCK)
    with application(container) as app:
        assert app.ask("array-many", 0, 4096, 64, 64, 0, FLOAT, 4, 0) == [OOM, 4 * 32]
        assert share.total == FakeDriver(container.state).used(0) == 4 * BLOCK


@pytest.mark.parametrize("flag", [SPARSE, DEFERRED])
def test_what_is_mapped_later_takes_nothing(container: Container, flag: int) -> None:
    share = container.share(BLOCK)
    with application(container) as app:
        assert app.ask("mip", 0, 1, 2048, 2048, 0, FLOAT, 4, flag) == [OK, 1]
        assert app.ask("array", 1, 0, 2048, 2048, 0, FLOAT, 4, flag) == [OK, 1]
        assert share.total == FakeDriver(container.state).used(0) == 0
        assert app.ask("array-destroy", 1) == [OK]


@pytest.mark.parametrize(
    "shape",
    [
        (0, 0, 0, FLOAT, 4, 0),
        (16, 16, 0, FLOAT, 3, 0),
        (16, 16, 0, 0x77, 4, 0),
        (1 << 20, 1 << 20, 0, FLOAT, 4, 0),
        (1000, 1000, 0, FLOAT, 4, CUBEMAP),
    ],
)
def test_what_is_no_array_is_the_drivers_error(container: Container, shape: Shape) -> None:
    share = container.share(BLOCK)
    with application(container) as app:
        assert app.ask("array", 0, 0, *shape) == [INVALID, 0]
        assert (share.total, share.denied) == (0, 0)


def test_null_and_missing_contexts_get_the_drivers_answers(container: Container) -> None:
    container.share(LIMIT)
    with container.client(program="families") as app:
        assert app.ask("array", 0, 0, 16, 16, 0, FLOAT, 4, 0) == [NOT_INITIALIZED, 0]
        app.start()
        assert app.ask("array-null", 0, 0, 16, 16, 0, FLOAT, 4, 0) == [INVALID] * 3
        assert app.ask("ctx-none") == [OK]
        assert app.ask("array", 0, 0, 16, 16, 0, FLOAT, 4, 0) == [NO_CONTEXT, 0]


def test_arrays_go_with_their_context(container: Container) -> None:
    share = container.share(LIMIT)
    with application(container) as app:
        assert app.ask("array", 0, 0, 16, 16, 0, FLOAT, 4, 0) == [OK, 1]
        assert app.ask("ctx-create", 1) == [OK]
        assert app.ask("array", 1, 0, 1024, 1024, 0, FLOAT, 4, 0) == [OK, 1]
        assert app.ask("mip", 1, 2, 16, 16, 0, FLOAT, 4, 0) == [OK, 1]
        assert app.ask("ctx-destroy", 1) == [OK]
        assert share.total == FakeDriver(container.state).used(0) == BLOCK


def test_the_drivers_own_refusal_gives_the_charge_back(container: Container) -> None:
    share = container.share(40 * GIB)
    with application(container) as app:
        assert app.ask("array", 0, 0, 2048, 1024, 1024, FLOAT, 4, 0) == [OOM, 0]
        assert (share.total, share.denied) == (0, 0)


def test_destroying_what_is_not_there_moves_no_charge(container: Container) -> None:
    share = container.share(LIMIT)
    with application(container) as app:
        assert app.ask("array", 0, 0, 1024, 1024, 0, FLOAT, 4, 0) == [OK, 1]
        assert app.ask("array-destroy", 0) == [OK]
        assert app.ask("array-destroy", 0) == [400]
        assert app.ask("mip-destroy", 5) != [OK]
        assert share.total == 0
