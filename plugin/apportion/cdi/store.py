"""CDI specs on disk: written whole or not at all, and only ours are ever touched."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion import files, names
from apportion.model import ClaimUid


class CdiStore:
    """The specs of this driver.

    Args:
        folder: where the container runtime looks, for example /var/run/cdi.
        driver: name of the DRA driver.
    """

    def __init__(self, folder: Path, driver: str) -> None:
        self.folder = folder
        self._driver = driver
        self._driver_path = folder / names.driver_spec_file(driver)
        self._mutex = threading.Lock()
        self._written: tuple[Mapping[str, Any], object] | None = None

    def write_claim(self, uid: ClaimUid, spec: Mapping[str, Any]) -> None:
        """Write the claim's spec over what is there.

        Raises:
            StorageError: what was there is still there.
        """
        files.make_folder(self.folder)
        files.write(self.claim_path(uid), _encode(spec))

    def keep_claim(self, uid: ClaimUid, spec: Mapping[str, Any]) -> bool:
        """Write the claim's spec unless exactly this one lies there; return whether it did.

        Raises:
            StorageError: it cannot be read or written.
        """
        if files.read(self.claim_path(uid)) == _encode(spec):
            return False
        self.write_claim(uid, spec)
        return True

    def write_driver(self, spec: Mapping[str, Any]) -> None:
        """Write the static spec unless exactly this one lies there.

        Runtimes read all specs again at every write, so nothing is written in vain; when nothing
        touched the file since the last look, and `spec` is the same object, it costs one stat.

        Raises:
            StorageError: it cannot be read or written.
        """
        path = self._driver_path
        with self._mutex:
            last = self._written
            if last is not None and last[0] is spec and last[1] == _fingerprint(path):
                return
            data = _encode(spec)
            if files.read(path) != data:
                files.make_folder(self.folder)
                files.write(path, data)
            self._written = (spec, _fingerprint(path))

    def remove_claim(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; none there is success. Raises StorageError."""
        files.remove(self.claim_path(uid))

    def remove_driver(self) -> None:
        """Remove the static spec; none there is success. Raises StorageError."""
        with self._mutex:
            self._written = None
            files.remove(self._driver_path)

    def claims(self) -> frozenset[ClaimUid]:
        """Return the claims that have a spec of ours. Raises StorageError."""
        prefix, suffix = names.claim_spec_file(self._driver, ClaimUid("\n")).split("\n")
        found = (
            name.removeprefix(prefix).removesuffix(suffix)
            for name in files.listing(self.folder)
            if name.startswith(prefix) and name.endswith(suffix)
        )
        return frozenset(ClaimUid(uid) for uid in found if names.is_uid(uid))

    def sweep(self) -> tuple[str, ...]:
        """Remove temporary files of ours that a dead plugin left; return their names."""
        return files.sweep(self.folder, f"k8s.{self._driver}-")

    def claim_path(self, uid: ClaimUid) -> Path:
        """Return the path of a claim's spec."""
        return self.folder / names.claim_spec_file(self._driver, uid)


def _encode(spec: Mapping[str, Any]) -> bytes:
    return json.dumps(spec, separators=(",", ":")).encode() + b"\n"


def _fingerprint(path: Path) -> object:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - on the hot path
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
