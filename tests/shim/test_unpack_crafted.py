"""Frames of Zstandard and blocks of LZ4 as no compressor makes them: most of them must be refused.

They are made by hand, from RFC 8878, so that each of the unpackers' own checks has one.
"""

from __future__ import annotations

import struct

import pytest

from tests.shim.support import build
from tests.shim.test_unpack import unpack


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    build("unpack")


def bits(*fields: tuple[int, int]) -> bytes:
    """Return a stream that is read from its end: (value, bits) in that order."""
    text = "1" + "".join(f"{value:0{count}b}" for value, count in fields if count)
    return int(text, 2).to_bytes((len(text) + 7) // 8, "little")


def frame(*blocks: bytes, size: int = 0, flags: int = 0x20) -> bytes:
    """Return a frame of blocks, whose header says `size`, below 256."""
    return struct.pack("<IBB", 0xFD2FB528, flags, size) + b"".join(blocks)


def block(content: bytes, *, kind: int, last: bool = True, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return (int(last) | kind << 1 | length << 3).to_bytes(3, "little") + content


RAW, REPEATED, COMPRESSED, RESERVED = range(4)
AGAIN = 3
ONE_CODE, AS_BEFORE, DESCRIBED = 0x54, 0xFC, 0x94  # how a block's three tables are given


def literal(text: bytes) -> bytes:
    return bytes([len(text) << 3]) + text


def sequence(literals: int, offset: tuple[int, int], matched: int = 0) -> bytes:
    """Return one: codes of its lengths, offset as (code, what is added)."""
    code, more = offset
    return bytes([1, ONE_CODE, literals, code, matched]) + bits((more, code))


def made_of(*parts: bytes) -> bytes | None:
    """Return what a compressed block makes of 8 bytes that precede it, and 6 more."""
    before = block(b"01234567", kind=RAW, last=False)
    return unpack("zstd", frame(before, block(b"".join(parts), kind=COMPRESSED)), 14)


def tree(*weights: int) -> bytes:
    """Return a description of up to 128 weights, four bits each."""
    even = [*weights, 0]
    pairs = [even[i] << 4 | even[i + 1] for i in range(0, len(weights), 2)]
    return bytes([127 + len(weights), *pairs])


def packed_tree(table: bytes, stream: bytes) -> bytes:
    """Return a description of weights by two states of a table."""
    return bytes([len(table) + len(stream)]) + table + stream


def four(*streams: str) -> bytes:
    """Return four streams of codes, and before them the sizes of three."""
    made = [bits(*((int(code), 1) for code in stream)) for stream in streams]
    return struct.pack("<HHH", *map(len, made[:3])) + b"".join(made)


def fse(log: int, shares: list[int]) -> bytes:
    """Return a table's description; a run of zeros is told by two bits for each three of them."""
    fields, left, at = [(log - 5, 4)], 1 << log, 0
    while at < len(shares):
        value, most = shares[at] + 1, left + 1
        count = most.bit_length()
        low, spare = (1 << (count - 1)) - 1, (1 << count) - 1 - most
        if value < spare:
            fields.append((value, count - 1))
        else:
            fields.append((value if value <= low else value + spare, count))
        left -= abs(shares[at])
        at += 1
        while shares[at - 1] == 0:
            more = 0
            while more < 3 and at + more < len(shares) and shares[at + more] == 0:
                more += 1
            fields.append((more, 2))
            at += more
            if more < 3:
                break
    number = place = 0
    for value, count in fields:
        number |= value << place
        place += count
    return number.to_bytes((place + 7) // 8, "little")


def by_table(table: bytes, *stream: tuple[int, int]) -> bytes:
    """Return a sequence whose literals' length comes of a table, with an offset of 3."""
    return bytes([1, DESCRIBED]) + table + bytes([2, 0]) + bits(*stream)


TWO_WEIGHTS = fse(5, [0, 16, 16])


def by_tree(
    description: bytes, stream: bytes, count: int = 6, *, kind: int = 2, streams: int = 0
) -> tuple[bytes, ...]:
    """Return literals in one stream, or (1) in four, and no sequences."""
    size = len(description) + len(stream)
    head = kind | streams << 2 | count << 4 | size << 14
    return head.to_bytes(3, "little") + description + stream, b"\0"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((literal(b"abc"), sequence(3, (2, 2))), b"abcabc"),
        ((literal(b"abc"), sequence(2, (2, 2))), b"ab7abc"),
        ((literal(b"abc"), sequence(3, (0, 0))), b"abcccc"),
        ((literal(b"abc"), sequence(3, (1, 0))), b"abc7ab"),
        ((literal(b"abc"), sequence(3, (1, 1))), b"abc345"),
        ((literal(b"abc"), sequence(0, (0, 0))), b"456abc"),
        ((literal(b"abc"), sequence(0, (1, 0))), b"012abc"),
        ((literal(b"abc"), sequence(0, (1, 1))), None),  # one less than the last offset, 1
        ((literal(b"abc"), sequence(3, (3, 6))), b"abc012"),
        ((literal(b"abc"), sequence(3, (3, 7))), None),  # before the beginning
        ((literal(b"abc"), sequence(4, (2, 2))), None),  # more literals than there are
        ((literal(b"abcd"), sequence(4, (2, 2))), None),  # no room for the match
        ((literal(b"abcdefg"), sequence(7, (2, 2))), None),
        ((literal(b"abc"), sequence(3, (2, 2)) + b"\1"), None),  # bits that nobody reads
        ((literal(b"abc"), sequence(36, (2, 2))), None),  # codes that there are none of
        ((literal(b"abc"), sequence(3, (32, 2))), None),
        ((literal(b"abc"), sequence(3, (2, 2), 53)), None),
        ((literal(b"abc"), bytes([1, AS_BEFORE]) + bits()), None),
        ((literal(b"abc"), bytes([1])), None),
        ((literal(b"abc"), bytes([1, ONE_CODE])), None),
        ((literal(b"abc"), bytes([1, ONE_CODE, 3])), None),
        ((literal(b"abc"), bytes([1, ONE_CODE, 3, 2])), None),
        ((literal(b"abc"), bytes([1, ONE_CODE, 3, 2, 0])), None),
        (by_tree(b"", bits(), kind=AGAIN), None),  # where there was none before
        ((literal(b"abcdef"), b"\0"), b"abcdef"),
        ((literal(b"abcde"), b"\0"), None),
        ((bytes([6 << 3 | 1]) + b"x", b"\0"), b"xxxxxx"),
        ((bytes([0xFD, 0xFF, 0xFF]) + b"x", b"\0"), None),  # more than a block may have
        ((), None),
        ((b"\5",), None),  # a length of two bytes
        ((literal(b"abcdef"),), None),
        ((literal(b"abcdef"), b"\x80"), None),  # a count of two bytes, and of three
        ((literal(b"abcdef"), b"\xff\0"), None),
        ((literal(b"abcdef"), b"\1"), None),
    ],
)  # fmt: skip
def test_sequences(parts: tuple[bytes, ...], found: bytes | None) -> None:
    assert made_of(*parts) == (None if found is None else b"01234567" + found)


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (by_tree(tree(1), bits((0b011010, 6))), bytes([0, 1, 1, 0, 1, 0])),
        (by_tree(tree(1), bits((0b01101, 5))), None),
        (by_tree(tree(1), bits((0b0110101, 7))), None),
        (by_tree(tree(1), b""), None),
        (by_tree(tree(1), b"\0"), None),  # without an end mark
        (by_tree(tree(2, 1), bits((0b101001100, 9))), bytes([0, 2, 1, 0, 0, 1])),
        (by_tree(tree(0), bits((0, 6))), None),
        (by_tree(tree(12), bits((0, 6))), None),
        (by_tree(tree(11, 11), bits((0b111111, 6))), None),  # codes of 12 bits
        (by_tree(tree(3, 1), bits((0, 18))), None),  # nothing fills that up
        (by_tree(tree(*[1] * 128)[:40], b""), None),
        (by_tree(b"", b""), None),
        (by_tree(b"", b"")[:1], None),
        (by_tree(bytes([9, 0, 0]), b""), None),
        (by_tree(packed_tree(TWO_WEIGHTS, bits((16, 5), (0, 5))), bits((63, 6))), bytes(6)),
        (by_tree(packed_tree(TWO_WEIGHTS, bits((16, 5))), bits((63, 6))), None),
        (by_tree(packed_tree(TWO_WEIGHTS, bits(*[(0, 8)] * 110)), bits((0, 6))), None),
        (by_tree(packed_tree(fse(5, [0] * 12 + [32]), bits((0, 10))), bits((0, 6))), None),
        (by_tree(packed_tree(fse(7, [0, 64, 64]), bits((0, 14))), bits((0, 6))), None),
        (by_tree(tree(1), four("011", "011", "011", "011"), 12, streams=1), None),
        (by_tree(tree(1), four("01", "10", "1", "")[:5], streams=1), None),
        (by_tree(tree(1), four("01", "10", "11", "")[:6], streams=1), None),
        (by_tree(tree(1), b"\xff\xff" + four("01", "10", "11", "")[2:], streams=1), None),
        (by_tree(tree(1), four("01", "10", "11", ""), streams=1), bytes([0, 1, 1, 0, 1, 1])),
        (by_tree(tree(1), four("01", "10", "1", ""), 5, streams=1), None),
    ],
)  # fmt: skip
def test_trees(parts: tuple[bytes, ...], found: bytes | None) -> None:
    assert made_of(*parts) == (None if found is None else b"01234567" + found)


TABLES = [fse(5, [16, 8, 4, 2, 1, 1]), fse(6, [0, 0, 0, 0, 0, -1, 62, 1]), fse(9, [0, 0, 0, 512])]


@pytest.mark.parametrize(
    ("sequences", "found"),
    [
        (by_table(fse(5, [0, 0, 0, 32]), (0, 5), (2, 2)), b"abcabc"),
        (by_table(fse(5, [0, 0, 16, 16]), (31, 5), (2, 2)), b"abcabc"),
        (by_table(fse(5, [0, 0, 16, -1, 15]), (31, 5), (2, 2)), b"abcabc"),
        (by_table(fse(10, [0, 0, 0, 1024]), (0, 10), (2, 2)), None),
        (by_table(fse(9, [1] * 36 + [476]), (511, 9), (2, 2)), None),
        (by_table(b"\x10\xfe" + b"\xff" * 60, (0, 5)), None),
        (by_table(b"\x00", (0, 5)), None),
    ],
)
def test_tables(sequences: bytes, found: bytes | None) -> None:
    assert made_of(literal(b"abc"), sequences) == (found and b"01234567" + found)


@pytest.mark.parametrize("table", TABLES, ids=bytes.hex)
def test_the_beginnings_of_tables(table: bytes) -> None:
    for end in range(len(table)):
        assert made_of(literal(b"abc"), bytes([1, DESCRIBED]), table[:end]) is None


@pytest.mark.parametrize(
    "packed",
    [
        frame(block(b"0", kind=RAW, size=2)),
        frame(block(b"01", kind=RESERVED)),
        frame(block(b"01", kind=RAW, last=False)),
        frame(block(b"01", kind=RAW))[:-3],
        frame(block(b"012", kind=RAW)),
        frame(block(b"0", kind=REPEATED, size=3)),
        frame(block(b"", kind=REPEATED, size=2)),
        frame(b"\2", block(b"01", kind=RAW), flags=0x21, size=7),  # with a dictionary
        frame(block(b"01", kind=RAW), flags=0x40),
        frame()[:4],
        frame(flags=0xE0),
        b"X" + frame(block(b"01", kind=RAW))[1:],
    ],
    ids=bytes.hex,
)
def test_frames(packed: bytes) -> None:
    assert unpack("zstd", packed, 2) is None


def test_more_literals_than_there_are_are_not_looked_for() -> None:
    fields = [(2, 2), ((1 << 16) - 1, 16)] * 5
    content = literal(b"abc") + bytes([5, ONE_CODE, 35, 2, 0]) + bits(*fields)
    assert unpack("zstd", frame(block(content, kind=COMPRESSED)), 1 << 20) is None


def test_a_fourth_stream_without_literals_is_not_looked_at() -> None:
    streams = four("01", "10", "11", "")[:-1] + bytes(200_000) + b"\1"
    description = tree(1)
    size = len(description) + len(streams)
    head = (COMPRESSED | 3 << 2 | 5 << 4 | size << 22).to_bytes(5, "little")
    packed = frame(block(head + description + streams + b"\0", kind=COMPRESSED))
    assert unpack("zstd", packed, 5) is None


def test_a_frame_by_hand() -> None:
    assert unpack("zstd", frame(block(b"01", kind=RAW)), 2) == b"01"
    assert unpack("zstd", frame(block(b"0", kind=REPEATED, size=2)), 2) == b"00"
    assert unpack("zstd", frame(block(b"01", kind=RAW), flags=0), 2) == b"01"


@pytest.mark.parametrize(
    ("packed", "found"),
    [
        (b"\x10a\1\0", b"aaaaa"),
        (b"\x50abcde", b"abcde"),
        (b"\x10a\0\0", None),  # no bytes back
        (b"\x10a\2\0", None),
        (b"\x10a\1", None),
        (b"\x11a\1\0", None),
        (b"\x0f\1\0", None),
        (b"\x1fa\1\0", None),
        (b"\x1fa\1\0\xff", None),
        (b"\xf0", None),
        (b"\xf0\xff", None),
        (b"\x60abcde", None),
        (b"\x60abcdef", None),
        (b"", None),
    ],
)
def test_lz4_by_hand(packed: bytes, found: bytes | None) -> None:
    assert unpack("lz4", packed, 5) == found
