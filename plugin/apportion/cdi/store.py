"""CDI specs on disk: written whole or not at all, and only ours are ever touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.model import ClaimUid


class CdiStore:
    """The specs of this driver.

    Args:
        folder: where the container runtime looks, for example /var/run/cdi.
        driver: name of the DRA driver.
    """

    def __init__(self, folder: Path, driver: str) -> None:
        self.folder = folder

    def write_claim(self, uid: ClaimUid, spec: Mapping[str, Any]) -> None:
        """Write the claim's spec over what is there. Raises StorageError."""
        raise AssertionError("being written")

    def write_driver(self, spec: Mapping[str, Any]) -> None:
        """Write the static spec unless exactly this one lies there untouched."""
        raise AssertionError("being written")

    def remove_claim(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; none there is success. Raises StorageError."""
        raise AssertionError("being written")

    def claims(self) -> frozenset[ClaimUid]:
        """Return the claims that have a spec of ours."""
        raise AssertionError("being written")

    def sweep(self) -> None:
        """Remove temporary files that a dead plugin left."""
        raise AssertionError("being written")
