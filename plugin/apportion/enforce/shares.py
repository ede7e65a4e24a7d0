"""Share folders: `limits`, which says what may be taken, and `ledger`, which says what is.

Where cores are held by time there is a `schedule` as well (apportion.cores). A folder appears whole
by a rename, and nothing but the schedule's content changes after. Nothing here is synced to the
disk: a folder counts only until the next boot, and a page cache lives as long.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from apportion import files, locks
from apportion.cores.store import SCHEDULE, is_scheduled
from apportion.enforce import layout, limits
from apportion.errors import EnforcementError, StateError, StorageError
from apportion.model import (
    Allowance,
    Charge,
    CoresMode,
    CoresUse,
    Own,
    Share,
    ShareKey,
    Usage,
)

LIMITS = "limits"
LEDGER = "ledger"

_HALF_MADE = ".tmp"
_LEDGER_MODE = 0o666

_LOG = logging.getLogger("apportion.enforce")


class Shares:
    """The share folders of this node.

    Args:
        folder: where they lie, by share key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, tuple[tuple[int, ...], Allowance]] = {}

    def path(self, key: ShareKey) -> Path:
        """Return the folder of a share."""
        return self.folder / key

    def require_memory(self) -> None:
        """Make the folder of all shares if need be; it must lie on a tmpfs, else no share counts.

        Raises:
            EnforcementError: it does not.
            StorageError: it cannot be made or looked at.
        """
        files.make_folder(self.folder)
        kind = files.kind_of_file_system(self.folder)
        if kind != files.TMPFS:
            raise EnforcementError(
                f"{self.folder} is not on a tmpfs (its file system is of type {kind:#x}), so the "
                "front library would take no share from there; mount a tmpfs at /run/apportion on "
                "the node, as systemd does at /run"
            )

    def prepare(
        self,
        share: Share,
        context_mib: int = 0,
        mode: CoresMode = CoresMode.NONE,
        schedule: bytes = b"",
    ) -> bool:
        """Make the share's folder; return False where it is there already and says the same.

        Args:
            share: what it may take.
            context_mib: for a new ledger, what a context takes on the GPU; 0: not known.
            mode: for a new folder, how the cores are held.
            schedule: for a new folder, its schedule's content; empty: it has none.

        Raises:
            EnforcementError: what is there says something else; it is left as it is, since
                containers may hold it.
            StorageError: it could not be made; nothing is left.
        """
        path = self.path(share.key)
        if _is_folder(path):
            self.verify(share)
            return False
        self._discard(path)
        half = self._half(share.key)
        files.make_folder(self.folder)
        try:
            self._discard(half)
            half.mkdir(mode=0o755)
            half.chmod(0o755)
            create(half, share, context_mib, mode, schedule)
            half.rename(path)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise files.storage_error("write", path, error) from error
        return True

    def remove(self, key: ShareKey) -> None:
        """Remove a share's folder, half-made or whole; nothing there is success.

        What has its name and is no folder goes too: a link itself, never what it leads to.

        Raises:
            StorageError: something of it is still there.
        """
        half = self._half(key)
        try:
            self._discard(half)
            if os.path.lexists(self.path(key)):
                # One step for all who look: from here on no container finds limits to obey.
                self.path(key).rename(half)
                self._discard(half)
        except OSError as error:
            raise files.storage_error("remove", self.path(key), error) from error

    def in_use(self, key: ShareKey) -> bool:
        """Return whether a live process holds a slot of the share's ledger.

        It takes one with its first charge, which is its first context as a rule, and keeps it. A
        process that holds the file by a lease, so that nobody can look, counts as well.

        Raises:
            StorageError: the ledger is there and cannot be asked.
        """
        try:
            fd = _open(self.path(key) / LEDGER)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except BlockingIOError:
            # Only a live process holds a lease.
            return True
        except OSError as error:
            raise files.storage_error("read", self.path(key) / LEDGER, error) from error
        try:
            return locks.is_held(fd, layout.LOCK_SLOTS, layout.SLOT_COUNT)
        except OSError as error:
            raise files.storage_error("ask the locks of", self.path(key) / LEDGER, error) from error
        finally:
            os.close(fd)

    def share_keys(self) -> tuple[ShareKey, ...]:
        """Return all shares with a folder, half-made ones too, sorted. Raises StorageError."""
        return tuple(
            sorted(
                {
                    ShareKey(name.removeprefix(".").removesuffix(_HALF_MADE))
                    if name.startswith(".")
                    else ShareKey(name)
                    for name in files.listing(self.folder)
                }
            )
        )

    def allowances(self) -> tuple[Allowance, ...]:
        """Return what the folders allow, by key; files that the front refuses allow nothing.

        The guard asks every two seconds, so a file that nothing touched since is not read again.
        """
        found: dict[str, tuple[tuple[int, ...], Allowance]] = {}
        for name in files.listing(self.folder):
            if name.startswith("."):
                continue
            path = f"{self.folder}/{name}/{LIMITS}"
            try:
                there = os.stat(path)  # noqa: PTH116 - a thousand of them
            except OSError:
                continue
            # The change time cannot be set.
            sign = (there.st_ino, there.st_ctime_ns)
            known = self._read.get(name)
            if known is not None and known[0] == sign:
                found[name] = known
                continue
            try:
                allowed = limits.parse(files.read(Path(path)) or b"")
            except (ValueError, StorageError):
                continue
            found[name] = (sign, replace(allowed, key=ShareKey(name)))
        self._read = found
        return tuple(allowance for _sign, allowance in found.values())

    def usage(self, key: ShareKey) -> Usage:
        """Return what the share's ledger says.

        Raises:
            StateError: it is not a ledger of this layout.
            StorageError: it cannot be read.
        """
        data, charges = self._look(key)
        total, denied, peak = layout.HEADER.unpack_from(data)[5:8]
        held = sum(charge.bytes for charge in charges)
        processes = sum(charge.own.pid != 0 for charge in charges)
        cores = None
        if os.path.lexists(self.path(key) / SCHEDULE):
            cores = CoresUse(*layout.CORES.unpack_from(data, layout.CORES_OFFSET)[:3])
        return Usage(total, held, processes, peak, denied, cores)

    def charges(self, key: ShareKey) -> tuple[Charge, ...]:
        """Return what the share's ledger says of each live process. Raises as `usage` does.

        Memory that several of them may hold is listed by itself, with PID 0.
        """
        return self._look(key)[1]

    def _look(self, key: ShareKey) -> tuple[bytes, tuple[Charge, ...]]:
        """Return the ledger's content and what it says of the live processes."""
        path = self.path(key) / LEDGER
        try:
            fd = _open(path)
            try:
                data = os.pread(fd, layout.SIZE + 1, 0)
                if not layout.is_valid(data, len(data)):
                    raise StateError(f"{path} is damaged; delete the pods that use the share")
                return data, _charges(fd, data)
            finally:
                os.close(fd)
        except BlockingIOError as error:
            raise StorageError(
                f"cannot read {path}: a process of the share holds it by a lease; end that process"
            ) from error
        except OSError as error:
            raise files.storage_error("read", path, error) from error

    def _half(self, key: ShareKey) -> Path:
        return self.folder / f".{key}{_HALF_MADE}"

    @staticmethod
    def _discard(path: Path) -> None:
        """Remove what has this name, if anything has. Raises StorageError."""
        if not os.path.lexists(path):
            return
        odd = not _is_folder(path)
        if files.remove_whatever(path) and odd:
            _LOG.info("removed what lay in a share's place", extra={"path": str(path)})

    def mode(self, share: Share) -> CoresMode | None:
        """Return how a share that is here is held to its cores, else None. Raises StorageError."""
        return limits.mode_of(files.read(self.path(share.key) / LIMITS), share)

    def verify(self, share: Share) -> None:
        """Return when the folder says what the share may take, and its files are there and marked.

        How its cores are held is as it was when the share was made. What the schedule says is for
        `cores.store` to look at and to mend.

        Raises:
            EnforcementError: something is missing, damaged, or says something else.
            StorageError: it cannot be read.
        """
        path = self.path(share.key)
        if not _is_folder(path):
            raise EnforcementError(
                f"the share folder {path} was taken away: containers that run keep their limit, "
                "new ones cannot start; delete the pods that use the claim"
            )
        mode = limits.mode_of(files.read(path / LIMITS), share)
        if mode is None:
            raise EnforcementError(
                f"{path / LIMITS} says something else than the claim; "
                "delete the pods that use the claim, then they are prepared anew"
            )
        if not _whole(path / LEDGER):
            raise EnforcementError(
                f"{path / LEDGER} is missing or damaged; "
                "delete the pods that use the claim, then they are prepared anew"
            )
        scheduled = is_scheduled(mode, share.capacity.cores)
        if scheduled and not (path / SCHEDULE).is_file():
            raise EnforcementError(
                f"{path / SCHEDULE} was taken away: programs that run keep their slot, those that "
                "start now get no memory; delete the pods that use the claim, then they are "
                "prepared anew"
            )
        for name in (LIMITS, LEDGER, *((SCHEDULE,) if scheduled else ())):
            if _mark(path / name) != share.key.encode():
                raise EnforcementError(
                    f"{path / name} has lost its mark (attribute {layout.MARK}), so programs that "
                    "start now get no memory; delete the pods that use the claim, then they are "
                    "prepared anew"
                )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _open(ledger: Path) -> int:
    """Open a ledger to look at it: it is the tenant's to write, and so to hold by a lease.

    Raises:
        BlockingIOError: a process holds a lease on it; without O_NONBLOCK that one could keep us
            here for 45 s, again and again.
        OSError: it cannot be opened.
    """
    return os.open(ledger, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _whole(ledger: Path) -> bool:
    """Return whether a ledger is there and sound. Raises StorageError."""
    try:
        fd = _open(ledger)
        try:
            return layout.is_valid(os.pread(fd, layout.HEADER.size, 0), os.fstat(fd).st_size)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        _LOG.warning(
            "a process of the share holds its ledger by a lease, so its content is not looked at",
            extra={"ledger": str(ledger)},
        )
        return _as_made(ledger)
    except OSError as error:
        raise files.storage_error("read", ledger, error) from error


def _mark(path: Path) -> bytes | None:
    """Return the mark of a file of a share, None where it has none. Raises StorageError."""
    try:
        return os.getxattr(path, layout.MARK, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise files.storage_error("read the mark of", path, error) from error


def _as_made(ledger: Path) -> bool:
    """Return whether a file is from outside what `create` makes. Raises StorageError."""
    try:
        found = ledger.lstat()
    except OSError as error:
        raise files.storage_error("read", ledger, error) from error
    made = (stat.S_IFREG | _LEDGER_MODE, os.geteuid(), layout.SIZE)
    return (found.st_mode, found.st_uid, found.st_size) == made


def create(
    folder: Path,
    share: Share,
    context_mib: int = 0,
    mode: CoresMode = CoresMode.NONE,
    schedule: bytes = b"",
) -> None:
    """Make `limits` and `ledger` of a share in an empty folder, and `schedule` unless it is empty.

    The ledger gets all its blocks now, so that a full disk is an error here and not a SIGBUS in
    a tenant's process. Any user may write it: who runs in the container is the tenant's affair.
    All bear the mark by which the front library knows them from files of a tenant's volumes.

    Raises:
        OSError: the folder's content is undefined then. EPERM or ENOTSUP: the mark cannot be set,
            for want of CAP_SYS_ADMIN or of a file system with attributes.
    """
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    fd = os.open(folder / LEDGER, flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, layout.SIZE)
        os.pwrite(fd, layout.fresh_header(context_mib), 0)
        os.fchmod(fd, _LEDGER_MODE)
        os.setxattr(fd, layout.MARK, share.key.encode())
    finally:
        os.close(fd)
    told = {LIMITS: limits.render(share, mode)} | ({SCHEDULE: schedule} if schedule else {})
    for name, content in told.items():
        fd = os.open(folder / name, flags, 0o600)
        try:
            os.write(fd, content)
            os.fchmod(fd, 0o444)
            os.setxattr(fd, layout.MARK, share.key.encode())
        finally:
            os.close(fd)


def _charges(fd: int, data: bytes) -> tuple[Charge, ...]:
    """Return what the live processes are charged: those whose slot's byte is locked."""
    top = min(layout.HEADER.unpack_from(data)[10], layout.SLOT_COUNT)
    found = []
    for slot in range(top):
        if locks.is_held(fd, layout.LOCK_SLOTS + slot, 1):
            offset = layout.SLOTS_OFFSET + slot * layout.SLOT.size
            fields = layout.SLOT.unpack_from(data, offset)
            used, pid, namespace = fields[1], fields[2], fields[5]
            found.append(Charge(Own(namespace, pid), used))
    return tuple(found)
