"""The path of a claim on its node: resolve, reserve, enforce, CDI, commit; undo in reverse."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from apportion.cdi.store import CdiStore
from apportion.config import Config
from apportion.enforce import Enforcer
from apportion.ledger.store import Store
from apportion.model import ClaimOutcome, ClaimRef, Device, DeviceName, DriverFiles, GpuUuid


class Preparer:
    """Prepares and unprepares claims; safe to call from many threads.

    Args:
        config: the settings; `driver_name` and `node_name` (the pool) are used here.
        fetch: reads a ResourceClaim from the API server by namespace and name.
        devices: what is published now, by name.
        store: the claims on disk.
        cdi: the specs on disk.
        enforcer: holds the shares to their limits.
        driver_files: finds the driver's files (cdi.files.DriverFinder).
        clock: seconds, for the milliseconds in the logs.
    """

    def __init__(
        self,
        *,
        config: Config,
        fetch: Callable[[ClaimRef], dict[str, Any]],
        devices: Callable[[], Mapping[DeviceName, Device]],
        store: Store,
        cdi: CdiStore,
        enforcer: Enforcer,
        driver_files: Callable[[], DriverFiles],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config

    def ready(self, uuid: GpuUuid) -> None:
        """Prove before anything is published that shares can be prepared on this node.

        Finds the driver's files, installs the front libraries, runs the self-test on GPU `uuid`
        and writes the static CDI spec. Cheap when nothing changed: call it with every scan.

        Raises:
            EnforcementError: the driver's files are missing, or shares would not be enforced.
            StorageError: libraries or spec could not be written.
        """
        raise AssertionError("being written")

    def prepare(self, ref: ClaimRef) -> ClaimOutcome:
        """Prepare one claim; the outcome has its devices or says what went wrong."""
        raise AssertionError("being written")

    def unprepare(self, ref: ClaimRef) -> ClaimOutcome:
        """Remove all that belongs to the claim; an unknown claim is success."""
        raise AssertionError("being written")

    def sweep(self, exists: Callable[[ClaimRef], bool | None]) -> None:
        """Remove what belongs to no claim, and never what a process uses.

        Args:
            exists: whether the API server has this claim, by name and UID; None: unknown, keep.
        """
        raise AssertionError("being written")
