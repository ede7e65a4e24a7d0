"""What is known of each GPU: shared by threads, written down, and told where it changes."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from apportion import log
from apportion.errors import StorageError
from apportion.model import Gpu, GpuUuid
from apportion.watch import condition
from apportion.watch.condition import Condition, Conditions
from apportion.watch.record import Known, Record
from apportion.watch.store import HealthFile

_LOG = logging.getLogger("apportion.watch")

# How long a note stands after a reading said it last.
_NOTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """What began and what ended on one GPU."""

    gpu: GpuUuid
    begun: Conditions = ()
    ended: Conditions = ()


@dataclass(slots=True)
class _State:
    """One GPU: as last read, what is wrong, since when no incident came (monotonic).

    `read_at`: when a reading last said each condition, by name (monotonic).
    """

    gpu: Gpu | None = None
    conditions: Conditions = ()
    quiet_since: float = 0.0
    present: bool = False
    read_at: dict[str, float] = field(default_factory=dict)


class States:
    """All GPUs, by UUID; safe to call from many threads, and none waits for NVML here."""

    def __init__(
        self,
        file: HealthFile,
        boot: str,
        on_change: Callable[[Sequence[Change]], None],
        clock: Callable[[], float],
    ) -> None:
        """Know nothing yet.

        Args:
            file: where it is written down.
            boot: the boot ID.
            on_change: told of changes, without a lock.
            clock: seconds, monotonic.
        """
        self._file, self._boot, self._instance = file, boot, ""
        self._on_change, self._clock = on_change, clock
        self._lock = threading.Lock()
        self._io = threading.Lock()
        self._states: dict[GpuUuid, _State] = {}
        self._trouble = log.Trouble(_LOG, "health cannot be written down")

    def load(self, instance: str) -> None:
        """Take up what was written down, unless the node or the driver started anew since."""
        self._instance = instance
        record = self._loaded(self._file.load)
        if record is None:
            return
        if not self._current(record):
            _LOG.info("node or driver started anew: what was wrong with the GPUs is forgotten")
            return
        self._instance = instance or record.driver
        with self._lock:
            for uuid, known in record.gpus.items():
                self._states[uuid] = _State(known.gpu, known.conditions, self._clock())
        for uuid, known in record.gpus.items():
            for one in known.conditions:
                _say(uuid, one, "a GPU is still unhealthy")

    def conditions(self) -> dict[GpuUuid, Conditions]:
        """Return what is wrong with each known GPU."""
        with self._lock:
            return {uuid: state.conditions for uuid, state in sorted(self._states.items())}

    def of(self, uuid: GpuUuid) -> Conditions:
        """Return what is wrong with a GPU."""
        with self._lock:
            state = self._states.get(uuid)
            return state.conditions if state else ()

    def known(self) -> dict[GpuUuid, Gpu]:
        """Return the GPUs as they were last read, those that are away included."""
        with self._lock:
            return {uuid: state.gpu for uuid, state in self._states.items() if state.gpu}

    def present(self) -> list[GpuUuid]:
        """Return the GPUs that the last scan found."""
        with self._lock:
            return sorted(uuid for uuid, state in self._states.items() if state.present)

    def seen(self, gpus: Iterable[Gpu]) -> None:
        """Note what a scan found; all others are away."""
        with self._lock:
            for state in self._states.values():
                state.present = False
            for gpu in gpus:
                state = self._states.setdefault(gpu.uuid, _State())
                state.gpu, state.present = gpu, True

    def due(self, quiet_s: float) -> list[GpuUuid]:
        """Return the GPUs whose incidents are over, by what is known: there, quiet, well read."""
        with self._lock:
            return sorted(uuid for uuid in self._states if self._over(uuid, quiet_s))

    def recover(self, uuid: GpuUuid, quiet_s: float) -> None:
        """End the incidents of a GPU that has proven itself, unless one came meanwhile."""
        with self._lock:
            changes = []
            if self._over(uuid, quiet_s):
                changes = self._set(uuid, condition.recovered(self._states[uuid].conditions))
        self._tell(changes)

    def wait_anew(self, uuid: GpuUuid) -> None:
        """Let the time begin anew for which a GPU must be good."""
        with self._lock:
            if uuid in self._states:
                self._states[uuid].quiet_since = self._clock()

    def note(self, more: Mapping[GpuUuid, Iterable[Condition]]) -> None:
        """Note what happened; the time begins anew for which the GPU must be good."""
        changes = []
        with self._lock:
            for uuid, found in more.items():
                state = self._states.setdefault(uuid, _State())
                state.quiet_since = self._clock()
                changes += self._set(uuid, condition.add(state.conditions, found))
        self._tell(changes)

    def read(self, uuid: GpuUuid, readings: Iterable[Condition]) -> None:
        """Note what a GPU's readings say now; what they no longer say is over, notes a bit later.

        One that comes and goes, such as heat, is a taint that stays, not one that flaps.
        """
        changes = []
        with self._lock:
            state = self._states.get(uuid)
            if state:
                readings, now = list(readings), self._clock()
                state.read_at |= {one.name: now for one in readings}
                held = [one for one in state.conditions if _is_held(one, state, now)]
                changes = self._set(uuid, condition.read(state.conditions, (*held, *readings)))
        self._tell(changes)

    def forgive(self, there: Collection[GpuUuid]) -> None:
        """End all incidents, and forget the GPUs that are not there: the driver starts anew."""
        self.forget(self.conditions().keys() - set(there))
        changes = []
        with self._lock:
            for uuid, state in self._states.items():
                changes += self._set(uuid, condition.recovered(state.conditions))
        self._tell(changes)

    def forget(self, uuids: Iterable[GpuUuid]) -> None:
        """Forget GPUs that are gone on purpose."""
        with self._lock:
            gone = {uuid: self._states.pop(uuid) for uuid in uuids if uuid in self._states}
        self._tell([_change(uuid, state.conditions, ()) for uuid, state in gone.items()])

    def renew(self, instance: str) -> bool:
        """Note which start of the driver it is; return whether that is another one than before."""
        before = self._instance
        # One that is not loaded tells nothing: what was before it is compared with what comes next.
        self._instance = instance or before
        return bool(before and instance and before != instance)

    def absorb(self) -> None:
        """Take over the incidents that another plugin of this node has noted."""
        record = self._loaded(self._file.news)
        if record is None or not self._current(record):
            return
        incidents = {
            uuid: [one for one in known.conditions if one.incident]
            for uuid, known in record.gpus.items()
        }
        self.note({uuid: found for uuid, found in incidents.items() if found})

    def save(self) -> None:
        """Write it down where that was not done yet; a failure is said, and tried again."""
        # What another plugin has written since is not lost by that.
        self.absorb()
        with self._io:
            with self._lock:
                gpus = {u: Known(s.gpu, s.conditions) for u, s in self._states.items()}
            try:
                self._file.save(Record(self._boot, self._instance, gpus))
            except StorageError as error:
                self._trouble.begin(str(error), str(error))
            else:
                self._trouble.end()

    def _over(self, uuid: GpuUuid, quiet_s: float) -> bool:
        state = self._states.get(uuid)
        return (
            state is not None
            and state.present
            and self._clock() - state.quiet_since >= quiet_s
            and any(one.incident for one in state.conditions)
            and not condition.bad(condition.recovered(state.conditions))
        )

    def _set(self, uuid: GpuUuid, after: Conditions) -> list[Change]:
        state = self._states[uuid]
        before, state.conditions = state.conditions, after
        return [_change(uuid, before, after)]

    def _loaded(self, read: Callable[[], Record | None]) -> Record | None:
        with self._io:
            try:
                return read()
            except StorageError as error:
                self._trouble.begin(str(error), str(error))
                return None

    def _current(self, record: Record) -> bool:
        if record.boot != self._boot:
            return False
        return not record.driver or not self._instance or record.driver == self._instance

    def _tell(self, found: Iterable[Change]) -> None:
        changes = [change for change in found if change.begun or change.ended]
        if not changes:
            return
        for change in changes:
            for one in change.begun:
                _say(change.gpu, one, "a GPU is unhealthy")
            for one in change.ended:
                _LOG.info("a GPU is well again", extra={"gpu": change.gpu, "reason": one.name})
        # First on disk, then told: a taint that is published outlives this process.
        self.save()
        self._on_change(changes)


def _is_held(one: Condition, state: _State, now: float) -> bool:
    note = one.level is condition.Level.NOTE and not one.incident
    return note and now - state.read_at.get(one.name, -math.inf) < _NOTE_S


def _change(uuid: GpuUuid, before: Conditions, after: Conditions) -> Change:
    old, new = ({one.name for one in conditions} for conditions in (before, after))
    return Change(
        uuid,
        begun=tuple(one for one in after if one.name not in old),
        ended=tuple(one for one in before if one.name not in new),
    )


def _say(uuid: GpuUuid, one: Condition, what: str) -> None:
    level = logging.WARNING if one.level > condition.Level.NOTE else logging.INFO
    _LOG.log(level, what, extra={"gpu": uuid, "reason": one.name, "text": one.text})
