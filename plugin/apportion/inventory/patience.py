"""A GPU that now and then does not answer is no GPU that went: its last reading stands a while."""

from __future__ import annotations

import logging

from apportion.inventory.scan import by_address
from apportion.model import Excluded, Gpu, GpuUuid, Inventory

_LOG = logging.getLogger("apportion.inventory")


class Patience:
    """What was read last of each GPU; not for use by several threads at once."""

    def __init__(self, scans: int) -> None:
        """Remember nothing yet.

        Args:
            scans: with how many in a row that a GPU does not answer it is taken for gone.
        """
        self._scans = scans
        self._known: dict[GpuUuid, Gpu] = {}
        self._missed: dict[GpuUuid, int] = {}

    def settle(self, found: Inventory) -> Inventory:
        """Return a scan's result with the last reading of GPUs that failed in a passing way."""
        known = {gpu.uuid: gpu for gpu in found.gpus}
        missed: dict[GpuUuid, int] = {}
        excluded: list[Excluded] = []
        for one in found.excluded:
            gpu = self._last(one)
            times = self._missed.get(gpu.uuid, 0) + 1 if gpu else self._scans
            if gpu is None or gpu.uuid in known or times >= self._scans:
                excluded.append(one)
                continue
            known[gpu.uuid], missed[gpu.uuid] = gpu, times
            if times == 1:
                _LOG.warning(
                    "a GPU does not answer; what was read of it last stands for now",
                    extra={"gpu": gpu.uuid, "reason": one.reason},
                )
        self._known, self._missed = known, missed
        return Inventory(tuple(sorted(known.values(), key=by_address)), tuple(excluded))

    def _last(self, excluded: Excluded) -> Gpu | None:
        """Return what was read last of a GPU; None unless it may answer again by itself."""
        if isinstance(excluded.passing, int):
            # Indices change only when NVML is started anew, and then all GPUs are read anew.
            matches = (gpu for gpu in self._known.values() if gpu.index == excluded.passing)
            return next(matches, None)
        return self._known.get(excluded.passing) if excluded.passing else None
