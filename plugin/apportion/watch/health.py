"""How the GPUs are: looked at, written down, and good again when they have proven it.

Three threads come here and none waits for NVML with a lock held: the scan says which GPUs there
are, a loop of its own asks for Xids and readings, and the watchdog notices calls that do not come
back. Kubelet's calls and the publisher only ask for what is known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from apportion import log
from apportion.errors import ApportionError, NvmlDeviceError, NvmlError, StoppingError
from apportion.inventory.nvml import Busy
from apportion.inventory.scan import by_address
from apportion.inventory.xids import Event
from apportion.model import Excluded, Gpu, GpuUuid, Inventory, Vitals
from apportion.watch import condition
from apportion.watch.condition import Condition, Conditions
from apportion.watch.states import Change, States
from apportion.watch.store import HealthFile

_LOG = logging.getLogger("apportion.watch")

_LOOK_S = 5.0
"""Between two looks at the readings; Xids are asked for with each `poll`."""


class Source(Protocol):
    """What is asked of NVML; `nvml.Nvml` is it."""

    @property
    def busy(self) -> Busy | None:
        """The call that runs now."""

    def watch(self, uuids: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
        """Watch GPUs for Xids; return those that report none."""

    def events(self) -> list[Event]:
        """Return the Xids since the last call."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a GPU must be good to be trusted again, and one call may take."""

    quiet_s: float = 600.0
    hang_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom to tell; called without a lock, by the thread that found it."""

    on_change: Callable[[Sequence[Change]], None] = lambda _changes: None
    on_xid: Callable[[GpuUuid, int], None] = lambda _uuid, _xid: None
    # What others know of a GPU: it is so for as long as they say it.
    more: Callable[[GpuUuid], Sequence[Condition]] = lambda _uuid: ()


class Health:
    """The health of this node's GPUs.

    Args:
        nvml: reports Xids and what it is doing.
        vitals: reads a GPU; raises NvmlError.
        probe: proves that a GPU works, or raises ApportionError.
        file: where it is written down.
        boot: the boot ID.
        driver: tells one start of the driver from another; empty where nothing does.
        limits: times.
        by_index: whether devices are named by index, of which no two may be the same.
        hooks: whom to tell.
        clock: seconds, monotonic.
        now: seconds since 1970.
    """

    def __init__(
        self,
        *,
        nvml: Source,
        vitals: Callable[[GpuUuid], Vitals],
        probe: Callable[[GpuUuid], None],
        file: HealthFile,
        boot: str,
        driver: Callable[[], str],
        limits: Limits = Limits(),
        by_index: bool = False,
        hooks: Hooks = Hooks(),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._nvml, self._vitals, self._probe = nvml, vitals, probe
        self._driver, self._limits, self._by_index = driver, limits, by_index
        self._on_xid, self._more = hooks.on_xid, hooks.more
        self._clock, self._now = clock, now
        self._states = States(file, boot, hooks.on_change, clock)
        self._look_at = 0.0
        self._failed: set[GpuUuid] = set()
        self._trouble = log.Trouble(_LOG, "Xids cannot be read")

    def load(self) -> None:
        """Take up what was written down, unless the node or the driver started anew since."""
        self._states.load(self._driver())

    def conditions(self) -> dict[GpuUuid, Conditions]:
        """Return what is wrong with each known GPU; never waits for NVML."""
        return self._states.conditions()

    def is_bad(self, uuid: GpuUuid) -> bool:
        """Return whether a GPU should get no new work; never waits for NVML."""
        return condition.bad(self._states.of(uuid))

    def settle(self, found: Inventory) -> Inventory:
        """Return a scan's result with the GPUs that were there and are no longer found.

        They stay published, with a taint: pods that have a share of one are told, and evicted if
        that is wished. One that is there and unfit, such as in MIG mode, is gone on purpose.
        """
        there = {gpu.uuid for gpu in found.gpus}
        if self._states.renew(self._driver()):
            _LOG.info("the driver started anew: what was wrong with the GPUs is forgotten")
            self._states.forgive(there)
        self._states.seen(found.gpus)
        self._begin(sorted(there))
        failures = {one.uuid: one for one in found.excluded if one.uuid is not None}
        nameless = [one for one in found.excluded if one.uuid is None and one.code]
        kept: list[Gpu] = []
        for uuid, gpu in sorted(self._states.known().items()):
            failure = failures.get(uuid)
            if uuid in there:
                continue
            if failure is not None and not failure.code:
                self._states.forget([uuid])
                continue
            if failure is None and nameless:
                failure = nameless.pop(0)
            self._miss(uuid, failure.code if failure else None)
            kept.append(gpu)
        return self._joined(found, kept, nameless)

    def poll(self) -> None:
        """Ask for Xids; every few seconds look at everything else, too. Called each second."""
        self._take_xids()
        if self._clock() >= self._look_at and self._states.present():
            self._look_at = self._clock() + _LOOK_S
            self.absorb()
            self._read_all()
            for uuid in self._states.due(self._limits.quiet_s):
                self._recover(uuid)
            self._states.save()

    def hasten(self) -> None:
        """Look at everything with the next poll: something is otherwise than it was."""
        self._look_at = 0.0

    def absorb(self) -> None:
        """Take over what another plugin of this node has noted; asks nothing of NVML."""
        self._states.absorb()

    def check(self) -> None:
        """Notice a call of NVML that does not come back; asks nothing of NVML."""
        busy = self._nvml.busy
        if busy is None or self._clock() - busy.since <= self._limits.hang_s:
            return
        hang = condition.of_hang(self._limits.hang_s, self._seconds())
        self._states.note({uuid: [hang] for uuid in self._meant(busy.subject)})

    def _begin(self, uuids: Sequence[GpuUuid]) -> None:
        """Watch new GPUs at once, and remember that they were here: each may be gone the next."""
        try:
            self._nvml.watch(uuids)
        except NvmlError as error:
            _LOG.debug("the GPUs are not watched yet", extra={"error": str(error)})
        self._states.save()

    def _miss(self, uuid: GpuUuid, code: int | None) -> None:
        """Note that a GPU is away, once: the next start of NVML no longer lists a lost one."""
        if any(one.reason in condition.ABSENCES for one in self._states.of(uuid)):
            self._states.wait_anew(uuid)
        else:
            self._states.note({uuid: [condition.of_absence(code, self._seconds())]})

    def _joined(self, found: Inventory, kept: list[Gpu], unexplained: list[Excluded]) -> Inventory:
        if self._by_index:
            # The driver counts anew without the lost one, whose name another one has now.
            taken = {gpu.index for gpu in found.gpus}
            kept = [gpu for gpu in kept if gpu.index not in taken]
        names = {gpu.uuid for gpu in kept}
        excluded = tuple(
            one
            for one in found.excluded
            if one.uuid not in names and (one.uuid or not one.code or one in unexplained)
        )
        return Inventory(tuple(sorted((*found.gpus, *kept), key=by_address)), excluded)

    def _take_xids(self) -> None:
        try:
            events = self._nvml.events()
        except NvmlError as error:
            # A lost GPU makes this fail, too; the scan notices it and starts NVML anew.
            self._trouble.begin(str(error.code), str(error), logging.DEBUG)
            return
        self._trouble.end()
        found: dict[GpuUuid, list[Condition]] = {}
        for event in events:
            if event.uuid is None:
                _LOG.warning("an Xid of a GPU that is not known", extra={"xid": event.xid})
                continue
            self._on_xid(event.uuid, event.xid)
            one = condition.of_xid(event.xid, self._seconds())
            if one is None:
                _LOG.info("a program's Xid", extra={"gpu": event.uuid, "xid": event.xid})
            else:
                found.setdefault(event.uuid, []).append(one)
        self._states.note(found)

    def _read_all(self) -> None:
        uuids = self._states.present()
        try:
            silent = self._nvml.watch(uuids)
            for uuid in uuids:
                self._read(uuid, silent=uuid in silent)
        except NvmlError as error:
            # NVML as a whole; the scan says so, and does something about it.
            _LOG.debug("the GPUs' health is not looked at", extra={"error": str(error)})

    def _read(self, uuid: GpuUuid, *, silent: bool) -> None:
        try:
            readings = condition.of_vitals(self._vitals(uuid), self._seconds())
        except NvmlDeviceError as error:
            # One reading may fail in passing; that a GPU is lost NVML does not say so.
            if uuid in self._failed or error.code in condition.CERTAIN:
                self._miss(uuid, error.code)
            self._failed.add(uuid)
            return
        except NvmlError as error:
            # Of this GPU for the moment, or of NVML as a whole, of which the scan has to say.
            _LOG.debug("a GPU cannot be read now", extra={"gpu": uuid, "error": str(error)})
            return
        self._failed.discard(uuid)
        if silent:
            readings.append(condition.of_silence(self._seconds()))
        readings.extend(self._more(uuid))
        self._states.read(uuid, readings)

    def _recover(self, uuid: GpuUuid) -> None:
        """Trust a GPU again that was good for long enough, if it proves to work."""
        try:
            self._probe(uuid)
        except StoppingError:
            return
        except ApportionError as error:
            _LOG.warning("a GPU is still unhealthy: %s", error, extra={"gpu": uuid})
            self._states.wait_anew(uuid)
            return
        # What came while it was tried counts.
        self._take_xids()
        self._states.recover(uuid, self._limits.quiet_s)

    def _meant(self, subject: str) -> list[GpuUuid]:
        """Return the GPUs that a call is about; one that is about none may be about any."""
        known = self._states.known()
        if subject in known:
            return [GpuUuid(subject)]
        named = [uuid for uuid, gpu in known.items() if subject == f"GPU {gpu.index}"]
        return named or sorted(known)

    def _seconds(self) -> int:
        return int(self._now())
