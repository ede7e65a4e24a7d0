"""Claims whose record was lost while their containers run: what is enforced keeps counting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from apportion import files
from apportion.errors import StorageError

from tests.node.prepare.world import UUIDS, Faulty, World, ref, result


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # A busy disk makes these tests ten times slower; tests/node/prepare has it as it is.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


@pytest.fixture
def lost(world: World) -> World:
    """Claim a runs with 10Gi and its record is damaged; the plugin was started again."""
    world.prepared("a", result(memory="10Gi"))
    world.record_path("a").write_text("{")
    after = world.restarted()
    assert after.store.held(UUIDS[0]).memory == 10 << 30
    return after


_STEPS = [("enforcer", "prepare", False), ("cdi", "write_claim", False), ("store", "commit", True)]


@pytest.mark.parametrize(("part", "call", "after"), _STEPS)
def test_a_replay_that_fails_leaves_the_running_claim_counted_and_whole(
    lost: World,
    part: str,
    call: str,
    after: bool,  # noqa: FBT001
) -> None:
    spec = lost.cdi.claim_path(ref("a").uid).read_text()
    beside = lost.restarted()
    faulty = {part: Faulty(getattr(lost, part), call, after=after)}
    assert f"{call} failed" in lost.preparer(**faulty).prepare(ref("a")).error  # type: ignore[arg-type]
    assert lost.store.held(UUIDS[0]).memory == 10 << 30
    assert beside.store.held(UUIDS[0]).memory == 10 << 30
    outcome = lost.preparer().prepare(lost.add("b", result(memory="10Gi")))
    assert "claim UID uid-a, whose record is lost" in outcome.error
    lost.preparer().sweep(ask=True)
    assert (lost.share("a") / "limits").exists()
    assert lost.cdi.claim_path(ref("a").uid).read_text() == spec
    assert lost.store.held(UUIDS[0]).memory == 10 << 30
    assert lost.preparer().prepare(ref("a")).error == ""
    assert lost.store.held(UUIDS[0]).memory == 10 << 30
    assert lost.preparer().unprepare(ref("a")).error == ""
    assert lost.store.held(UUIDS[0]).memory == 0


def test_a_replay_that_dies_and_one_that_fails_leave_the_running_claim_counted(
    lost: World,
) -> None:
    died = lost.preparer(store=Faulty(lost.store, "commit", KeyboardInterrupt()))
    # The undo of the interrupted call is what a dead plugin does not do.
    died._undo = lambda *_arguments: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        died.prepare(ref("a"))
    after = lost.restarted()
    after.preparer(cdi=Faulty(after.cdi, "write_claim")).prepare(ref("a"))
    assert after.store.held(UUIDS[0]).memory == 10 << 30
    assert (after.share("a") / "limits").exists()


def test_sums_made_while_something_could_not_be_read_are_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.prepared("a", result(memory="10Gi"))
    after = world.restarted()
    with monkeypatch.context() as broken:
        real = files.read

        def read(path: Path) -> bytes | None:
            if ref("a").uid in str(path):
                raise StorageError(f"cannot read {path}: too many open files")
            return real(path)

        broken.setattr(files, "read", read)
        after.store.held(UUIDS[0])
    assert after.store.held(UUIDS[0]).memory == 10 << 30
