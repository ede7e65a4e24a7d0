"""Shares whose cores are limited by time: their schedule, and their account in the ledger."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.shim.support import GIB, MARK, WAIT_S, Container, Share, limits_text, uuid

MS: Final = 1_000_000
NAME: Final = "schedule"
SIZE: Final = 4096
HEADER: Final = struct.Struct("<8sIIQ40x")
STATE: Final = struct.Struct("<QQIIQ")
SLOTS: Final = 32
FAR: Final = 1 << 55
"""A period whose slots do not come as long as this machine runs, but for the first one."""

Slots = Sequence[tuple[int, int]]


def state_bytes(
    own: Slots, *, period: int = 100 * MS, guest: Slots = (), guest_until: int = 0
) -> bytes:
    """Return a state: slots as (start, length) in ns of the period."""
    slots = b"".join(
        struct.pack("<QQ", *slot)
        for some in (own, guest)
        for slot in [*some, *[(0, 0)] * (SLOTS - len(some))]
    )
    return STATE.pack(period, guest_until, len(own), len(guest), 0) + slots


def schedule_bytes(state: bytes) -> bytes:
    """Return a schedule file as the plugin makes it."""
    return (HEADER.pack(b"APPLSCD1", 1, SIZE, 1) + state * 2).ljust(SIZE, b"\0")


CLOSED: Final = state_bytes([(0, 1)], period=FAR)
OPEN: Final = state_bytes([(0, FAR)], period=FAR)


@dataclass(frozen=True)
class Account:
    """A share's time, ns."""

    used: int
    waited: int
    overrun: int
    wanted: int
    carry: int

    @classmethod
    def of(cls, share: Share) -> Self:
        return cls(*struct.unpack("<QQQQq", share.ledger.read_bytes()[64:104]))


def timeslice(
    container: Container,
    state: bytes = OPEN,
    *,
    memory: int = GIB,
    gpu: str = uuid(),
    key: str | None = None,
    file: bytes | None = None,
) -> Share:
    """Make a share whose launches pass as `state` says; `file` is the whole schedule file."""
    name = key or f"time-{len(container.shares)}"
    text = limits_text(name, gpu, memory) + "cores-mode timeslice\n"
    share = container.share(memory, gpu=gpu, key=name, text=text)
    put(share.folder, schedule_bytes(state) if file is None else file)
    return share


def put(folder: Path, content: bytes) -> None:
    """Put a schedule into a share's folder, as the plugin does."""
    path = folder / NAME
    path.write_bytes(content)
    path.chmod(0o444)
    os.setxattr(path, MARK, folder.name.encode())


def write(share: Share, state: bytes) -> None:
    """Put another state in force, as the plugin does."""
    with (share.folder / NAME).open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as at:
        generation = struct.unpack_from("<Q", at, 16)[0] + 1
        first = 64 + (generation & 1) * len(state)
        at[first : first + len(state)] = state
        struct.pack_into("<Q", at, 16, generation)


def wait_until_wanted(share: Share) -> None:
    """Wait until a launch is held back, or has passed."""
    before, deadline = Account.of(share).wanted, time.monotonic() + WAIT_S
    while Account.of(share).wanted == before:
        assert time.monotonic() < deadline, "no launch came to the gate"
        time.sleep(0.001)
