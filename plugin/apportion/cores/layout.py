"""The schedule file, as in shim/include/apportion/schedule.h; a test compiles that and compares.

Pure. All integers are little endian, times are nanoseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from apportion.cores.slots import CELLS, Slot

MAGIC = int.from_bytes(b"APPLSCD1", "little")
VERSION = 1
SIZE = 4096
"""Bytes of the whole file."""

MAX_SLOTS = 32
HEADER = struct.Struct("<QIIQ5Q")
"""magic, version, size, generation, five zeros."""

GENERATION = struct.Struct("<Q")
GENERATION_OFFSET = 16
STATE = struct.Struct(f"<QQIIQ{4 * MAX_SLOTS}Q")
"""period, guest_until, own_count, guest_count, 0, own slots, guest slots."""

_FIXED = struct.Struct("<QII")
_HEAD = struct.Struct("<QQIIQ")


@dataclass(frozen=True, slots=True)
class State:
    """One state of a share's schedule.

    Attributes:
        period: nanoseconds, a multiple of 100.
        slot: the share's own part of it.
        guests: parts of others that it may use as well.
        guest_until: until when, by CLOCK_MONOTONIC in nanoseconds.
    """

    period: int
    slot: Slot
    guests: tuple[Slot, ...] = ()
    guest_until: int = 0


def fresh(state: State, generation: int = 1) -> bytes:
    """Return the content of a new file, whose first generation is this one."""
    head = HEADER.pack(MAGIC, VERSION, SIZE, generation, 0, 0, 0, 0, 0)
    before = bytes(STATE.size) if generation & 1 else b""
    return (head + before + pack(state)).ljust(SIZE, b"\0")


def pack(state: State) -> bytes:
    """Return a state's bytes. Guests beyond what the file has room for are left out."""
    guests = state.guests[:MAX_SLOTS]
    head = (state.period, state.guest_until if guests else 0, 1, len(guests), 0)
    return STATE.pack(*head, *_times(state.period, [state.slot]), *_times(state.period, guests))


def offset(generation: int) -> int:
    """Return where the state of a generation lies."""
    return HEADER.size + (generation & 1) * STATE.size


def generation(data: bytes) -> int | None:
    """Return the generation in force, None where `data` is no file of this layout."""
    if len(data) != SIZE or _FIXED.unpack_from(data) != (MAGIC, VERSION, SIZE):
        return None
    found: int = GENERATION.unpack_from(data, GENERATION_OFFSET)[0]
    return found or None


def unpack(data: bytes) -> State | None:
    """Return the state in force of a file's content, None unless this module could write it."""
    found = generation(data)
    if found is None:
        return None
    at = offset(found)
    period, until, own, guests, _zero = _HEAD.unpack_from(data, at)
    if period == 0 or period % CELLS or own != 1 or guests > MAX_SLOTS:
        return None
    numbers = STATE.unpack_from(data, at)[5:]
    slots = [
        _slot(period, start, length)
        for start, length in zip(numbers[0::2], numbers[1::2], strict=True)
    ]
    slot, lent = slots[0], slots[MAX_SLOTS : MAX_SLOTS + guests]
    if slot is None or None in lent:
        return None
    return State(period, slot, tuple(each for each in lent if each is not None), until)


def _slot(period: int, start: int, length: int) -> Slot | None:
    cell = period // CELLS
    if start % cell or length % cell or length == 0 or start + length > period:
        return None
    return Slot(start // cell, length // cell)


def _times(period: int, slots: Sequence[Slot]) -> list[int]:
    cell = period // CELLS
    found = [number * cell for slot in slots for number in (slot.start, slot.cells)]
    return found + [0] * (2 * MAX_SLOTS - len(found))
