"""A node whose driver is played, for tests of the GPUs' health."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from apportion.errors import (
    NvmlDeviceError,
    NvmlError,
)
from apportion.inventory.nvml import Busy
from apportion.inventory.xids import Event
from apportion.model import Gpu, GpuUuid, Inventory, Vitals
from apportion.watch.condition import Condition
from apportion.watch.health import Health, Hooks, Limits
from apportion.watch.record import Known
from apportion.watch.states import Change
from apportion.watch.store import HealthFile, read

from tests.fakes import samples

ONE, TWO = samples.gpu(0), samples.gpu(1)
BOTH = Inventory((ONE, TWO))
QUIET_S, HANG_S = 600.0, 60.0
LOST = NvmlDeviceError("lost", 15)


class Site:
    """A node: its driver, its clock, its disk; `start` gives another plugin on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot, self.instance = "boot-1", "100"
        self.seconds = 1000.0
        self.busy: Busy | None = None
        self.silent: set[GpuUuid] = set()
        self.watched: set[GpuUuid] = set()
        self.pending: list[Event] = []
        self.vitals: dict[GpuUuid, Vitals | NvmlError] = {}
        self.failure: NvmlError | None = None
        self.unproven: Exception | None = None
        self.during_probe: list[Event] = []
        self.probed: list[GpuUuid] = []
        self.changes: list[Change] = []
        self.written: list[dict[GpuUuid, Known]] = []
        self.damage: list[str] = []
        self.counted: list[tuple[GpuUuid, int]] = []
        self.more: list[Condition] = []

    def note(self, changes: Sequence[Change]) -> None:
        """Note changes, and what was on disk when they were told."""
        self.changes.extend(changes)
        record = read(self.folder) if self.folder.is_dir() else None
        self.written.append({} if record is None else dict(record.gpus))

    def start(self, *, by_index: bool = False) -> Health:
        health = Health(
            nvml=self,
            vitals=self._vitals,
            probe=self._probe,
            file=HealthFile(self.folder, self.damage.append),
            boot=self.boot,
            driver=lambda: self.instance,
            limits=Limits(QUIET_S, HANG_S),
            by_index=by_index,
            hooks=Hooks(
                self.note,
                lambda *xid: self.counted.append(xid),
                lambda uuid: self.more if uuid == ONE.uuid else [],
            ),
            clock=lambda: self.seconds,
            now=lambda: 1764500000 + self.seconds,
        )
        health.load()
        return health

    def watch(self, uuids: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
        if self.failure:
            raise self.failure
        self.watched |= set(uuids)
        return tuple(uuid for uuid in uuids if uuid in self.silent)

    def events(self) -> list[Event]:
        if self.failure:
            raise self.failure
        found, self.pending = self.pending, []
        return found

    def _vitals(self, uuid: GpuUuid) -> Vitals:
        found = self.vitals.get(uuid, Vitals())
        if isinstance(found, NvmlError):
            raise found
        return found

    def _probe(self, uuid: GpuUuid) -> None:
        self.probed.append(uuid)
        self.pending += self.during_probe
        if self.unproven:
            raise self.unproven

    def pass_time(self, health: Health, seconds: float) -> None:
        self.seconds += seconds
        health.poll()


def names(health: Health, gpu: Gpu = ONE) -> list[str]:
    return [one.name for one in health.conditions().get(gpu.uuid, ())]


def fall_ill(site: Site, health: Health, xid: int = 79) -> None:
    site.pending.append(Event(ONE.uuid, xid))
    health.poll()
