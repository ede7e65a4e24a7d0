"""What images of code say about the memory that their variables take, before they are loaded."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from tests.shim.support import PROGRAMS, REPO, build

CORPUS = REPO / "tests" / "shim" / "fuzz" / "corpus" / "image"
HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"
IN_CORPUS = (6 << 20) + (2 << 20) + 12
"""cubin and ptx there: v, w and ini; the managed variables m and mi left out. By ptxas 12.9."""

FUNCTION = """.entry k(.param .u64 .ptr .global .align 4 p) {
.reg .u64 a;
ld.global.u32 x, [a];
L1:
.global .b8 inner[3];
cvta.to.global.u64 a, a;
ret;
}
.global .b8 behind[4];"""


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    build("image")


def told(tmp_path: Path, image: bytes, arch: int = 0) -> tuple[int, int, int]:
    """Return bytes by a file, by memory, and by a wrapper that leads there; 75 is `arch` 7.5."""
    file = tmp_path / "image"
    file.write_bytes(image)
    done = subprocess.run(
        [PROGRAMS / "image", str(arch), file],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    by_file, by_memory, by_wrapper = map(int, done.stdout.split())
    return by_file, by_memory, by_wrapper


def by_file(path: Path) -> int:
    """Return the bytes by a path."""
    done = subprocess.run(
        [PROGRAMS / "image", path], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (".global .b8 a[1000];", 1000),
        (".visible .global .align 16 .f32 a[4][8];", 128),
        (".weak .global .align 8 .v2 .u64 a[3];", 48),
        (".common .global .u16 a;", 2),
        (".global .b8 a[0x100];\n.global .b8 b[010];", 264),
        (".global .u32 a, b[2], c;", 16),
        (".global .align 4 .u32 a[3] = {1, 2, 3};.global .u8 b;", 13),
        (".global .u64 a[] = {b, generic(c)};", 0),
        (".global .u32 a[2] = {1, 2}, b[3];", 20),
        (".extern .global .b8 a[1000];", 0),
        (".visible .global .attribute(.managed) .b8 a[1000];", 0),
        (".global .texref t;\n.global .samplerref s;\n.global .b8 a[7];", 7),
        ("// .global .b8 a[1000];\n/* .global .b8 b[10]; */ .global .b8 c[5];", 5),
        ('.file 1 "a; .global .b8 a[9];.cu"\n.global .b8 c[5];', 5),
        (".const .b8 a[1000];\n.shared .b8 b[1000];", 0),
        (FUNCTION, 7),
        (".entry k(.param .u64 .ptr\n.global .align 4 p) { ret; }", 0),
        (f".global .b8 a[{1 << 63}][4];", (1 << 64) - 1),
        (f".global .b8 a[{1 << 63}];.global .b8 b[{1 << 63}];", (1 << 64) - 1),
        (f".global .b8 a[{10**30}];", (1 << 64) - 1),
        ("L1: .global .b8 a[3];", 3),
        (".entry k() { ret; } .global .b8 a[4];", 4),
        (".global .v8 .b32 a;\n.global .b128 b;", 48),
        ("/*/ .global .b8 a[9]; */ .global .b8 b[5];", 5),
        (".global .b8 a[8] = {1", 8),
        (".global .b8 a[1000]", 0),
        (".global .b8 a[", 0),
    ],
)  # fmt: skip
def test_ptx(tmp_path: Path, text: str, size: int) -> None:
    assert told(tmp_path, (HEAD + text).encode()) == (size, size, size)


def test_what_is_no_ptx_says_nothing(tmp_path: Path) -> None:
    for text in (
        "",
        "\n",
        "x",
        ".global .b8 a[9];",
        "BC\xc0\xde",
        "\x7fELF",
        "\x7fELF" + "\xff" * 99,
    ):
        assert told(tmp_path, text.encode("latin-1")) == (0, 0, 0)


def test_what_the_compiler_made_says_it(tmp_path: Path) -> None:
    for name in ("cubin", "ptx"):
        image = CORPUS.joinpath(name).read_bytes()
        assert told(tmp_path, image) == (IN_CORPUS,) * 3


def test_a_cubin_that_is_cut_off_says_nothing(tmp_path: Path) -> None:
    image = CORPUS.joinpath("cubin").read_bytes()
    assert told(tmp_path, image[:2000]) == (0, 0, 0)


def entry(kind: int, code: bytes, flags: int = 0, arch: int = 0) -> bytes:
    """Return an entry of a fat binary."""
    return struct.pack("<HHIQ12xI8xQ16x", kind, 0x101, 64, len(code), arch, flags) + code


def fatbin(*entries: bytes) -> bytes:
    """Return a fat binary."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_fat_binaries(tmp_path: Path) -> None:
    cubin = CORPUS.joinpath("cubin").read_bytes()
    small = (HEAD + ".global .b8 a[1000];").encode()
    assert told(tmp_path, fatbin(entry(2, cubin))) == (IN_CORPUS,) * 3
    assert told(tmp_path, fatbin(entry(1, small), entry(2, cubin))) == (IN_CORPUS,) * 3
    assert told(tmp_path, fatbin(entry(1, small), entry(2, cubin, 0x1000))) == (1000,) * 3
    assert told(tmp_path, fatbin(entry(1, small), entry(8, cubin))) == (1000,) * 3
    assert told(tmp_path, fatbin()) == (0, 0, 0)
    assert told(tmp_path, fatbin(entry(2, cubin))[:100]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "size"), [(75, IN_CORPUS), (72, 0), (80, 1000), (86, 1000), (90, 1000), (0, IN_CORPUS)]
)
def test_only_what_the_gpu_may_be_given_counts(tmp_path: Path, arch: int, size: int) -> None:
    cubin = CORPUS.joinpath("cubin").read_bytes()
    small = (HEAD + ".global .b8 a[1000];").encode()
    image = fatbin(entry(2, cubin, arch=75), entry(1, small, arch=80))
    assert told(tmp_path, image, arch) == (size,) * 3


PACKED = ["fatbin-zstd", "fatbin-lz4", "fatbin-several-zstd", "fatbin-several-lz4"]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("arch", "more"), [(75, 0), (80, 4 << 20), (89, 4 << 20), (0, 4 << 20)])
def test_what_is_compressed_says_it_too(tmp_path: Path, name: str, arch: int, more: int) -> None:
    """By fatbinary 13.5: cubins of sm_75 and, with 4 MiB more, of sm_80; in two PTX for 7.5."""
    image = CORPUS.joinpath(name).read_bytes()
    assert told(tmp_path, image, arch) == (IN_CORPUS + more,) * 3


def test_for_a_newer_gpu_there_is_only_the_ptx(tmp_path: Path) -> None:
    sizes = [told(tmp_path, CORPUS.joinpath(name).read_bytes(), 90)[0] for name in PACKED]
    assert sizes == [IN_CORPUS, IN_CORPUS, 0, 0]


@pytest.mark.parametrize("name", PACKED)
def test_a_compressed_one_that_is_damaged_says_nothing(tmp_path: Path, name: str) -> None:
    image = CORPUS.joinpath(name).read_bytes()
    cut = image[: len(image) // 4]
    assert told(tmp_path, cut, 75) == (0, 0, 0)
