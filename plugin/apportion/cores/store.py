"""The schedules of this node's shares: read from their files, changed in place, never overlapping.

What lies in the share folders is the state; this keeps it in memory for as long as the token in the
lock file is the one that was read or written last, as the ledger of claims does. Containers have
the files mapped, so they are written in place: first the state that is not in force, then the
generation, which puts it in force.

Source: shim/include/apportion/schedule.h.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from apportion import files, locks
from apportion.cores import layout, slots
from apportion.cores.layout import State
from apportion.errors import ApportionError, EnforcementError, StorageError
from apportion.model import Allowance, CoresMode, CoresPolicy, GpuUuid, Share, ShareKey
from apportion.tokens import Token

SCHEDULE = "schedule"
"""Name of the file in a share's folder."""

_LOG = logging.getLogger("apportion.cores")


def is_scheduled(mode: CoresMode, cores: int) -> bool:
    """Return whether a share has a schedule: one that may run at all times needs none."""
    return mode is CoresMode.TIMESLICE and cores < slots.CELLS


@dataclass(frozen=True, slots=True)
class Entry:
    """One share's part of its GPU.

    Attributes:
        cores: percent.
        burst: whether it may use what others do not.
        state: what its file says; None: that is missing or damaged.
        gone: its file is not there. Programs that run have it all the same, and keep to what it
            said last, which `state` is where it is still known.
    """

    cores: int
    burst: bool
    state: State | None
    gone: bool = False


Gpu = dict[ShareKey, Entry]
"""The shares of one GPU that have a schedule."""


class Schedules:
    """All schedules; safe to call from many threads, and from two plugins at once.

    Args:
        folder: the share folders, by key.
        lock: the lock file.
        period: of a GPU, in nanoseconds: a multiple of 100.
        allowances: what the share folders allow now.
        claimed: the shares of claims that are here. They are asked for only where a folder has a
            schedule and no limits that can be read: its slot is taken all the same.
    """

    def __init__(
        self,
        folder: Path,
        lock: Path,
        *,
        period: Callable[[GpuUuid], int],
        allowances: Callable[[], Iterable[Allowance]],
        claimed: Callable[[], Iterable[Share]] = tuple,
    ) -> None:
        self.period = period
        self._folder, self._lock = folder, lock
        self._allowances, self._claimed = allowances, claimed
        self._gpus: dict[GpuUuid, Gpu] = {}
        self._token = Token(lock)
        self._whole = True
        self._file = -1  # the open lock file, of who holds it

    @contextlib.contextmanager
    def room(self, share: Share) -> Iterator[bytes]:
        """Hold the GPU's time while the share's folder is made; give its schedule's content.

        Others may move for it. Empty: the share is here already, and its schedule is in order if
        it has one.

        Raises:
            EnforcementError: there is not enough time left.
            StorageError: a schedule could not be read or written.
        """
        with self.held() as gpus:
            gpu = gpus.setdefault(share.uuid, {})
            self._mend(share.uuid, gpu)
            path = self._folder / share.key
            if path.is_dir() and not path.is_symlink():
                yield b""
                return
            state = self._place(share.key, share.uuid, gpu, share.capacity.cores)
            yield layout.fresh(state)
            burst = share.policy is CoresPolicy.BURST
            gpu[share.key] = Entry(share.capacity.cores, burst, state)

    @contextlib.contextmanager
    def leaving(self, key: ShareKey) -> Iterator[None]:
        """Hold the time of all GPUs while a share's folder is removed. Raises StorageError."""
        known = any(key in gpu for gpu in tuple(self._gpus.values()))
        if not known and not os.path.lexists(self._folder / key / SCHEDULE):
            yield
            return
        with self.held() as gpus:
            self._token.renew(self._file)
            yield
            for gpu in gpus.values():
                gpu.pop(key, None)

    def restore(self) -> dict[ShareKey, str]:
        """Look at all files anew; mend what is damaged, and give every GPU its period.

        Returns:
            What was wrong with which share, for a person. Where a file is not there any more
            nothing can be mended: running programs have the old one mapped.

        Raises:
            StorageError: a schedule could not be read or written.
        """
        mended: dict[ShareKey, str] = {}
        with self.held(anew=True) as gpus:
            for uuid, gpu in gpus.items():
                mended |= self._mend(uuid, gpu)
        return mended

    @contextlib.contextmanager
    def held(self, *, anew: bool = False) -> Iterator[dict[GpuUuid, Gpu]]:
        """Hold the time of all GPUs, and give what is true while it is held.

        Args:
            anew: read all files, whatever is known of them.

        Raises:
            StorageError: the lock or a folder cannot be read.
        """
        files.make_folder(self._lock.parent)
        with locks.held_file(self._lock, 0) as self._file:
            holds = self._token.holds(self._file)
            if anew or not holds:
                self._gpus = self._read(self._gpus if holds else {})
                self._token.take(self._file)
            self._whole = True
            try:
                yield self._gpus
            except BaseException:
                self._whole = False
                raise
            finally:
                # Half of a change may be there. At the end, for each write renews the token.
                if not self._whole:
                    self._token.forget()

    def write(self, gpu: Gpu, key: ShareKey, state: State) -> None:
        """Put a state in force; the GPU's time is held. Raises StorageError."""
        path = self._folder / key / SCHEDULE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _write(fd, state)
            finally:
                os.close(fd)
        except OSError as error:
            raise files.storage_error("write", path, error) from error
        gpu[key] = replace(gpu[key], state=state)

    def _place(self, key: ShareKey, uuid: GpuUuid, gpu: Gpu, cores: int) -> State:
        """Make room for a share, and return its state, which is not written yet."""
        period = self.period(uuid)
        others = {other: each for other, each in gpu.items() if other != key}
        taken = {other: each.state.slot for other, each in others.items() if each.state}
        gone = {other: each for other, each in others.items() if each.gone}
        lost = [slots.cells_of(each.cores) for each in gone.values() if each.state is None]
        try:
            placement = slots.place(taken, slots.cells_of(cores), fixed=gone.keys(), lost=lost)
        except slots.NoRoomError as error:
            raise EnforcementError(
                f"GPU {uuid} has not enough time left: {error} (a share of 0 cores takes 1 %); "
                f"delete the pods {_whose(gone)} and the scheduler allocates anew"
            ) from error
        self._token.renew(self._file)
        # First taken away, then given: what was lent may be what the new one gets.
        for other, entry in others.items():
            if entry.burst and entry.state is not None and not entry.gone:
                self.write(gpu, other, State(period, entry.state.slot))
        for name, slot in placement.moves:
            self.write(gpu, ShareKey(name), State(period, slot))
            _LOG.info("a share's slot moved", extra={"share": name, "uuid": uuid})
        return State(period, placement.slot)

    def _mend(self, uuid: GpuUuid, gpu: Gpu) -> dict[ShareKey, str]:
        period = self.period(uuid)
        mended: dict[ShareKey, str] = {}
        # Few, if any: this is done with each Prepare, for all shares of the GPU.
        odd = [k for k, each in gpu.items() if each.state is None or each.state.period != period]
        for key in sorted(odd):
            if gpu[key].gone:
                continue
            try:
                mended |= self._mend_one(key, uuid, gpu, period)
            except ApportionError as error:
                # Its own trouble: the others have their time all the same.
                self._whole = False
                _LOG.error("cannot mend a schedule: %s", error, extra={"share": key, "uuid": uuid})
        return mended

    def _mend_one(self, key: ShareKey, uuid: GpuUuid, gpu: Gpu, period: int) -> dict[ShareKey, str]:
        entry = gpu[key]
        if entry.state is None:
            self.write(gpu, key, self._place(key, uuid, gpu, entry.cores))
            return {key: f"the schedule of share {key} was damaged; it was given a new slot"}
        self._token.renew(self._file)
        self.write(gpu, key, State(period, entry.state.slot))
        _LOG.info(
            "the period of a GPU changed for a share",
            extra={"share": key, "uuid": uuid, "period_ms": period / 1e6},
        )
        return {}

    def _read(self, before: Mapping[GpuUuid, Gpu]) -> dict[GpuUuid, Gpu]:
        """Return what the files say, and of those that are gone what was known `before`."""
        found: dict[GpuUuid, Gpu] = {}
        for key, uuid, cores, burst in self._scheduled():
            gpu = found.setdefault(uuid, {})
            gone = not os.path.isfile(self._folder / key / SCHEDULE)  # noqa: PTH113 - never raises
            last = before.get(uuid, {}).get(key)
            state = self.of(key)
            if gone and last is not None:
                state = last.state
            if state is not None:
                others = {key: each.state.slot for key, each in gpu.items() if each.state}
                whole = state.slot.cells == slots.cells_of(cores)
                state = state if whole and slots.fits(others, state.slot) else None
            gpu[key] = Entry(cores, burst, state, gone)
        return found

    def _scheduled(self) -> Iterator[tuple[ShareKey, GpuUuid, int, bool]]:
        """Yield all shares that have a slot: key, GPU, cores, whether they may burst."""
        allowances = tuple(self._allowances())
        for each in allowances:
            if is_scheduled(each.mode, each.capacity.cores):
                yield each.key, each.uuid, each.capacity.cores, each.policy is CoresPolicy.BURST
        unread = {name for name in files.listing(self._folder) if not name.startswith(".")}
        unread -= {each.key for each in allowances}
        with_slot = {name for name in unread if os.path.lexists(self._folder / name / SCHEDULE)}
        for share in self._claimed() if with_slot else ():
            if share.key in with_slot:
                burst = share.policy is CoresPolicy.BURST
                yield share.key, share.uuid, share.capacity.cores, burst

    def of(self, key: ShareKey) -> State | None:
        """Return what a share's schedule says now, None where it has none or it is damaged."""
        try:
            return layout.unpack(files.read(self._folder / key / SCHEDULE) or b"")
        except StorageError:
            return None


def _whose(gone: Iterable[ShareKey]) -> str:
    """Return whose pods to delete: rather of those that are in trouble."""
    names = ", ".join(sorted(gone))
    return f"that use the shares without a schedule ({names})" if names else "of one of its claims"


def _write(fd: int, state: State) -> None:
    data = os.pread(fd, layout.SIZE + 1, 0)
    now = layout.generation(data)
    if now is None:
        # Whoever has it mapped knows a generation, which this one must not be.
        now = time.monotonic_ns()
        fresh = layout.fresh(state, now + 1)
        os.ftruncate(fd, layout.SIZE)
        os.pwrite(fd, bytes(layout.GENERATION.size), layout.GENERATION_OFFSET)
        for start, end in ((0, layout.GENERATION_OFFSET), (layout.HEADER.size, layout.SIZE)):
            os.pwrite(fd, fresh[start:end], start)
    else:
        os.pwrite(fd, layout.pack(state), layout.offset(now + 1))
    os.pwrite(fd, layout.GENERATION.pack(now + 1), layout.GENERATION_OFFSET)
