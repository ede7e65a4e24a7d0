"""Whether what was read of some files still holds: a token in their lock file says so.

Whoever changes the files renews the token before, under the lock, so a change is seen whether its
maker lives or died of it. Two plugins overlap in a rolling update; one of them learns so that the
other one changed something, without reading it all each time.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from apportion import files

_BYTES = 16


class Token:
    """The token in a lock file, and the one under which this process read the files last.

    Each call but `forget` takes the open lock file, on which the lock is held, and raises
    StorageError where it cannot be read or written.

    Args:
        path: the lock file, for errors.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = b""

    def holds(self, lock: int) -> bool:
        """Return whether nobody changed anything since `take` or `renew`."""
        found = self._read(lock)
        return found != b"" and found == self._known

    def take(self, lock: int) -> None:
        """Note that the files were read as they are now."""
        self._known = self._read(lock)

    def forget(self) -> None:
        """Note that what was read is not to be relied on."""
        self._known = b""

    def renew(self, lock: int) -> None:
        """Tell all others that the files change; this process knows how."""
        token = secrets.token_bytes(_BYTES)
        try:
            os.pwrite(lock, token, 0)
        except OSError as error:
            raise files.storage_error("write", self._path, error) from error
        self._known = token

    def _read(self, lock: int) -> bytes:
        try:
            return os.pread(lock, _BYTES, 0)
        except OSError as error:
            raise files.storage_error("read", self._path, error) from error
