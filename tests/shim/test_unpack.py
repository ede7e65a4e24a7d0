"""What compressors packed is unpacked; what is damaged is refused, and nothing else is touched."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.shim.support import PROGRAMS, build

KINDS = ["zstd", "lz4"]


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    build("unpack")


def zstd(data: bytes, level: int) -> bytes:
    """Return one frame."""
    return run(["zstd", "--quiet", "--stdout", f"-{level}"], data).stdout


def lz4(data: bytes, level: int) -> bytes:
    """Return the only block of a frame: fat binaries have no frame around it."""
    frame = run(["lz4", "-q", "-c", "-B7", "--no-frame-crc", f"-{min(level, 12)}"], data).stdout
    (size,) = struct.unpack_from("<I", frame, 7)
    assert size < 1 << 31, "it could not be compressed"
    return frame[11 : 11 + size]


def run(command: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)


def unpack(kind: str, packed: bytes, size: int) -> bytes | None:
    """Return the bytes; None: refused."""
    done = run([str(PROGRAMS / "unpack"), kind, str(size)], packed)
    # A sanitizer's status for what it found is 1, too, but it says so.
    assert done.returncode in {0, 1}
    assert done.stderr.decode() == ""
    return done.stdout if done.returncode == 0 else None


def tries(kind: str, packed: bytes, size: int, *how: str) -> None:
    """Let the program try many variants, see there."""
    done = run([str(PROGRAMS / "unpack"), kind, str(size), *how], packed)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", "")


def packed(kind: str, data: bytes, level: int) -> bytes:
    return zstd(data, level) if kind == "zstd" else lz4(data, level)


def seeded(number: int) -> random.Random:
    """Return chance that is the same every time."""
    return random.Random(number)  # noqa: S311 - no secret


def words(count: int, vocabulary: int, seed: int) -> bytes:
    """Return text in which words come again, near and far, some of them often."""
    chance = seeded(seed)
    known = [chance.randbytes(chance.randint(1, 30)).hex().encode() for _ in range(vocabulary)]
    return b" ".join(known[int(vocabulary * chance.random() ** 3)] for _ in range(count))


def letters() -> bytes:
    """Return letters of unlike frequency, without words."""
    weights = [1 / (n + 1) for n in range(200)]
    return bytes(seeded(1).choices(range(200), weights, k=400_000))


def with_noise() -> bytes:
    return words(9_000, 99, 4) + seeded(1).randbytes(200_000) + words(9_000, 99, 4)


INPUTS: dict[str, Callable[[], bytes]] = {
    "one byte again and again": lambda: b"a" * 300_000,
    "a short text": lambda: b"a short text, a short text",
    "letters": letters,
    "words": partial(words, 20_000, 300, 2),
    "many words": partial(words, 20_000, 9_000, 3),
    "a program": (PROGRAMS / "unpack").read_bytes,
    "text, noise, text": with_noise,
    "steps": lambda: b"".join(struct.pack("<I", n * n // 9999) for n in range(60_000)),
}


# LZ4 has no code for letters, and leaves such a block as it is.
@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k in KINDS for n in INPUTS if (k, n) != ("lz4", "letters")]
)
def test_what_was_packed(kind: str, name: str) -> None:
    data = INPUTS[name]()
    for level in (1, 3, 9, 19):
        made = packed(kind, data, level)
        assert unpack(kind, made, len(data)) == data, level
        assert unpack(kind, made, len(data) - 1) is None
        assert unpack(kind, made, len(data) + 1) is None
        assert unpack(kind, made[: len(made) // 2], len(data)) is None


def test_what_zstd_does_not_compress() -> None:
    noise = seeded(5).randbytes(200_000)
    assert unpack("zstd", zstd(noise, 3), len(noise)) == noise
    assert unpack("zstd", zstd(b"", 3), 0) == b""
    for header in (["--no-check"], ["--no-content-size"], ["--ultra", "-22"]):
        made = run(["zstd", "--quiet", "--stdout", *header], noise[:1000] * 9).stdout
        assert unpack("zstd", made, 9000) == noise[:1000] * 9


def small(kind: str) -> list[tuple[bytes, bytes]]:
    """Return some data, and what it was packed to; of Zstandard without a checksum behind it."""
    found = []
    inputs = [words(300, 40, 6), b"ab" * 500, seeded(9).randbytes(200) * 3]
    if kind == "zstd":
        inputs.append(letters()[:900])
    for data in inputs:
        for level in (1, 19):
            made = packed(kind, data, level)
            if kind == "zstd":
                command = ["zstd", "--quiet", "--stdout", "--no-check", f"-{level}"]
                made = run(command, data).stdout
            assert unpack(kind, made, len(data)) == data
            found.append((data, made))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged(kind: str) -> None:
    for data, made in small(kind):
        tries(kind, made, len(data), "beginnings")
        tries(kind, made, len(data), "damaged")
    assert unpack(kind, b"", 9) is None


def test_a_block_that_ends_early() -> None:
    for data, made in small("zstd"):
        single, sizes = made[4] & 0x20, (0, 2, 4, 8)
        at = 5 + (0 if single else 1) + (sizes[made[4] >> 6] or int(single > 0))
        if made[at] >> 1 & 3 == 2:  # it is compressed
            tries("zstd", made, len(data), "cut", str(at))


def test_a_dictionary_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "dictionary").write_bytes(words(3_000, 200, 8))
    data = words(500, 200, 8)
    made = run(["zstd", "-q", "-c", "-D", str(tmp_path / "dictionary")], data).stdout
    assert unpack("zstd", made, len(data)) is None
