"""Files written whole or not at all, and errors of the file system in words.

Whole, also after a power cut; whether it is then the old file or the new one is sure only after
`sync_folder`, which what counts for one boot only does without: the cut ended that boot.

A temporary file is locked for as long as its writer lives, so what a dead one left is told apart
from what a living one writes without clocks or process numbers. Its name starts with a dot and ends
in `.tmp`: container runtimes read only `.json` and `.yaml`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from apportion.errors import StorageError

_SUFFIX = ".tmp"

TMPFS = 0x01021994
"""What kind_of_file_system says of a tmpfs (linux/magic.h)."""

_ADVICE = {
    errno.ENOSPC: "free space or inodes on this file system",
    errno.EDQUOT: "raise the quota or free space",
    errno.EROFS: "the file system is read-only: remount it, or set another folder",
    errno.EACCES: "the plugin must run as root; check the folder's owner, mode and labels",
    errno.EPERM: "the plugin must run as root; check for immutable files and labels",
    errno.ENOTSUP: "the file system takes no attributes, as a tmpfs does (CONFIG_TMPFS_XATTR)",
    errno.ENOENT: "the folder does not exist: mount it into the plugin's pod",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ELOOP: "it is a loop of links: remove it",
    errno.EAGAIN: "a process holds it by a lease: end that process",
    errno.EIO: "the disk fails: look at the kernel's log",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the node's limit of open files",
}


def storage_error(action: str, path: Path | str, error: OSError) -> StorageError:
    """Return the error to raise for `error`: what failed, where, why, and what to do.

    Args:
        action: a verb such as "write".
        path: what it was tried on.
        error: what the kernel said.
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = _ADVICE.get(error.errno or 0, "look at the node's kernel log")
    return StorageError(f"cannot {action} {path}: {reason}; {advice}")


class Staged:
    """A temporary file beside its target, complete and on disk; `publish` gives it its name."""

    def __init__(self, temporary: str, target: Path) -> None:
        self._temporary = temporary
        self._target = target
        self.published = False

    def publish(self) -> None:
        """Rename the file to its target."""
        try:
            os.rename(self._temporary, self._target)  # noqa: PTH104 - on the hot path
        except OSError as error:
            raise storage_error("write", self._target, error) from error
        self.published = True


@contextlib.contextmanager
def staged(target: Path, data: bytes, mode: int) -> Iterator[Staged]:
    """Write `data` beside `target` and to the disk; gone at the end of the block unless published.

    Raises:
        StorageError: nothing is left behind then.
    """
    temporary, fd = _create(target)
    stage = Staged(temporary, target)
    try:
        try:
            _fill(fd, data, mode)
        except OSError as error:
            raise storage_error("write", target, error) from error
        yield stage
    finally:
        if not stage.published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108 - on the hot path
        # Only now does the lock go: until here the file is somebody's.
        os.close(fd)


def _create(target: Path) -> tuple[str, int]:
    folder, name = os.path.split(target)
    while True:
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}{_SUFFIX}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error("write", target, error) from error
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return temporary, fd
        # A sweep saw it before it was locked.
        os.close(fd)


def _fill(fd: int, data: bytes, mode: int) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fchmod(fd, mode)
    os.fsync(fd)


def write(target: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `target` by `data`: temporary file, fsync, rename.

    Raises:
        StorageError: `target` is as it was, and nothing else is left.
    """
    with staged(target, data, mode) as stage:
        stage.publish()


def sync_folder(folder: Path) -> None:
    """Make renames and removals in `folder` durable. Raises StorageError."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error("write", folder, error) from error


def remove(target: Path) -> bool:
    """Remove a file; return whether it was there. Raises StorageError."""
    try:
        target.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        # A read-only file system refuses before it looks.
        if not os.path.lexists(target):
            return False
        raise storage_error("remove", target, error) from error
    return True


def remove_whatever(target: Path) -> bool:
    """Remove what has this name, a folder with all in it; return whether it was there.

    A link goes itself, never what it leads to. Raises StorageError.
    """
    if not target.is_dir() or target.is_symlink():
        return remove(target)
    try:
        shutil.rmtree(target)
    except OSError as error:
        raise storage_error("remove", target, error) from error
    return True


def read(path: Path) -> bytes | None:
    """Return the content of a file, None where it does not exist; never waits for anybody.

    Raises:
        StorageError: it cannot be read, or is no regular file: a pipe would hold its reader.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("read", path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError(f"cannot read {path}: it is no regular file; remove it")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise storage_error("read", path, error) from error
    finally:
        os.close(fd)


def listing(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where it does not exist. Raises StorageError."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error("read", folder, error) from error


def make_folder(folder: Path, mode: int = 0o755) -> None:
    """Make a folder and its parents where missing. Raises StorageError."""
    if os.path.isdir(folder):  # noqa: PTH112 - on the hot path
        return
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("make", folder, error) from error


def sweep(folder: Path, prefix: str = "") -> tuple[str, ...]:
    """Remove temporary files in `folder` whose writers are dead; return their names.

    Args:
        folder: where to look, not below it.
        prefix: only files that were meant to become `prefix…`.
    """
    return tuple(
        name
        for name in listing(folder)
        if name.startswith(f".{prefix}") and name.endswith(_SUFFIX) and _sweep_one(folder / name)
    )


def _sweep_one(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def kind_of_file_system(path: Path) -> int:
    """Return the number by which statfs(2) names the kind of file system. Raises StorageError."""
    libc = ctypes.CDLL(None, use_errno=True)
    about = (ctypes.c_long * 64)()  # struct statfs, with room to spare; f_type is its first field
    if libc.statfs(os.fsencode(path), about) != 0:
        raise storage_error("look at", path, OSError(ctypes.get_errno(), "statfs"))
    return int(about[0])
