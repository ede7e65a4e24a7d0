"""Locks that the kernel releases when their holder dies: open file description byte ranges.

They hold between threads of one process as well as between plugins of a rolling update, they wait
without polling, and a range of one file is one lock: no file per lock.
Source: fcntl(2), "Open file description locks"; struct flock of 64-bit Linux.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from apportion.errors import StorageError

# l_type, l_whence, (hole), l_start, l_len, l_pid, (hole). l_pid is 0 for these locks.
_FLOCK = struct.Struct("@hhqqi4x")

# Locks by name lie from here on; the bytes below are for locks by number.
_NAMES = 1 << 32


def byte_of(name: str) -> int:
    """Return the byte to lock for `name`, never below 2**32.

    Two names can fall on one byte; then they wait for each other, which is slow and not wrong. A
    thread must therefore never hold two names of one file.
    """
    return _NAMES + zlib.crc32(name.encode())


@contextlib.contextmanager
def held(path: Path, start: int, *, wait: bool = True) -> Iterator[bool]:
    """Hold one byte of the lock file `path` until the block ends; make the file if needed.

    Args:
        path: the lock file; its content is not touched.
        start: which byte; it may lie beyond the end of the file.
        wait: False gives False at once when somebody else has it.

    Yields:
        whether the lock is held.

    Raises:
        StorageError: the file cannot be opened or locked.
    """
    fd = _open(path)
    try:
        yield _acquire(fd, start, wait=wait, path=path)
    finally:
        os.close(fd)


@contextlib.contextmanager
def held_file(path: Path, start: int) -> Iterator[int]:
    """Hold one byte as `held` does, waiting for it, and give the open file to read and write."""
    fd = _open(path)
    try:
        _acquire(fd, start, wait=True, path=path)
        yield fd
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(
            f"cannot open the lock {path}: {error.strerror}; check the folder's permissions"
        ) from error


def _acquire(fd: int, start: int, *, wait: bool, path: Path) -> bool:
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(fd, command, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0))
    except OSError as error:
        if not wait and error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise StorageError(
            f"cannot lock {path}: {error.strerror}; it must lie on a local file system"
        ) from error
    return True


def is_held(fd: int, start: int, length: int) -> bool:
    """Return whether somebody holds a lock on any of the `length` bytes from `start`.

    Only locks of other open file descriptions count. Raises OSError.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
