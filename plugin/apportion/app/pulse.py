"""Whether the GPUs are still looked at: a driver that hangs answers neither well nor badly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from apportion import log

_LOG = logging.getLogger(__name__)

# Longer than the self-test may take, which is part of a scan.
_SLOW_S = 75.0
_INTERVALS, _MORE_S = 3, 60.0


class Pulse:
    """When scans began and ended; one thread scans, any thread may ask.

    Args:
        interval_s: time between scans.
        clock: seconds, monotonic.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = _INTERVALS * interval_s + _MORE_S
        self._clock = clock
        self._good_at = clock()
        self._began_at: float | None = None
        self._trouble = log.Trouble(_LOG, "GPUs are not looked at")
        self.good = False
        self.begun = False
        self.looked = threading.Event()
        """Set by each end of a scan."""

    @property
    def fresh(self) -> bool:
        """Whether the last good scan is of late."""
        return self._clock() - self._good_at <= self._limit

    @property
    def hangs(self) -> bool:
        """Whether a scan lasts longer than any that gets answers."""
        began = self._began_at
        return began is not None and self._clock() - began > _SLOW_S

    def beat(self, scan: Callable[[], bool]) -> None:
        """Scan; `scan` says whether it went well."""
        self.begun = True
        self._began_at = self._clock()
        try:
            self.good = scan()
        finally:
            self._began_at = None
        if self.good:
            self._good_at = self._clock()
        self.looked.set()

    def check(self) -> None:
        """Say it once when a scan hangs, and once when that is over."""
        if self.hangs:
            self._trouble.begin(
                "hangs",
                f"NVML does not answer for more than {_SLOW_S:.0f} s; shares that run go on; does "
                "nvidia-smi answer on the node? If it does not either, the node needs a reboot",
            )
        else:
            self._trouble.end()
