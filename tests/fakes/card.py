"""A simulated card that executes in time: what was queued and what ran, by its own accounts."""

from __future__ import annotations

import os
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.fakes.fakegpu import HEADER_SIZE, MAX_GPUS, SLOT, SLOTS, FakeDriver, is_locked

# common/card.h: how the file goes on behind the accounts; test_fakes.py proves them equal.
CARDS: Final = HEADER_SIZE + SLOTS * SLOT.size
CARD_SIZE: Final = 0x220000
CARD: Final = struct.Struct("<i60xIIIIIIQQQdQQ")
QUEUE: Final = struct.Struct("<IiIIQQQd")
QUEUE_SIZE: Final = QUEUE.size + 1024 * 16
WHOLE_BYTE: Final = 1 << 40


@dataclass(frozen=True)
class Queue:
    """What one context has on a card that executes in time; times are nanoseconds of work."""

    pid: int
    percent: int
    mps: bool
    pushed: int
    done: int
    submitted: int
    served: float


@dataclass(frozen=True)
class Card:
    """A card that executes in time, as it was worked out last, at `at` on CLOCK_MONOTONIC.

    `busy` is the time that work ran, `switching` what was lost in `switches` between contexts,
    both in nanoseconds since the beginning.
    """

    at: int
    busy: float
    switching: int
    switches: int
    queues: tuple[Queue, ...]

    def served(self, pid: int) -> float:
        """Nanoseconds of work that a process's contexts got."""
        return sum(queue.served for queue in self.queues if queue.pid == pid)


def card(driver: FakeDriver, gpu: int) -> Card:
    """A card with `executes = yes`; some process must have had a context on it."""
    with driver.state.open("rb") as file:
        seen = b""
        # Nobody is kept from going on meanwhile, so that it is read until it stands still.
        while seen != (seen := os.pread(file.fileno(), CARD_SIZE, CARDS + gpu * CARD_SIZE)):
            continue
    return _card(seen)


def stop(driver: FakeDriver, pid: int, *, inside: bool = False) -> None:
    """SIGSTOP, though not within the driver: the kernel module cannot be stopped, either.

    `inside`: just there, to be killed amid a change.
    """
    with driver.state.open("rb") as file:
        while True:
            os.kill(pid, signal.SIGSTOP)
            _wait_until_stopped(pid)
            if _holds_a_card(file.fileno(), pid) if inside else _outside(file.fileno(), pid):
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)


def _wait_until_stopped(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.0005)


def _holds_a_card(descriptor: int, pid: int) -> bool:
    """Whether a stopped process has a card's lock, whose word is its holder's thread."""
    threads = {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}
    words = [os.pread(descriptor, 4, CARDS + gpu * CARD_SIZE) for gpu in range(MAX_GPUS)]
    return any(int.from_bytes(word, "little") & 0x3FFFFFFF in threads for word in words)


def _outside(descriptor: int, pid: int) -> bool:
    """Whether nobody waits for a stopped process."""
    if _holds_a_card(descriptor, pid):
        return False
    # Who holds the accounts cannot be asked; all others give them back soon.
    for _ in range(50):
        if not is_locked(descriptor, WHOLE_BYTE):
            return True
        time.sleep(0.001)
    return False


def _card(content: bytes) -> Card:
    _, _, high_water, _, _, _, _, at, _, _, busy, switching, switches = CARD.unpack_from(content)
    queues = []
    for index in range(high_water):
        queue = QUEUE.unpack_from(content, CARD.size + index * QUEUE_SIZE)
        if queue[0]:
            queues.append(Queue(queue[1], queue[2], bool(queue[3]), *queue[4:]))
    return Card(at, busy, switching, switches, tuple(queues))
