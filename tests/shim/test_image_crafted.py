"""Images of code made by hand: what they say counts as far as they are whole, and no further.

Cubins, uncompressed fat binaries and files; test_image.py has what compilers make.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.shim.support import build
from tests.shim.test_image import CORPUS, HEAD, IN_CORPUS, by_file, entry, fatbin, told

CUBIN: Final = CORPUS.joinpath("cubin").read_bytes()
SMALL: Final = (HEAD + ".global .b8 a[1000];").encode()
ALL: Final = (1 << 64) - 1

PROGBITS, SYMTAB, STRTAB, NOTE, NOBITS = 1, 2, 3, 7, 8
WRITE_ALLOC: Final = 3
OBJECT, FUNCTION = 1, 2
MANAGED: Final = 4

Section = tuple[str, int, int, int]
"""Name, type, flags, size."""
Symbol = tuple[int, int, int, int]
"""Type, other, section, size."""


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    build("image")


def cubin(
    *sections: Section,
    symbols: Sequence[Symbol] = (),
    machine: int = 190,
    kind: int = 2,
    entry_size: int = 64,
    more: int = 0,
    symbols_at: int | None = None,
    names_last: bool = False,
) -> bytes:
    """Return a cubin; its section 0 holds the names, 1 the symbols, from 2 on there are `sections`.

    `more` are sections that its head tells of and that are not there.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in sections)
    table = b"".join(struct.pack("<IBBHQQ", 0, t, o, s, 0, z) for t, o, s, z in symbols)
    count = 2 + len(sections)
    at_names = 64 + (len(table) + 64 * count if names_last else 0)
    at_table = 64 + (0 if names_last else len(names))
    at_sections = at_table + len(table)
    rows = [
        header(0, STRTAB, 0, at_names, len(names)),
        header(0, SYMTAB, 0, at_table if symbols_at is None else symbols_at, len(table)),
    ]
    name_at = 1
    for name, sort, flags, size in sections:
        rows.append(header(name_at, sort, flags, 0, size))
        name_at += len(name) + 1
    head = b"\x7fELF" + bytes([kind, 1, 1]).ljust(12, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, at_sections, 0, 64, 0, 0,
                        entry_size, count + more, 0)  # fmt: skip
    parts = [table, b"".join(rows)]
    return head + b"".join([*parts, names] if names_last else [names, *parts])


def header(name: int, sort: int, flags: int, offset: int, size: int) -> bytes:
    """Return a section's header."""
    return struct.pack("<IIQQQQIIQQ", name, sort, flags, 0, offset, size, 0, 0, 0, 0)


VARIABLES: Final = (".nv.global", NOBITS, WRITE_ALLOC, 1000)


@pytest.mark.parametrize(
    ("image", "size"),
    [
        (cubin(VARIABLES), 1000),
        (cubin(VARIABLES, (".nv.global.init", PROGBITS, WRITE_ALLOC, 24)), 1024),
        (cubin(VARIABLES, names_last=True), 1000),
        (cubin((".nv.global.more", NOBITS, WRITE_ALLOC, 1000)), 0),
        (cubin((".nv.global", NOTE, WRITE_ALLOC, 1000)), 0),
        (cubin((".nv.global", NOBITS, 2, 1000)), 0),
        (cubin(VARIABLES, machine=62), 0),
        (cubin(VARIABLES, kind=1), 0),
        (cubin(VARIABLES, entry_size=40), 0),
        (cubin(VARIABLES, more=1), 0),
        (cubin(VARIABLES, *[(".text", NOTE, 0, 0)] * 40), 1000),
        (cubin(VARIABLES, *[(".text", NOTE, 0, 0)] * 40, more=1), 0),
        (cubin(VARIABLES, symbols=[(OBJECT, 0, 2, 8)], symbols_at=1 << 40), 0),
        (cubin(VARIABLES, symbols=[(OBJECT, MANAGED, 2, 600)]), 400),
        (cubin(VARIABLES, symbols=[(OBJECT, 0, 2, 600)]), 1000),
        (cubin(VARIABLES, symbols=[(OBJECT, MANAGED, 7, 600)]), 1000),
        (cubin(VARIABLES, symbols=[(FUNCTION, MANAGED, 2, 600)]), 1000),
        (cubin(VARIABLES, symbols=[(OBJECT, MANAGED, 2, 600)] * 2), 0),
        (cubin(*[VARIABLES] * 6), 4000),
        (cubin(*[(".nv.global", NOBITS, WRITE_ALLOC, 1 << 63)] * 2), ALL),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_cubins(tmp_path: Path, image: bytes, size: int) -> None:
    assert told(tmp_path, image) == (size,) * 3


def test_a_cubin_ends_with_its_entry(tmp_path: Path) -> None:
    assert told(tmp_path, fatbin(entry(2, CUBIN[:2000]), CUBIN[2000:])) == (0, 0, 0)


def with_head(image: bytes, *, header_size: int = 16, size: int | None = None) -> bytes:
    """Return a fat binary with another head."""
    body = image[16:]
    length = len(body) if size is None else size
    return struct.pack("<IHHQ", 0xBA55ED50, 1, header_size, length) + body


def entry_head(kind: int, header_size: int, size: int) -> bytes:
    return struct.pack("<HHIQ", kind, 0x101, header_size, size).ljust(64, b"\0")


def several(code: bytes, *ones: tuple[int, int]) -> bytes:
    """Return an entry of several cubins, given by offset and size in `code`."""
    table = b"".join(struct.pack("<HHII", 2, 1, *one).ljust(64, b"\0") for one in ones)
    front = struct.pack("<II", len(ones), len(table)) + table
    return entry_head(0x100, 64 + len(front), len(code)) + front + code


@pytest.mark.parametrize(
    ("image", "size"),
    [
        (with_head(fatbin(entry(1, SMALL))), 1000),
        (with_head(fatbin(entry(1, SMALL)), header_size=24), 0),
        (with_head(fatbin(entry(1, SMALL)), size=0), 0),
        (with_head(fatbin(entry(1, SMALL), entry(2, CUBIN)), size=64 + len(SMALL)), 1000),
        (with_head(fatbin(entry(1, SMALL), entry(2, CUBIN)), size=64 + len(SMALL) + 100), 1000),
        (fatbin(entry_head(1, 0, 64), entry(1, SMALL)), 0),
        (with_head(fatbin(entry_head(2, 128, len(CUBIN)), bytes(64), CUBIN), size=64), 0),
        (fatbin(entry_head(1, 72, len(SMALL)), bytes(8), SMALL, entry(2, CUBIN)), IN_CORPUS),
        (fatbin(entry_head(1, 72, len(SMALL)), bytes(8), SMALL), 1000),
        (fatbin(*[entry(1, b"")] * 1023, entry(1, SMALL)), 1000),
        (fatbin(*[entry(1, b"")] * 1024, entry(1, SMALL)), 0),
        (fatbin(several(CUBIN, (0, len(CUBIN)))), IN_CORPUS),
        (fatbin(several(bytes(64) + CUBIN, (64, len(CUBIN)))), IN_CORPUS),
        (fatbin(several(bytes(64), (65, len(CUBIN))), b"\0", CUBIN), 0),
        (fatbin(several(CUBIN[:2000], (0, len(CUBIN))), CUBIN[2000:]), 0),
        (fatbin(several(CUBIN, *[(0, 0)] * 1023, (0, len(CUBIN)))), IN_CORPUS),
        (fatbin(several(CUBIN, *[(0, 0)] * 1024, (0, len(CUBIN)))), 0),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_fat_binaries(tmp_path: Path, image: bytes, size: int) -> None:
    assert told(tmp_path, image) == (size,) * 3


def test_what_is_no_file_of_code(tmp_path: Path) -> None:
    """Also what would never end, or be too much."""
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(CUBIN)
    assert by_file(large) == IN_CORPUS
    os.truncate(large, (1 << 30) + 1)
    assert [by_file(path) for path in (pipe, large, tmp_path, tmp_path / "none")] == [0] * 4
