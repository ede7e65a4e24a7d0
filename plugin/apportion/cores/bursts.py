"""Lending: shares with the policy burst may use, for a moment, what nobody else does.

Whoever has not asked for time for two periods lends its slot, and time that nobody has is lent as
well. Guests hold for a period and a half and are renewed twice a period, so the owner gets its slot
back within one period when it wants again, and all of it ends by itself when the plugin does.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from apportion.cores import slots
from apportion.cores.layout import State
from apportion.cores.slots import Member
from apportion.cores.store import Gpu, Schedules
from apportion.model import GpuUuid, ShareKey

_IDLE_PERIODS = 2
_NS = 1_000_000_000
# While no share on the node may burst; one that is new waits for its container much longer.
_NOBODY_S = 2.0
_WANTED = struct.Struct("<Q")


class Bursts:
    """Lends what is idle on all GPUs; one thread calls it.

    Args:
        schedules: the slots.
        ledger: where a share's ledger lies.
        wanted_at: where in it the time of the last launch or wait is.
        clock: CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(
        self,
        schedules: Schedules,
        *,
        ledger: Callable[[ShareKey], Path],
        wanted_at: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._schedules, self._ledger = schedules, ledger
        self._at, self._clock = wanted_at, clock
        self._open: dict[ShareKey, int] = {}

    def step(self) -> float:
        """Look at all GPUs once; return the seconds until the next look.

        Raises:
            StorageError: a schedule could not be read or written.
        """
        wait = _NOBODY_S
        with self._schedules.held() as gpus:
            bursting = {uuid: gpu for uuid, gpu in gpus.items() if _may_burst(gpu)}
            self._forget({key for gpu in bursting.values() for key in gpu})
            for uuid, gpu in bursting.items():
                wait = min(wait, self._lend(uuid, gpu) / 2 / _NS)
        return wait

    def close(self) -> None:
        """Close what is open; what is lent ends by itself."""
        self._forget(set())

    def _lend(self, uuid: GpuUuid, gpu: Gpu) -> int:
        """Lend on one GPU; return its period."""
        states = {key: entry.state for key, entry in gpu.items() if entry.state is not None}
        period = self._schedules.period(uuid)
        unknown = len(states) != len(gpu) or any(entry.gone for entry in gpu.values())
        if unknown or any(state.period != period for state in states.values()):
            # The next sweep mends it; until then nobody knows whose time is whose.
            return period
        now = self._clock()
        members = {
            key: Member(
                slot=state.slot,
                cores=gpu[key].cores,
                burst=gpu[key].burst,
                wants=self._wants(key, now - _IDLE_PERIODS * period),
            )
            for key, state in states.items()
        }
        lent = slots.lend(members)
        for key, state in states.items():
            guests = lent.get(key, ())
            fresh = state.guest_until - now >= period * 3 // 4
            if guests != state.guests or (guests and not fresh):
                until = now + period + period // 2
                self._schedules.write(gpu, key, State(period, state.slot, guests, until))
        return period

    def _wants(self, key: ShareKey, since: int) -> bool:
        """Return whether a share asked for time after `since`; who cannot be asked keeps its own.

        The ledger is the tenant's to write: one that lies lends its own time or keeps it.
        """
        try:
            if key in self._open and os.fstat(self._open[key]).st_nlink == 0:
                # The share was made anew under its key.
                os.close(self._open.pop(key))
            fd = self._open.get(key)
            if fd is None:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                fd = self._open[key] = os.open(self._ledger(key), flags)
            data = os.pread(fd, _WANTED.size, self._at)
        except OSError:
            return True
        return len(data) != _WANTED.size or bool(_WANTED.unpack(data)[0] >= since)

    def _forget(self, but: set[ShareKey]) -> None:
        for key in self._open.keys() - but:
            with contextlib.suppress(OSError):
                os.close(self._open.pop(key))


def _may_burst(gpu: Gpu) -> bool:
    return any(entry.burst for entry in gpu.values())
