"""Which claims were told something: on disk, so that a crash leaves no claim with old words."""

from __future__ import annotations

import json
from pathlib import Path

from apportion import files, names
from apportion.errors import StorageError
from apportion.model import ClaimRef, ClaimUid


class Marks:
    """A file for each claim that was told something, removed when nothing is left of it.

    Nothing is kept in memory: another plugin of this node may have told a claim, too.

    Args:
        folder: where they lie, by UID.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def uids(self) -> frozenset[ClaimUid]:
        """Return the claims. Raises StorageError."""
        return frozenset(
            ClaimUid(name) for name in files.listing(self._folder) if names.is_uid(name)
        )

    def has(self, uid: ClaimUid) -> bool:
        """Return whether the claim was told something."""
        return (self._folder / uid).exists()

    def find(self, uid: ClaimUid) -> ClaimRef | None:
        """Return which claim it is, None where there is no mark that can be read."""
        try:
            content = json.loads(files.read(self._folder / uid) or b"")
            return ClaimRef(uid, str(content["namespace"]), str(content["name"]))
        except (ValueError, KeyError, TypeError, RecursionError, StorageError):
            return None

    def add(self, ref: ClaimRef) -> None:
        """Mark a claim, before it is told something. Raises StorageError."""
        if not self.has(ref.uid):
            files.make_folder(self._folder)
            content = {"namespace": ref.namespace, "name": ref.name}
            files.write(self._folder / ref.uid, json.dumps(content).encode())
            # Unlike all else it counts after a boot, too.
            files.sync_folder(self._folder)

    def remove(self, uid: ClaimUid) -> None:
        """Forget a claim; unknown is success. Raises StorageError."""
        files.remove_whatever(self._folder / uid)
