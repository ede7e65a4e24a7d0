"""The health record on disk: taints outlive the plugin that found a reason for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from apportion import files
from apportion.errors import StateError, StorageError
from apportion.watch import record
from apportion.watch.record import Record

_LOG = logging.getLogger("apportion.watch")

_DAMAGED = ".damaged"


class HealthFile:
    """One file, replaced whole; two plugins that overlap in a rolling update share it.

    Args:
        folder: where it lies.
        on_damage: told of one that cannot be understood: what happened, and where it is now.
    """

    def __init__(self, folder: Path, on_damage: Callable[[str], None] = lambda _text: None) -> None:
        self.path, self._on_damage = folder / record.FILE, on_damage
        self._written = b""
        self._seen: tuple[int, int] | None = None

    def load(self) -> Record | None:
        """Return what is on record; None where nothing is.

        A file that cannot be understood is put aside and said to be: what it held is found again
        by looking, but for Xids.

        Raises:
            StorageError: it cannot be read.
        """
        data = files.read(self.path)
        self._seen = self._stamp()
        if data is None:
            return None
        try:
            return record.load(data)
        except StateError as error:
            aside = self.path.with_name(self.path.name + _DAMAGED)
            text = f"{error}; kept as {aside}, and begun anew: Xids of the past are forgotten"
            _LOG.error("%s", text)
            self._on_damage(text)
            self._put_aside(aside)
            return None

    def news(self) -> Record | None:
        """Return what another plugin has written since the last look; None: nothing."""
        return self.load() if self._stamp() not in (None, self._seen) else None

    def save(self, content: Record) -> None:
        """Write it down, if it is not on disk already. Raises StorageError."""
        data = record.dump(content)
        if data == self._written and self._stamp() == self._seen:
            return
        files.make_folder(self.path.parent, 0o750)
        files.write(self.path, data, 0o600)
        self._written, self._seen = data, self._stamp()

    def _put_aside(self, aside: Path) -> None:
        try:
            self.path.replace(aside)
        except OSError as error:
            raise files.storage_error("rename", self.path, error) from error
        self._seen = None

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def read(folder: Path) -> Record | None:
    """Return the record in a plugin's folder, changing nothing; None where there is none.

    Raises:
        StateError: it is damaged.
        StorageError: it cannot be read.
    """
    data = files.read(folder / record.FILE)
    return None if data is None else record.load(data)


__all__ = ["HealthFile", "StorageError", "read"]
