from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from apportion import files
from apportion.errors import StorageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_write_replaces_the_content_and_sets_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "f"
    files.write(target, b"one")
    files.write(target, b"two" * 100_000, 0o600)
    assert target.read_bytes() == b"two" * 100_000
    assert target.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("call", ["fsync", "write", "rename", "fchmod"])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    target = tmp_path / "f"
    files.write(target, b"old")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match=r"cannot write .*/f: No space left.*free space"):
        files.write(target, b"new")
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    files.write(tmp_path / "f", b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_an_unpublished_file_is_gone_at_the_end_of_the_block(tmp_path: Path) -> None:
    with files.staged(tmp_path / "f", b"x", 0o644):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []


def test_sweep_removes_what_a_dead_writer_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    dead = tmp_path / ".k8s.a-claim.json.0011.tmp"
    dead.touch()
    other = tmp_path / ".other.json.0011.tmp"
    other.touch()
    (tmp_path / "k8s.a-claim.json").touch()
    with files.staged(tmp_path / "k8s.a-mine.json", b"x", 0o644) as stage:
        assert files.sweep(tmp_path, "k8s.a-") == (dead.name,)
        stage.publish()
    assert names(tmp_path) == [other.name, "k8s.a-claim.json", "k8s.a-mine.json"]


def test_sweep_of_a_missing_folder_finds_nothing(tmp_path: Path) -> None:
    assert files.sweep(tmp_path / "none") == ()


def test_sweep_leaves_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / ".link.tmp").symlink_to("/etc/passwd")
    (tmp_path / ".folder.tmp").mkdir()
    assert files.sweep(tmp_path) == ()
    assert len(names(tmp_path)) == 2


def test_a_temporary_file_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    swept: list[str] = []

    def sweep_first(fd: int, how: int) -> None:
        if not swept:
            swept.extend(names(tmp_path))
            (tmp_path / swept[0]).unlink()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    files.write(tmp_path / "f", b"x")
    assert swept
    assert names(tmp_path) == ["f"]


def test_reading_and_removing_what_is_not_there(tmp_path: Path) -> None:
    assert files.read(tmp_path / "none") is None
    assert files.remove(tmp_path / "none") is False
    assert files.listing(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "run as root"),
        (errno.ENOENT, "mount it"),
        (errno.EAGAIN, "by a lease"),
        (errno.EPIPE, "kernel log"),
    ],
)
def test_every_error_says_what_to_do(number: int, advice: str) -> None:
    error = files.storage_error("write", "/x/y", OSError(number, "?"))
    assert str(error).startswith("cannot write /x/y: ")
    assert advice in str(error)


def test_errors_of_all_calls_name_the_path(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for call in (
        lambda: files.read(tmp_path),
        lambda: files.remove(tmp_path),
        lambda: files.listing(file),
        lambda: files.sync_folder(file),
        lambda: files.make_folder(file / "below"),
        lambda: files.write(file / "below", b""),
    ):
        with pytest.raises(StorageError, match=str(tmp_path)):
            call()


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    odd = tmp_path / "odd"
    if kind == "folder":
        odd.mkdir()
    elif kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("odd")
    with pytest.raises(StorageError, match=f"cannot read {odd}: .*remove it"):
        files.read(odd)


def test_whatever_has_the_name_goes_and_never_what_a_link_leads_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder/below").mkdir(parents=True)
    (tmp_path / "folder/link").symlink_to(kept)
    (tmp_path / "file").touch()
    for name in ("link", "loop", "folder", "file"):
        assert files.remove_whatever(tmp_path / name)
        assert not files.remove_whatever(tmp_path / name)
    assert names(tmp_path) == ["kept"]
    assert names(kept) == ["below"]


def test_what_is_not_there_is_removed_on_a_read_only_file_system_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert files.remove(tmp_path / "none") is False
    (tmp_path / "there").touch()
    with pytest.raises(StorageError, match="read-only"):
        files.remove(tmp_path / "there")
