"""The ledger's layout, as in shim/include/apportion/ledger.h; a test compiles that and compares.

All integers are little endian.
"""

from __future__ import annotations

import struct

MAGIC = int.from_bytes(b"APPLEDG1", "little")

VERSION = 1
HEADER = struct.Struct("<QIIIIQQQIIII")
"""magic, version, header_size, slot_size, slot_count, total, denied, peak, dirty, clean, top,
context_mib."""

CORES = struct.Struct("<QQQQq")
"""used, waited, overrun, wanted, carry: time on the GPU in nanoseconds."""

CORES_OFFSET = 64
WANTED_OFFSET = CORES_OFFSET + 24

SLOT = struct.Struct("<QQIIQQQQQ")
"""seq, used, pid, 0, started, namespace, died, busy_until_ns, object; object is 0 in a process's
slot."""

SLOT_COUNT = 1024
SLOTS_OFFSET = 4096
SIZE = SLOTS_OFFSET + SLOT_COUNT * SLOT.size
"""Bytes of the whole file."""

LOCK_SWEEP = 0x3FFFFFFF
LOCK_SLOTS = 0x40000000
"""The owner of slot i holds an open file description write lock on byte LOCK_SLOTS + i."""

MARK = "security.apportion"
"""Attribute of limits and ledger that holds the share's key; limits.h says what it is good for."""

_FIXED = struct.Struct("<QIIII")


def fresh_header(context_mib: int = 0) -> bytes:
    """Return the header of a new ledger; the rest of it is zero.

    Args:
        context_mib: what a context takes on the GPU, in MiB rounded up; 0 where that is not known.
    """
    return HEADER.pack(MAGIC, VERSION, HEADER.size, SLOT.size, SLOT_COUNT, *(0,) * 6, context_mib)


def is_valid(head: bytes, size: int) -> bool:
    """Return whether a file of `size` bytes that starts with `head` is a ledger of this layout."""
    return size == SIZE and head[: _FIXED.size] == fresh_header()[: _FIXED.size]
