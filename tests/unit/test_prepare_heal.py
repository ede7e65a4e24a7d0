"""What somebody takes or changes of a prepared claim comes back with the sweep, or is reported."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apportion.enforce.layout import MARK
from apportion.model import ClaimRef, ClaimUid

from tests.node.prepare.world import UUIDS, Faulty, World, result


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


def _sweep(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("{}")])
def test_a_spec_comes_back_and_it_is_said(
    world: World, caplog: pytest.LogCaptureFixture, change: Callable[[Path], object]
) -> None:
    wanted = world.add("c", result(0), result(1))
    world.preparer().prepare(wanted)
    path = world.cdi.claim_path(wanted.uid)
    content = path.read_bytes()
    change(path)
    _sweep(world)
    assert path.read_bytes() == content
    (told,) = world.told
    assert told[0] == wanted
    assert told[1] == "CDISpecRestored"
    assert str(path) in caplog.text
    _sweep(world)
    assert len(world.told) == 1


def test_nothing_is_written_where_all_is_well(world: World) -> None:
    wanted = world.add("c")
    world.preparer().prepare(wanted)
    before = world.cdi.claim_path(wanted.uid).stat()
    _sweep(world)
    after = world.cdi.claim_path(wanted.uid).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert world.told == []


def _limits(world: World) -> None:
    path = world.share("c") / "limits"
    path.chmod(0o644)
    path.write_text(path.read_text().replace("memory 4", "memory 9"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda world: shutil.rmtree(world.share("c")), "was taken away"),
        (_limits, "says something else"),
        (lambda world: (world.share("c") / "ledger").unlink(), "missing or damaged"),
        (lambda world: (world.share("c") / "ledger").write_bytes(b"x"), "missing or damaged"),
        (lambda world: (world.share("c") / "limits").unlink(), "says something else"),
        (lambda world: os.removexattr(world.share("c") / "ledger", MARK), "lost its mark"),
        (lambda world: os.setxattr(world.share("c") / "limits", MARK, b"uid-d-0"), "lost its mark"),
    ],
)
def test_a_share_that_is_harmed_is_left_and_reported_once(
    world: World,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[World], object],
    words: str,
) -> None:
    wanted = world.add("c")
    world.prepared("other", result(1))
    preparer = world.preparer()
    assert preparer.prepare(wanted).devices
    harm(world)
    before = world.state()
    caplog.set_level(logging.INFO)
    preparer.sweep(ask=True)
    preparer.sweep(ask=True)
    assert world.state() == before
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert words in errors[0]
    assert "delete the pods" in errors[0]
    assert {told[:2] for told in world.told} == {(wanted, "ShareDamaged")}


def test_a_share_that_is_whole_again_is_said_to_be(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = world.add("c")
    preparer = world.preparer()
    preparer.prepare(wanted)
    shutil.rmtree(world.share("c"))
    preparer.sweep(ask=True)
    # Kubelet starts anew and asks again.
    assert preparer.prepare(wanted).devices
    caplog.set_level(logging.INFO)
    preparer.sweep(ask=True)
    assert "all is well again" in caplog.text


def test_a_claim_whose_gpu_is_away_keeps_what_it_has(world: World) -> None:
    wanted = world.add("c")
    world.preparer().prepare(wanted)
    world.cdi.claim_path(wanted.uid).unlink()
    preparer = world.preparer(devices={})
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    assert not world.cdi.claim_path(wanted.uid).exists()
    _sweep(world)
    assert world.cdi.claim_path(wanted.uid).exists()


class Unprepared:
    """The claims on disk; one is unprepared after they were listed, before its lock is taken."""

    def __init__(self, world: World, wanted: ClaimRef) -> None:
        self._world, self._wanted = world, wanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)

    def claim_lock(
        self, uid: ClaimUid, *, wait: bool = True
    ) -> contextlib.AbstractContextManager[bool]:
        assert self._world.preparer().unprepare(self._wanted).error == ""
        return self._world.store.claim_lock(uid, wait=wait)


def test_a_claim_that_is_unprepared_meanwhile_gets_nothing_back(world: World) -> None:
    wanted = world.add("c")
    world.preparer().prepare(wanted)
    preparer = world.preparer(store=Unprepared(world, wanted))
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    assert world.told == []
    assert not world.cdi.claim_path(wanted.uid).exists()


def test_one_claim_that_cannot_be_looked_at_holds_up_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = world.add("a"), world.add("b", result(1))
    for wanted in (first, second):
        world.preparer().prepare(wanted)
        world.cdi.claim_path(wanted.uid).unlink()
    preparer = world.preparer(enforcer=Faulty(world.enforcer, "verify"))
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    assert "cannot look at a prepared claim" in caplog.text
    assert not world.cdi.claim_path(first.uid).exists()
    assert world.cdi.claim_path(second.uid).exists()


def test_a_started_claim_is_left_to_kubelets_next_call(world: World) -> None:
    wanted = world.add("c")
    world.preparer(store=Faulty(world.store, "commit", KeyboardInterrupt())).ready(UUIDS[0])
    store = Faulty(world.store, "commit", SystemExit())
    with pytest.raises(SystemExit):
        world.preparer(store=store, cdi=Faulty(world.cdi, "remove_claim", SystemExit())).prepare(
            wanted
        )
    world.cdi.claim_path(wanted.uid).unlink(missing_ok=True)
    _sweep(world)
    assert not world.cdi.claim_path(wanted.uid).exists()
