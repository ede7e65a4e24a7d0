from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from apportion import files
from apportion.errors import OverCommitError, StateError, StorageError
from apportion.ledger import schema, store
from apportion.ledger.schema import NewerVersionError, Record, State
from apportion.ledger.store import Store
from apportion.model import (
    Allowance,
    Capacity,
    ClaimRef,
    ClaimUid,
    DeviceName,
    GpuUuid,
    ResolvedClaim,
    Share,
    ShareKey,
)

GPU = GpuUuid("GPU-1")
CARD = {GPU: Capacity(cores=100, memory=1000)}


def resolved(name: str, memory: int = 400, cores: int = 30) -> ResolvedClaim:
    uid = ClaimUid(f"uid-{name}")
    share = Share(
        key=ShareKey(f"{uid}-0"),
        request="gpu",
        pool="node",
        device=DeviceName("gpu-0"),
        share_id=None,
        uuid=GPU,
        capacity=Capacity(cores=cores, memory=memory),
    )
    return ResolvedClaim(ClaimRef(uid, "ns", name), (share,), ("pod",))


def allowance(name: str, memory: int) -> Allowance:
    return Allowance(ShareKey(f"uid-{name}-0"), GPU, Capacity(cores=1, memory=memory))


def complete(claims: Store, claim: ResolvedClaim) -> Record:
    record = claims.begin(claim, CARD, "build").completed(pods=(), library="build", devices=())
    claims.commit(record)
    return record


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def claims(tmp_path: Path) -> Store:
    return Store(tmp_path, "boot-1", tuple)


def path_of(tmp_path: Path, name: str) -> Path:
    return tmp_path / "claims" / f"uid-{name}.json"


def test_started_then_completed_then_gone(claims: Store, tmp_path: Path) -> None:
    uid = ClaimUid("uid-a")
    assert claims.get(uid) is None
    begun = claims.begin(resolved("a"), CARD, "build")
    assert claims.get(uid) == begun
    assert begun.state is State.STARTED
    done = complete(claims, resolved("a"))
    assert claims.get(uid) == done
    assert claims.records() == (done,)
    claims.remove(uid)
    claims.remove(uid)
    assert claims.get(uid) is None
    assert names(tmp_path / "claims") == []


def test_a_refused_claim_leaves_no_file_and_counts_for_nothing(
    claims: Store, tmp_path: Path
) -> None:
    complete(claims, resolved("a", memory=700))
    with pytest.raises(OverCommitError, match="ns/a"):
        claims.begin(resolved("b", memory=301), CARD, "build")
    assert names(tmp_path / "claims") == ["uid-a.json"]
    claims.begin(resolved("c", memory=300), CARD, "build")


def test_removing_gives_back(claims: Store) -> None:
    complete(claims, resolved("a", memory=1000))
    claims.remove(ClaimUid("uid-a"))
    assert claims.held(GPU) == Capacity(0, 0)
    complete(claims, resolved("b", memory=1000))


def test_a_second_plugin_sees_what_the_first_did_and_the_first_what_the_second(
    claims: Store, tmp_path: Path
) -> None:
    second = Store(tmp_path, "boot-1", tuple)
    complete(claims, resolved("a", memory=600))
    with pytest.raises(OverCommitError):
        second.begin(resolved("b", memory=600), CARD, "build")
    second.remove(ClaimUid("uid-a"))
    complete(second, resolved("b", memory=600))
    with pytest.raises(OverCommitError, match="ns/b"):
        claims.begin(resolved("c", memory=600), CARD, "build")


def test_nothing_is_read_again_while_nobody_else_changes_anything(
    claims: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        complete(claims, resolved(f"a{n}", memory=1, cores=1))
    monkeypatch.setattr(Store, "records", lambda _self: pytest.fail("read all claims"))
    complete(claims, resolved("b", memory=1, cores=1))
    claims.remove(ClaimUid("uid-b"))


def test_a_lost_lock_file_makes_it_read_again(claims: Store, tmp_path: Path) -> None:
    complete(claims, resolved("a", memory=600))
    path_of(tmp_path, "a").unlink()
    (tmp_path / "lock").unlink()
    complete(claims, resolved("b", memory=600))


def test_what_is_moved_aside_is_told_with_its_claim_as_far_as_that_is_known(
    tmp_path: Path,
) -> None:
    told: list[tuple[ClaimRef | None, str]] = []
    claims = Store(tmp_path, "boot-1", tuple, lambda ref, text: told.append((ref, text)))
    for name, damage in (("a", b"x"), ("b", b"")):
        done = complete(claims, resolved(name))
        path_of(tmp_path, name).write_bytes(
            (damage and path_of(tmp_path, name).read_bytes()) + damage
        )
        claims.get(done.ref.uid)
    assert [ref and ref.name for ref, _text in told] == ["a", None]
    assert all("is damaged" in text for _ref, text in told)


def test_records_of_another_boot_count_for_nothing(claims: Store, tmp_path: Path) -> None:
    complete(claims, resolved("a", memory=1000))
    after = Store(tmp_path, "boot-2", tuple)
    complete(after, resolved("b", memory=1000))
    assert [record.boot for record in after.records()] == ["boot-1", "boot-2"]


def test_what_is_here_are_the_shares_of_this_boot(claims: Store, tmp_path: Path) -> None:
    complete(claims, resolved("b"))
    claims.begin(resolved("a"), CARD, "build")
    assert [share.key for share in claims.shares()] == ["uid-a-0", "uid-b-0"]
    assert Store(tmp_path, "next boot", tuple).shares() == ()


def test_a_damaged_record_is_moved_aside_reported_and_no_record(
    claims: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete(claims, resolved("a"))
    path_of(tmp_path, "a").write_bytes(b"{")
    assert claims.get(ClaimUid("uid-a")) is None
    assert names(tmp_path / "claims") == ["uid-a.json.damaged"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert str(path_of(tmp_path, "a")) in caplog.text
    assert claims.uids() == {"uid-a"}
    assert claims.knows(ClaimUid("uid-a"))
    claims.remove(ClaimUid("uid-a"))
    assert names(tmp_path / "claims") == []


def test_what_was_moved_aside_is_known_by_its_name_and_goes_alone(
    claims: Store, tmp_path: Path
) -> None:
    done = complete(claims, resolved("a"))
    path_of(tmp_path, "a").write_bytes(path_of(tmp_path, "a").read_bytes() + b"x")
    assert claims.aside() == frozenset()
    claims.get(done.ref.uid)
    assert claims.aside() == {"uid-a"}
    assert claims.named_aside(done.ref.uid) == done.ref
    assert claims.named_aside(ClaimUid("uid-b")) is None
    complete(claims, resolved("a"))
    claims.remove_aside(done.ref.uid)
    claims.remove_aside(done.ref.uid)
    assert names(tmp_path / "claims") == ["uid-a.json"]


def test_a_damaged_record_counts_with_what_its_share_folders_allow(tmp_path: Path) -> None:
    claims = Store(tmp_path, "boot-1", lambda: [allowance("a", 700)])
    complete(claims, resolved("a", memory=700))
    complete(claims, resolved("ok", memory=100))
    path_of(tmp_path, "a").write_bytes(b"")
    after = Store(tmp_path, "boot-1", lambda: [allowance("a", 700), allowance("ok", 100)])
    with pytest.raises(OverCommitError, match="claim UID uid-a, whose record is lost"):
        after.begin(resolved("b", memory=201), CARD, "build")
    after.begin(resolved("b", memory=200), CARD, "build")


def test_a_damaged_record_without_share_folders_counts_for_nothing(tmp_path: Path) -> None:
    claims = Store(tmp_path, "boot-1", tuple)
    complete(claims, resolved("a", memory=1000))
    path_of(tmp_path, "a").write_bytes(b"")
    after = Store(tmp_path, "boot-1", tuple)
    after.begin(resolved("b", memory=1000), CARD, "build")


def test_a_damaged_record_affects_no_other_claim(claims: Store, tmp_path: Path) -> None:
    good = complete(claims, resolved("a"))
    path_of(tmp_path, "bad").write_bytes(b"\0" * 100)
    after = Store(tmp_path, "boot-1", tuple)
    assert after.get(good.ref.uid) == good
    assert after.records() == (good,)
    complete(after, resolved("c"))


def test_a_record_under_another_claims_name_is_damaged(claims: Store, tmp_path: Path) -> None:
    complete(claims, resolved("a"))
    path_of(tmp_path, "a").rename(path_of(tmp_path, "b"))
    assert claims.get(ClaimUid("uid-b")) is None
    assert names(tmp_path / "claims") == ["uid-b.json.damaged"]


def test_a_record_of_a_newer_plugin_is_left_alone(claims: Store, tmp_path: Path) -> None:
    content = {"version": 9}
    data = schema._canonical(content | {"seal": schema._sealed(content)})
    (tmp_path / "claims").mkdir()
    path_of(tmp_path, "a").write_bytes(data)
    with pytest.raises(NewerVersionError):
        claims.get(ClaimUid("uid-a"))
    assert path_of(tmp_path, "a").read_bytes() == data
    assert claims.records() == ()


def test_a_damaged_record_that_cannot_be_moved_is_an_error(
    claims: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(claims, resolved("a"))
    path_of(tmp_path, "a").write_bytes(b"{")

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(StorageError, match="cannot move aside"):
        claims.get(ClaimUid("uid-a"))


def folder(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "in it").touch()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD_FILES: dict[str, Callable[[Path], None]] = {"folder": folder, "loop": loop, "pipe": os.mkfifo}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_file_is_a_damaged_record_of_its_claim_alone(
    claims: Store, tmp_path: Path, kind: str
) -> None:
    good = complete(claims, resolved("a"))
    for name in ("bad", "worse"):
        ODD_FILES[kind](path_of(tmp_path, name))
    after = Store(tmp_path, "boot-1", lambda: [allowance("bad", 100)])
    assert after.records() == (good,)
    assert after.held(GPU).memory == 500
    complete(after, resolved("c"))
    assert after.get(ClaimUid("uid-bad")) is None
    assert names(tmp_path / "claims") == [
        "uid-a.json",
        "uid-bad.json.damaged",
        "uid-c.json",
        "uid-worse.json",
    ]
    assert after.named_aside(ClaimUid("uid-bad")) is None
    complete(after, resolved("bad", memory=100))
    ODD_FILES[kind](path_of(tmp_path, "bad").with_name("uid-x.json"))
    for uid in map(ClaimUid, ("uid-bad", "uid-worse", "uid-x")):
        assert after.knows(uid)
        after.remove(uid)
        assert not after.knows(uid)
    assert names(tmp_path / "claims") == ["uid-a.json", "uid-c.json"]


def test_what_was_moved_aside_makes_room_for_what_is_now(claims: Store, tmp_path: Path) -> None:
    folder(tmp_path / "claims/uid-a.json.damaged")
    path_of(tmp_path, "a").write_bytes(b"{")
    assert claims.get(ClaimUid("uid-a")) is None
    assert (tmp_path / "claims/uid-a.json.damaged").read_bytes() == b"{"


def test_a_record_that_cannot_be_read_affects_no_other_claim_and_is_reported_once(
    claims: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = complete(claims, resolved("a", memory=100))
    bad = complete(claims, resolved("bad", memory=100))
    real = files.read

    def read(path: Path) -> bytes | None:
        if path == path_of(tmp_path, "bad"):
            raise files.storage_error("read", path, OSError(errno.EIO, "broken"))
        return real(path)

    monkeypatch.setattr(files, "read", read)
    after = Store(tmp_path, "boot-1", lambda: [allowance("a", 1), allowance("bad", 700)])
    for _ in range(2):
        (tmp_path / "lock").write_bytes(os.urandom(16))
        assert after.held(GPU).memory == 800
    assert after.records() == (good,)
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    assert "disk fails" in caplog.text
    with pytest.raises(StorageError):
        after.get(bad.ref.uid)
    assert path_of(tmp_path, "bad").exists()
    after.remove(bad.ref.uid)
    assert names(tmp_path / "claims") == ["uid-a.json"]


def test_a_failed_publication_leaves_nothing_and_counts_for_nothing(
    claims: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(claims, resolved("a", memory=100))

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(StorageError, match="disk fails"):
        claims.begin(resolved("b", memory=900), CARD, "build")
    monkeypatch.undo()
    assert names(tmp_path / "claims") == ["uid-a.json"]
    assert claims.held(GPU).memory == 100


def test_a_token_that_cannot_be_written_stops_the_change(
    claims: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageError, match=r"cannot write .*/lock"):
        claims.begin(resolved("a"), CARD, "build")
    assert names(tmp_path / "claims") == []


def test_one_claim_is_held_once_and_another_beside_it(claims: Store) -> None:
    with claims.claim_lock(ClaimUid("a")) as first:
        with claims.claim_lock(ClaimUid("a"), wait=False) as second:
            assert (first, second) == (True, False)
        with claims.claim_lock(ClaimUid("b"), wait=False) as other:
            assert other


def test_sweep_removes_temporary_files(claims: Store, tmp_path: Path) -> None:
    complete(claims, resolved("a"))
    (tmp_path / "claims/.uid-b.json.0123.tmp").touch()
    assert claims.sweep() == (".uid-b.json.0123.tmp",)
    assert names(tmp_path / "claims") == ["uid-a.json"]


def test_boot_id_is_the_kernels(tmp_path: Path) -> None:
    assert store.boot_id(Path("/proc")) == (
        (files.read(Path("/proc/sys/kernel/random/boot_id")) or b"").decode().strip()
    )
    with pytest.raises(StorageError, match="setting proc"):
        store.boot_id(tmp_path)


def test_unreadable_records_are_state_errors() -> None:
    assert issubclass(NewerVersionError, StateError)
