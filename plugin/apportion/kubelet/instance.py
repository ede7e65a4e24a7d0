"""What belongs to one process of the plugin: socket names, a lock, and who else is there.

Two pods of the plugin overlap during a rolling update, so sockets are named by pod UID. gRPC binds
over a live socket without a word, and the first server unlinks the second's socket when it stops
(measured): hence a lock per pod UID, held for the life of the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from apportion.errors import ConfigError, FatalError, StorageError

_LOG = logging.getLogger(__name__)

MAX_SOCKET_PATH = 107
"""Bytes in sockaddr_un.sun_path less the closing zero (unix(7))."""

# 32 random bits: enough to tell the two or three pods of one driver on one node apart.
_LEAST_ID = 8
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{8,32}"
_CONNECT_TIMEOUT_S = 1.0
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.2


@dataclass(slots=True)
class Instance:
    """Names and lock of one process; build with `instance`.

    Attributes:
        driver: name of the DRA driver.
        plugin_dir: folder of the DRA socket and of the lock.
        registry_dir: folder of the registration socket.
        identity: the pod's UID, or as much of it as fits into the socket paths.
    """

    driver: str
    plugin_dir: Path
    registry_dir: Path
    identity: str
    _lock: int | None = field(default=None, init=False)

    @property
    def dra_socket(self) -> Path:
        """Where kubelet calls Prepare and Unprepare."""
        return self.plugin_dir / f"dra-{self.identity}.sock"

    @property
    def registration_socket(self) -> Path:
        """Where kubelet finds the plugin."""
        return self.registry_dir / f"{self.driver}-{self.identity}-reg.sock"

    @property
    def lock_file(self) -> Path:
        """Locked for as long as this process lives."""
        return self.plugin_dir / f"dra-{self.identity}.lock"

    def acquire(self) -> None:
        """Make the folders and take the lock of this pod UID; the kernel lets go of it at exit.

        Raises:
            FatalError: another process runs with the same pod UID.
            StorageError: a folder or the lock file cannot be made.
        """
        try:
            self.plugin_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.registry_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._lock = self._try_lock()
        except OSError as error:
            raise StorageError(
                f"cannot prepare the plugin's folders: {error}; "
                "are plugins_dir and registry_dir kubelet's own and writable?"
            ) from error
        if self._lock is None:
            raise FatalError(
                f"another process of pod UID {self.identity} holds {self.lock_file}; "
                "stop it, or give this one a pod_uid of its own"
            )

    def _try_lock(self) -> int | None:
        """Take the lock; a sweep of another instance may hold it for a moment after a crash."""
        for _ in range(_LOCK_TRIES):
            handle = _locked(self.lock_file)
            if handle is not None:
                return handle
            time.sleep(_LOCK_PAUSE_S)
        return None

    def release(self) -> None:
        """Let go of the lock; nothing happens without one."""
        if self._lock is not None:
            self.lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def sweep(self) -> list[Path]:
        """Remove what dead instances of this driver left; return what was removed, sorted."""
        removed: list[Path] = []
        for identity in self._others():
            other = Instance(self.driver, self.plugin_dir, self.registry_dir, identity)
            with _dead(other) as dead:
                if dead:
                    removed += other._remove()
        if removed:
            _LOG.info("removed sockets of a dead instance", extra={"paths": _words(removed)})
        return sorted(removed)

    def others_alive(self) -> bool:
        """Return whether another instance of this driver serves kubelet on this node now."""
        return any(
            _listening(self.plugin_dir / f"dra-{identity}.sock") for identity in self._others()
        )

    def _others(self) -> list[str]:
        found = set()
        patterns = (
            (self.plugin_dir, re.compile(rf"dra-({_ID})\.(?:sock|lock)")),
            (self.registry_dir, re.compile(rf"{re.escape(self.driver)}-({_ID})-reg\.sock")),
        )
        for folder, pattern in patterns:
            with contextlib.suppress(FileNotFoundError):
                matches = (pattern.fullmatch(path.name) for path in folder.iterdir())
                found |= {match.group(1) for match in matches if match}
        return sorted(found - {self.identity})

    def _remove(self) -> list[Path]:
        removed = []
        for path in (self.dra_socket, self.registration_socket, self.lock_file):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                if path.suffix == ".sock":
                    removed.append(path)
        return removed


def instance(driver: str, plugin_dir: Path, registry_dir: Path, pod_uid: str) -> Instance:
    """Return the instance of this process, touching nothing.

    Args:
        driver: name of the DRA driver.
        plugin_dir: the plugin's own folder.
        registry_dir: kubelet's plugin registration folder.
        pod_uid: names the sockets; empty: a new one. Shortened when a path would be too long.

    Raises:
        ConfigError: even with a short UID a socket path would exceed MAX_SOCKET_PATH bytes.
    """
    whole = Instance(driver, plugin_dir, registry_dir, pod_uid or str(uuid.uuid4()))
    excess = _excess(whole)
    if excess <= 0:
        return whole
    digits = re.sub(r"[^0-9a-f]", "", whole.identity.lower()) or uuid.uuid4().hex
    keep = len(whole.identity) - excess
    if keep < _LEAST_ID or len(digits) < _LEAST_ID:
        raise ConfigError(
            f"the path of a socket such as {whole.registration_socket} may have "
            f"{MAX_SOCKET_PATH} bytes and has {excess} more; "
            "shorten driver_name, plugins_dir or registry_dir"
        )
    return Instance(driver, plugin_dir, registry_dir, digits[:keep])


def _excess(named: Instance) -> int:
    paths = (named.dra_socket, named.registration_socket)
    return max(len(os.fsencode(path)) for path in paths) - MAX_SOCKET_PATH


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock on `path`, None where somebody else holds it.

    A sweep may have unlinked the file between open and flock: such a lock would lock nothing.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    os.close(handle)
    return None


@contextlib.contextmanager
def _dead(other: Instance) -> Iterator[bool]:
    """Give whether `other` is dead; its lock is held meanwhile, so that it cannot start.

    Both must say so: a server between bind and listen refuses connections too, and a version of
    the plugin without a lock file still listens.
    """
    handle = _locked(other.lock_file)
    if handle is None:
        yield False
        return
    try:
        yield not _listening(other.dra_socket) and not _listening(other.registration_socket)
    finally:
        os.close(handle)


def _listening(path: Path) -> bool:
    """Return whether a process accepts connections at `path`; in doubt it does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}
        return True


def _words(paths: list[Path]) -> str:
    return " ".join(sorted(map(str, paths)))
