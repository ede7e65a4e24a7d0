from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from apportion import files
from apportion.enforce import layout, limits, shares
from apportion.enforce.shares import Shares
from apportion.errors import EnforcementError, StateError, StorageError
from apportion.model import (
    Allowance,
    Capacity,
    Charge,
    CoresMode,
    CoresUse,
    DeviceName,
    GpuUuid,
    Own,
    Share,
    ShareKey,
    Usage,
)

SHARE = Share(
    ShareKey("uid-a-0"),
    "gpu",
    "node",
    DeviceName("gpu-0"),
    None,
    GpuUuid("GPU-11111111-0000-4000-8000-000000000001"),
    Capacity(cores=30, memory=4 << 30),
)

_OWNER = """
import fcntl, os, struct, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, int(sys.argv[2]), 1, 0)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
print("held", flush=True)
time.sleep(60)
"""


_LEASER = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def made(tmp_path: Path) -> Shares:
    found = Shares(tmp_path / "shares")
    assert found.prepare(SHARE) is True
    return found


@pytest.fixture
def owner(made: Shares) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds slot 3 of the ledger, as the front library does."""
    ledger = made.path(SHARE.key) / shares.LEDGER
    command = [sys.executable, "-c", _OWNER, str(ledger), str(layout.LOCK_SLOTS + 3)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.fixture
def leaser(made: Shares) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the ledger by a lease, and does not give it back when asked."""
    command = [sys.executable, "-c", _LEASER, str(made.path(SHARE.key) / shares.LEDGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def charge(made: Shares, slot: int, used: int) -> None:
    with (made.path(SHARE.key) / shares.LEDGER).open("r+b") as ledger:
        head = list(layout.HEADER.unpack(ledger.read(layout.HEADER.size)))
        head[5:8] = [used, 2, used + 1]
        head[10] = slot + 1
        ledger.seek(0)
        ledger.write(layout.HEADER.pack(*head))
        ledger.seek(layout.SLOTS_OFFSET + slot * layout.SLOT.size)
        ledger.write(layout.SLOT.pack(1, used, 7, 0, 0, 11, 0, 0, 0))


def test_limits_are_read_only_and_the_ledger_is_anybodys_and_whole(made: Shares) -> None:
    folder = made.path(SHARE.key)
    assert names(folder) == ["ledger", "limits"]
    assert (folder / "limits").read_bytes() == limits.render(SHARE, CoresMode.NONE)
    assert (folder / "limits").stat().st_mode & 0o777 == 0o444
    for name in ("ledger", "limits"):
        assert os.getxattr(folder / name, "security.apportion") == SHARE.key.encode()
    ledger = (folder / "ledger").stat()
    assert ledger.st_mode & 0o777 == 0o666
    assert ledger.st_size == layout.SIZE
    assert ledger.st_blocks * 512 >= layout.SIZE
    assert folder.stat().st_mode & 0o777 == 0o755


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        test_limits_are_read_only_and_the_ledger_is_anybodys_and_whole(
            _prepared(Shares(tmp_path / "s"))
        )
    finally:
        os.umask(before)


def _prepared(found: Shares) -> Shares:
    found.prepare(SHARE)
    return found


def test_preparing_again_keeps_the_very_ledger(made: Shares) -> None:
    ledger = made.path(SHARE.key) / "ledger"
    charge(made, 0, 100)
    before = (ledger.stat().st_ino, ledger.read_bytes())
    assert made.prepare(SHARE) is False
    assert (ledger.stat().st_ino, ledger.read_bytes()) == before


def test_other_limits_under_the_same_key_are_an_error_and_change_nothing(made: Shares) -> None:
    other = replace(SHARE, capacity=Capacity(cores=30, memory=5 << 30))
    with pytest.raises(EnforcementError, match=r"says something else.*delete the pods"):
        made.prepare(other)
    assert made.allowances() == (Allowance(SHARE.key, SHARE.uuid, SHARE.capacity),)


@pytest.mark.parametrize("damage", ["missing", "short", "zeroed"])
def test_a_damaged_ledger_is_an_error(made: Shares, damage: str) -> None:
    ledger = made.path(SHARE.key) / "ledger"
    if damage == "missing":
        ledger.unlink()
    elif damage == "short":
        os.truncate(ledger, 4096)
    else:
        ledger.write_bytes(b"\0" * layout.SIZE)
    with pytest.raises(EnforcementError, match="missing or damaged"):
        made.prepare(SHARE)


@pytest.mark.parametrize("name", ["limits", "ledger"])
@pytest.mark.parametrize("mark", [None, b"", b"uid-b-0"])
def test_files_without_the_shares_mark_are_an_error(
    made: Shares, name: str, mark: bytes | None
) -> None:
    path = made.path(SHARE.key) / name
    os.removexattr(path, layout.MARK)
    if mark is not None:
        os.setxattr(path, layout.MARK, mark)
    with pytest.raises(EnforcementError, match=rf"{name} has lost its mark.*delete the pods"):
        made.prepare(SHARE)


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fchmod", "write", "setxattr"])
def test_a_failure_on_the_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match="free space"):
        Shares(tmp_path).prepare(SHARE)
    assert names(tmp_path) == []


def test_what_a_killed_plugin_left_half_made_is_made_anew(tmp_path: Path) -> None:
    half = tmp_path / f".{SHARE.key}.tmp"
    half.mkdir()
    (half / "ledger").touch()
    found = Shares(tmp_path)
    assert found.share_keys() == (SHARE.key,)
    assert found.allowances() == ()
    assert found.prepare(SHARE) is True
    assert names(tmp_path) == [SHARE.key]


def plant(path: Path, kind: str) -> None:
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(path.parent.parent / "target" if kind == "link" else "nowhere")


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
@pytest.mark.parametrize("name", [SHARE.key, f".{SHARE.key}.tmp"])
def test_what_lies_in_a_shares_place_goes_itself_and_never_what_it_leads_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, name: str
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "target").mkdir()
    (tmp_path / "target/kept").touch()
    found = Shares(tmp_path / "shares")
    found.folder.mkdir()
    plant(found.folder / name, kind)
    found.remove(SHARE.key)
    assert names(found.folder) == []
    plant(found.folder / name, kind)
    assert found.prepare(SHARE) is True
    assert names(found.folder) == [SHARE.key]
    assert names(found.path(SHARE.key)) == ["ledger", "limits"]
    assert not found.path(SHARE.key).is_symlink()
    assert names(tmp_path / "target") == ["kept"]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]


def test_removing_takes_whole_and_half_made_folders_and_nothing_is_success(made: Shares) -> None:
    (made.folder / f".{SHARE.key}.tmp").mkdir()
    made.remove(SHARE.key)
    made.remove(SHARE.key)
    assert names(made.folder) == []


def test_a_folder_that_cannot_be_removed_is_an_error(
    made: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(StorageError, match="read-only"):
        made.remove(SHARE.key)


def test_a_share_is_in_use_while_a_process_holds_a_slot(
    made: Shares, owner: subprocess.Popen[bytes]
) -> None:
    assert made.in_use(SHARE.key)
    owner.kill()
    owner.wait()
    assert not made.in_use(SHARE.key)


@pytest.mark.usefixtures("owner")
def test_removing_does_not_ask_who_holds_it(made: Shares) -> None:
    made.remove(SHARE.key)
    assert names(made.folder) == []


def test_a_share_without_folder_is_not_in_use(made: Shares) -> None:
    assert not made.in_use(ShareKey("none-0"))


def test_a_lock_on_the_sweep_byte_is_no_use(made: Shares) -> None:
    fd = os.open(made.path(SHARE.key) / "ledger", os.O_RDWR)
    try:
        asked = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, layout.LOCK_SWEEP, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked)
        assert not made.in_use(SHARE.key)
    finally:
        os.close(fd)


def test_usage_counts_living_processes_and_not_the_dead(
    made: Shares, owner: subprocess.Popen[bytes]
) -> None:
    charge(made, 3, 500)
    assert made.usage(SHARE.key) == Usage(total=500, held=500, processes=1, peak=501, denied=2)
    owner.kill()
    owner.wait()
    assert made.usage(SHARE.key) == Usage(total=500, held=0, processes=0, peak=501, denied=2)


def test_usage_tells_of_the_time_on_the_gpu(made: Shares) -> None:
    assert made.usage(SHARE.key).cores is None, "nothing divides its time, so nothing counts it"
    (made.path(SHARE.key) / "schedule").touch()
    assert made.usage(SHARE.key).cores == CoresUse()
    with (made.path(SHARE.key) / shares.LEDGER).open("r+b") as ledger:
        ledger.seek(layout.CORES_OFFSET)
        ledger.write(layout.CORES.pack(1000, 200, 30, 99, -5))
    assert made.usage(SHARE.key).cores == CoresUse(used=1000, waited=200, overrun=30)


def test_charges_are_of_the_living_by_their_own_pids(
    made: Shares, owner: subprocess.Popen[bytes]
) -> None:
    charge(made, 3, 500)
    assert made.charges(SHARE.key) == (Charge(Own(namespace=11, pid=7), bytes=500),)
    owner.kill()
    owner.wait()
    assert made.charges(SHARE.key) == ()


def test_usage_of_no_ledger_or_a_damaged_one_is_an_error(made: Shares) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        made.usage(ShareKey("none-0"))
    (made.path(SHARE.key) / "ledger").write_bytes(b"x")
    with pytest.raises(StateError, match="damaged"):
        made.usage(SHARE.key)


def test_nobody_waits_for_a_process_that_holds_the_ledger_by_a_lease(
    made: Shares, leaser: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    assert made.in_use(SHARE.key)
    with pytest.raises(StorageError, match="by a lease; end that process"):
        made.usage(SHARE.key)
    assert made.prepare(SHARE) is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    other = replace(SHARE, capacity=Capacity(cores=30, memory=5 << 30))
    with pytest.raises(EnforcementError, match="says something else"):
        made.prepare(other)
    # Had anything waited, the kernel would have broken the lease by now, after 45 s.
    assert leaser.poll() is None
    assert made.in_use(SHARE.key)
    made.remove(SHARE.key)
    assert names(made.folder) == []


@pytest.mark.usefixtures("leaser")
@pytest.mark.parametrize("damage", ["mode", "size"])
def test_a_ledger_that_is_held_by_a_lease_must_look_as_it_was_made(
    made: Shares, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    if damage == "mode":
        (made.path(SHARE.key) / "ledger").chmod(0o600)
    else:
        monkeypatch.setattr(layout, "SIZE", layout.SIZE + 1)
    with pytest.raises(EnforcementError, match="missing or damaged"):
        made.prepare(SHARE)


def test_limits_that_the_front_refuses_allow_nothing(made: Shares) -> None:
    path = made.path(SHARE.key) / "limits"
    path.unlink()
    assert made.allowances() == ()
    path.write_text("apportion-limits 2\n")
    assert made.allowances() == ()


def test_limits_are_read_again_only_when_something_touched_them(
    made: Shares, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    real = files.read

    def read(path: Path) -> bytes | None:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(files, "read", read)
    before = made.allowances()
    assert made.allowances() == before
    path = made.path(SHARE.key) / "limits"
    assert reads == [path]
    path.chmod(0o600)
    told = path.stat()
    # A clock of the kernel may tick only every few milliseconds.
    while path.stat().st_ctime_ns == told.st_ctime_ns:
        path.write_bytes(path.read_bytes().replace(b"memory 4", b"memory 5"))
        os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    (after,) = made.allowances()
    assert after.capacity.memory != before[0].capacity.memory
    made.remove(SHARE.key)
    assert made.allowances() == ()
    assert reads == [path, path]


def test_shares_must_lie_on_a_tmpfs() -> None:
    """The front takes none from elsewhere, so the plugin says it before anybody gets no memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        shares = Shares(Path(folder) / "shares" / "driver")
        shares.require_memory()
        assert shares.folder.is_dir()
    with pytest.raises(EnforcementError, match=r"not on a tmpfs .*mount a tmpfs at /run/apportion"):
        Shares(Path("/proc")).require_memory()
