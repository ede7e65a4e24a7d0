"""Ways that take memory of the card: none gets a share past its limit, by the driver's own word.

The programs hold what they were granted while the driver's nvidia-smi is asked from outside.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import support
from tests.gpu.support import LIMIT, Share
from tests.shim.support import GIB, MIB, OOM

GRANULE = 2 * MIB
# What a way must have been granted before it is refused; a context costs some 500 MiB there.
WAYS = {
    "linear": 3 * GIB // (64 * MIB),
    "tiny": 3 * GIB // (2 * MIB),
    "pitch": 3 * GIB // (512 * MIB),
    "vmm": 3 * GIB // (512 * MIB),
    "own-pool": 0,
    "small-own-pools": 3 * GIB // (32 * MIB),
    "async-small": 3 * GIB // (2 * MIB),
    "pool-keeps": 3 * GIB // (256 * MIB),
    "big-array": 0,
    "arrays": 3 * GIB // (256 * MIB),
    "mipmaps": 3 * GIB // (400 * MIB),
    "retained": 3 * GIB // (64 * MIB),
    "contexts": 1,
    "modules": 3 * GIB // (256 * MIB) - 1,
    "libraries": 3 * GIB // (256 * MIB) - 1,
    "heap": 2,
    "stack": 1,
    "graphs": 3 * GIB // (512 * MIB) - 1,
}

FOLDER = Path(__file__).with_name("images")
IMAGES = ("ptx-size.fatbin", "ptx-speed.fatbin", "cubin-size.fatbin", "cubin-speed.fatbin")
"""By fatbinary 13.5 with --compress-all and these modes, Zstandard and LZ4: a variable of 256 MiB
in PTX for 7.5, and in cubins for 7.5 and 9.0."""


@pytest.fixture(scope="module")
def escape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.compiled("escape", tmp_path_factory.mktemp("programs"))


@pytest.mark.parametrize("way", WAYS)
def test_it_is_refused_at_the_limit(share: Share, escape: Path, way: str) -> None:
    refused_at_the_limit(share, way, str(escape), way)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("way", ["modules", "libraries"])
def test_variables_in_a_compressed_fat_binary_are_too(
    share: Share, escape: Path, way: str, image: str
) -> None:
    refused_at_the_limit(share, way, str(escape), way, str(FOLDER / image))


def refused_at_the_limit(share: Share, way: str, *command: str) -> None:
    """Let it take until it is refused; look from outside at what it then holds."""
    assert support.truth() == 0, "somebody else uses the card"
    with share.holding(*command) as (said, _):
        code, grants = map(int, said.split())
        used, charged = support.truth(), share.total
    print(f"{way}: {grants} grants, NVML {used / MIB:.0f} MiB, ledger {charged / MIB:.0f} MiB")
    assert code == OOM
    assert grants >= WAYS[way]
    assert used <= LIMIT + GRANULE
    # What the ledger says is what the card gave: else the shares of a card would not add up.
    assert charged >= used - GRANULE
    assert charged <= LIMIT


def test_two_that_fill_it_together_are_held_to_it(share: Share, escape: Path) -> None:
    with share.holding(str(escape), "linear"), share.holding(str(escape), "small-own-pools"):
        assert support.truth() <= LIMIT + GRANULE
