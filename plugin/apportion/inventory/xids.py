"""The driver's Xids: which GPUs are watched, and what it reported of them.

Part of the gate in nvml.py, whose lock is held for each call; an event set and its handles belong
to one start of NVML, and what is watched is watched again after the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.errors import NvmlDeviceError, NvmlError
from apportion.model import GpuUuid

_log = logging.getLogger("apportion.inventory")

_CRITICAL = 8
"""nvmlEventTypeXidCriticalError."""

_TIMEOUT = 10
# Others wait for the lock meanwhile; an event that is there is given at once (driver 580, H200).
_WAIT_MS = 0
# Should the driver ever have events without end.
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """An Xid, and the GPU that it is of; None where that cannot be told."""

    uuid: GpuUuid | None
    xid: int


class Xids:
    """What is watched, and the events that nobody has taken yet."""

    def __init__(self, call: Callable[..., Any], handle: Callable[[GpuUuid], Any]) -> None:
        """Watch nothing yet.

        Args:
            call: calls NVML: what for, function, arguments; raises NvmlError.
            handle: NVML's handle of a GPU; raises NvmlError.
        """
        self._call, self._handle = call, handle
        self._set: Any = None
        self._watched: dict[GpuUuid, bool] = {}
        self._by_address: dict[int | None, GpuUuid] = {}
        self._events: list[Event] = []

    def watch(self, uuids: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
        """Watch these GPUs; return those of which the driver reports nothing."""
        for uuid in uuids:
            if not self._watched.get(uuid):
                self._watched[uuid] = self._register(uuid)
        return tuple(uuid for uuid in uuids if not self._watched[uuid])

    def take(self) -> list[Event]:
        """Return what was reported since the last time. Raises NvmlError."""
        self._fetch()
        taken, self._events = self._events, []
        return taken

    def pause(self) -> None:
        """Let go of the event set before NVML ends; what it holds is kept."""
        if self._set is None:
            return
        with contextlib.suppress(NvmlError):
            self._fetch()
        with contextlib.suppress(NvmlError):
            self._call("Xids", "nvmlEventSetFree", self._set)
        self._set = None
        self._by_address.clear()
        self._watched = dict.fromkeys(self._watched, False)

    def resume(self) -> None:
        """Watch again what was watched before NVML ended."""
        self.watch(tuple(self._watched))

    def _register(self, uuid: GpuUuid) -> bool:
        try:
            if self._set is None:
                self._set = self._call("Xids", "nvmlEventSetCreate")
            handle = self._handle(uuid)
            self._call(uuid, "nvmlDeviceRegisterEvents", handle, _CRITICAL, self._set)
        except NvmlDeviceError as error:
            _log.debug("Xids are not reported", extra={"gpu": uuid, "error": str(error)})
            return False
        # A GPU that is lost tells no UUID any more: its handle must be known before.
        self._by_address[_address(handle)] = uuid
        return True

    def _fetch(self) -> None:
        while self._set is not None and len(self._events) < _MOST:
            try:
                found = self._call("Xids", "nvmlEventSetWait_v2", self._set, _WAIT_MS)
            except NvmlError as error:
                if error.code == _TIMEOUT:
                    return
                raise
            if found.eventType == _CRITICAL:
                uuid = self._by_address.get(_address(found.device))
                self._events.append(Event(uuid, int(found.eventData)))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
