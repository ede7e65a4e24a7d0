"""The front libraries on the host: one folder per build, checked by content, never overwritten.

Containers hold the files of the build they were started with; a new build is a new folder, so an
update never changes a library under a running process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import threading
from pathlib import Path

from apportion import files
from apportion.errors import EnforcementError

_LOG = logging.getLogger("apportion.enforce")

FILES = ("apportion-ldcache", "ldconfig", "libcuda.so.1", "libnvidia-ml.so.1")
"""What is installed: the hook, the ldconfig it runs, and the two front libraries."""

_MODE = 0o755
_BUILD_DIGITS = 16

_Fingerprint = tuple[int, int, int, int]


class Library:
    """The files of one build, from the plugin's image to the host.

    Args:
        source: where the image has them.
        target: folder on the host for all builds; it has the same path in the plugin's container.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._digests: dict[str, str] = {}
        self._verified: dict[str, _Fingerprint] = {}
        self._hold: int | None = None
        self._mutex = threading.Lock()

    @property
    def build(self) -> str:
        """Identity of the build: 16 hexadecimal digits over names and contents.

        Raises:
            EnforcementError: a file is missing from the image.
        """
        if not self._digests:
            self._digests = {name: _digest(self._original(name)) for name in FILES}
        whole = "".join(f"{name} {self._digests[name]}\n" for name in FILES)
        return hashlib.sha256(whole.encode()).hexdigest()[:_BUILD_DIGITS]

    @property
    def folder(self) -> Path:
        """Folder of this build on the host."""
        return self._target / self.build

    def ensure(self) -> None:
        """Return when all files are installed as the image has them; repairs what is not.

        Costs four stat calls when nothing changed since the last check by content.

        Raises:
            EnforcementError: the image lacks a file.
            StorageError: a file cannot be written.
        """
        with self._mutex:
            folder = str(self.folder)
            for name in FILES:
                fingerprint = _fingerprint(f"{folder}/{name}")
                if fingerprint is None or self._verified.get(name) != fingerprint:
                    self._ensure_one(Path(folder, name))
            self._keep(folder)

    def sweep(self, keep: frozenset[str]) -> tuple[str, ...]:
        """Remove builds that nobody refers to; return their names.

        Args:
            keep: builds that records refer to. Builds of a plugin that lives stay as well.
        """
        removed = []
        for name in files.listing(self._target):
            path = self._target / name
            if name in keep or name == self.build or not path.is_dir() or _is_kept(path):
                continue
            shutil.rmtree(path, ignore_errors=True)
            removed.append(name)
        if (self._target / self.build).exists():
            files.sweep(self._target / self.build)
        return tuple(removed)

    def _original(self, name: str) -> bytes:
        data = files.read(self._source / name)
        if data is None:
            raise EnforcementError(
                f"{self._source / name} is missing from the plugin's image; "
                "use an image built by the Dockerfile, or set shim_dir"
            )
        return data

    def _ensure_one(self, path: Path) -> None:
        name = path.name
        found = files.read(path)
        if found is None or _digest(found) != self._digests[name]:
            if name in self._verified:
                _LOG.warning(
                    "%s was %s after the plugin installed it; installed again: look for who did it",
                    path,
                    "removed" if found is None else "changed",
                )
            data = self._original(name)
            if _digest(data) != self._digests[name]:
                raise EnforcementError(
                    f"{self._source / name} changed while the plugin runs; restart the plugin"
                )
            files.make_folder(path.parent)
            files.write(path, data, _MODE)
        fingerprint = _fingerprint(path)
        if fingerprint is None:
            raise EnforcementError(
                f"{path} vanished while it was checked; is something removing it?"
            )
        self._verified[name] = fingerprint

    def _keep(self, folder: str) -> None:
        """Hold the folder so that the sweep of another plugin sees that this one lives."""
        if self._hold is None or os.fstat(self._hold).st_nlink == 0:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._hold is not None:
                os.close(self._hold)
            self._hold = fd


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fingerprint(path: Path | str) -> _Fingerprint | None:
    """Return what changes with every change of content: the change time cannot be set."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - on the hot path
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _is_kept(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(fd)
        return False
    return True
