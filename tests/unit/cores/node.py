"""Share folders of a node with time division, as the plugin makes them, and what a program sees."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from apportion.cores import layout, slots
from apportion.cores.bursts import Bursts
from apportion.cores.layout import State
from apportion.cores.slots import Slot
from apportion.cores.store import Schedules
from apportion.enforce import layout as ledger
from apportion.enforce.shares import Shares
from apportion.model import (
    Capacity,
    CoresMode,
    CoresPolicy,
    DeviceName,
    GpuUuid,
    Share,
    ShareKey,
)

GPU = GpuUuid("GPU-11111111-0000-4000-8000-000000000001")
OTHER = GpuUuid("GPU-22222222-0000-4000-8000-000000000002")
MS = 1_000_000
PERIOD = 50 * MS


def share(name: str, cores: int, *, burst: bool = False, uuid: GpuUuid = GPU) -> Share:
    policy = CoresPolicy.BURST if burst else CoresPolicy.CAP
    memory = 1 << 30
    return Share(
        ShareKey(name), "gpu", "n", DeviceName("d"), name, uuid, Capacity(cores, memory), policy
    )


def sound(found: dict[str, Slot]) -> bool:
    """Return whether no two overlap."""
    done: dict[str, Slot] = {}
    for name, slot in found.items():
        if not slots.fits(done, slot):
            return False
        done[name] = slot
    return True


@dataclass
class Node:
    """A plugin on a folder; `again` is another one on the same, as after a restart."""

    base: Path
    periods: dict[str, int] = field(default_factory=dict)
    now: int = 1_000_000 * MS
    claimed: dict[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shares = Shares(self.base / "shares")
        self.schedules = Schedules(
            self.shares.folder,
            self.base / "plugin" / "cores.lock",
            period=lambda uuid: self.periods.get(uuid, PERIOD),
            allowances=self.shares.allowances,
            claimed=self.claimed.values,
        )
        self.bursts = Bursts(
            self.schedules,
            ledger=lambda key: self.shares.path(key) / "ledger",
            wanted_at=ledger.WANTED_OFFSET,
            clock=lambda: self.now,
        )

    def again(self) -> Node:
        return Node(self.base, dict(self.periods), self.now, self.claimed)

    def add(self, name: str, cores: int, *, burst: bool = False, uuid: GpuUuid = GPU) -> None:
        wanted = self.claimed[name] = share(name, cores, burst=burst, uuid=uuid)
        with self.schedules.room(wanted) as content:
            self.shares.prepare(wanted, 0, CoresMode.TIMESLICE, content)

    def remove(self, name: str) -> None:
        with self.schedules.leaving(ShareKey(name)):
            self.shares.remove(ShareKey(name))
        self.claimed.pop(name, None)

    def file(self, name: str) -> Path:
        return self.shares.path(ShareKey(name)) / "schedule"

    def state(self, name: str) -> State:
        found = layout.unpack(self.file(name).read_bytes())
        assert found is not None
        return found

    def slots(self) -> dict[str, Slot]:
        """Return the slots that the files say, by share."""
        return {path.name: self.state(path.name).slot for path in self.shares.folder.iterdir()}

    def want(self, name: str, at: int | None = None) -> None:
        """Do what a launch does: say in the ledger when it was, by default now."""
        with (self.shares.path(ShareKey(name)) / "ledger").open("r+b") as file:
            file.seek(ledger.WANTED_OFFSET)
            file.write(struct.pack("<Q", self.now if at is None else at))
