"""Every step of prepare and unprepare fails once; damaged, foreign and stale state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from apportion.ledger import schema
from apportion.model import ClaimOutcome

from tests.node.prepare.world import (
    DEVICES,
    UUIDS,
    Faulty,
    World,
    claim,
    ref,
    result,
)

FORGOTTEN = ClaimOutcome()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # A busy disk makes these tests ten times slower; tests/node/prepare has it as it is.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


# Every step fails once

_STEPS: list[tuple[str, str, bool, int]] = [
    ("enforcer", "check", False, 1),
    ("cdi", "write_driver", False, 1),
    ("store", "get", False, 1),
    ("store", "begin", False, 1),
    ("store", "begin", True, 1),
    ("enforcer", "prepare", False, 1),
    ("enforcer", "prepare", False, 2),
    ("cdi", "write_claim", False, 1),
    ("cdi", "write_claim", True, 1),
    ("store", "commit", False, 1),
    ("store", "commit", True, 1),
]


def faulty(world: World, part: str, call: str, after: bool, nth: int) -> dict[str, Any]:  # noqa: FBT001
    return {part: Faulty(getattr(world, part), call, after=after, nth=nth)}


@pytest.mark.parametrize("step", _STEPS, ids=lambda step: "-".join(map(str, step)))
def test_a_prepare_that_fails_at_any_step_leaves_nothing_and_the_next_one_works(
    world: World, step: tuple[str, str, bool, int]
) -> None:
    world.prepared("other")
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    outcome = world.preparer(**faulty(world, *step)).prepare(wanted)
    assert step[1] in outcome.error
    assert world.state() == before
    assert world.store.held(UUIDS[1]).memory == 0
    assert len(world.preparer().prepare(wanted).devices) == 2


@pytest.mark.parametrize("step", _STEPS, ids=lambda step: "-".join(map(str, step)))
def test_a_repeated_prepare_that_fails_at_any_step_harms_nothing_of_the_running_claim(
    world: World, step: tuple[str, str, bool, int]
) -> None:
    first = world.prepared("c", result(0), result(1))
    before = world.state()
    inode = (world.share("c") / "ledger").stat().st_ino
    world.preparer(**faulty(world, *step)).prepare(ref())
    assert world.state() == before
    assert (world.share("c") / "ledger").stat().st_ino == inode
    assert world.preparer().prepare(ref()) == first


@pytest.mark.parametrize("step", _STEPS[4:], ids=lambda step: "-".join(map(str, step)))
def test_what_a_dead_plugin_left_started_counts_on_when_the_next_prepare_fails(
    world: World, step: tuple[str, str, bool, int]
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    died = world.preparer(store=Faulty(world.store, "commit", KeyboardInterrupt()))
    # The undo of the interrupted call is what a dead plugin does not do.
    died._undo = lambda *_arguments: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        died.prepare(wanted)
    assert world.share("c").exists()
    again = world.restarted()
    outcome = again.preparer(**faulty(again, *step)).prepare(wanted)
    assert outcome.error or step[1] == "begin", "a started record is gone on with"
    assert again.store.held(UUIDS[0]).memory == again.store.held(UUIDS[1]).memory == 4 << 30
    assert (world.share("c") / "limits").exists()
    assert len(again.preparer().prepare(wanted).devices) == 2
    again.preparer().unprepare(wanted)
    assert world.state() == before


def test_an_undo_that_fails_is_reported_and_the_others_happen(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.preparer().ready(UUIDS[0])

    class Worse(Faulty):
        remove = Faulty(world.enforcer, "remove").remove

    enforcer = Worse(world.enforcer, "none")
    preparer = world.preparer(enforcer=enforcer, cdi=Faulty(world.cdi, "write_claim"))
    assert "write_claim failed" in preparer.prepare(world.add("c")).error
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "the sweep tries again" in caplog.text
    assert not world.record_path("c").exists()
    world.preparer().sweep(ask=True)
    assert not world.share("c").exists()


# Unprepare fails


@pytest.mark.parametrize(
    ("part", "call"),
    [("cdi", "remove_claim"), ("enforcer", "remove"), ("store", "remove")],
)
def test_an_unprepare_that_fails_says_why_keeps_the_record_and_works_the_next_time(
    world: World, part: str, call: str
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared("c", result(0), result(0))
    outcome = world.preparer(**faulty(world, part, call, after=False, nth=1)).unprepare(ref())
    assert outcome.error.startswith("cannot unprepare claim default/c: ")
    assert world.record_path("c").exists()
    assert world.store.held(UUIDS[0]).memory == 8 << 30
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_unprepare_removes_spec_then_shares_then_record(world: World) -> None:
    world.prepared()
    order: list[str] = []

    class Watched:
        def __init__(self, real: object) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            if name in {"remove", "remove_claim"}:
                order.append(f"{type(self._real).__name__}.{name}")
            return getattr(self._real, name)

    world.preparer(
        store=Watched(world.store), cdi=Watched(world.cdi), enforcer=Watched(world.enforcer)
    ).unprepare(ref())
    assert order == ["CdiStore.remove_claim", "FrontEnforcer.remove", "Store.remove"]


# Damaged, foreign and stale state


def test_a_damaged_record_is_made_anew_and_the_running_share_is_kept(world: World) -> None:
    first = world.prepared()
    inode = (world.share("c") / "ledger").stat().st_ino
    world.record_path("c").write_bytes(world.record_path("c").read_bytes()[:40])
    assert world.restarted().prepared() == first
    assert (world.share("c") / "ledger").stat().st_ino == inode
    world.preparer().unprepare(ref())
    assert world.state() == {
        path: text for path, text in world.state().items() if path.endswith("-driver.json")
    }


def test_a_running_share_without_record_survives_a_prepare_that_fails(world: World) -> None:
    world.prepared()
    inode = (world.share("c") / "ledger").stat().st_ino
    world.record_path("c").unlink()
    again = world.restarted()
    again.preparer(cdi=Faulty(again.cdi, "write_claim")).prepare(ref())
    assert (world.share("c") / "ledger").stat().st_ino == inode


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\0" * 400])
def test_a_damaged_record_is_unprepared(world: World, content: bytes) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared("c", result(0), result(1))
    world.record_path("c").write_bytes(content)
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_a_record_of_a_newer_plugin_is_not_prepared_over_and_can_be_unprepared(
    world: World,
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    world.write_newer_record("c")
    kept = world.state()
    outcome = world.restarted().preparer().prepare(ref())
    assert "run the newer plugin" in outcome.error
    assert world.state() == kept
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_a_record_that_cannot_be_read_holds_up_no_other_claim_and_no_unprepare(
    world: World,
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared("c")
    world.record_path("c").unlink()
    world.record_path("c").mkdir()
    world.record_path("odd").symlink_to("uid-odd.json")
    after = world.restarted()
    assert after.prepared("d").error == ""
    assert after.store.held(UUIDS[0]).memory == 8 << 30
    for name in ("c", "d", "odd"):
        assert after.preparer().unprepare(ref(name)) == FORGOTTEN
    assert world.state() == before


@pytest.mark.parametrize("call", ["unprepare", "prepare"])
def test_a_disk_that_does_not_give_the_record_holds_up_its_prepare_alone(
    world: World, call: str
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared("c", result(0), result(0))
    failing = world.preparer(**faulty(world, "store", "get", after=False, nth=1))
    if call == "prepare":
        assert "get failed" in failing.prepare(ref()).error
        assert world.preparer().prepare(ref()).error == ""
        failing = world.preparer(**faulty(world, "store", "get", after=False, nth=1))
    assert failing.unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_a_claim_that_was_allocated_anew_gets_its_new_share_only(world: World) -> None:
    world.prepared("c", result(0), result(0, memory="1Gi"))
    world.claims["c"] = claim(ref(), result(1, memory="2Gi"))
    outcome = world.preparer().prepare(ref())
    assert [device.device for device in outcome.devices] == [DEVICES[1]]
    assert not world.share("c", 1).exists()
    assert world.store.held(UUIDS[0]).memory == 0
    assert world.store.held(UUIDS[1]).memory == 2 << 30


def test_a_claim_that_was_allocated_anew_waits_for_processes_of_its_old_share(
    world: World,
) -> None:
    world.prepared()
    world.claims["c"] = claim(ref(), result(1))

    class Busy(Faulty):
        def in_use(self, _key: str) -> bool:
            return True

    outcome = world.preparer(enforcer=Busy(world.enforcer, "none")).prepare(ref())
    assert "allocated anew while processes still use its old share uid-c-0" in outcome.error
    assert world.share("c").exists()


def test_a_share_folder_that_says_something_else_is_left_and_reported(world: World) -> None:
    world.prepared()
    limits = world.share("c") / "limits"
    limits.chmod(0o644)
    limits.write_text(limits.read_text().replace("4294967296", "8589934592"))
    outcome = world.preparer().prepare(ref())
    assert "says something else than the claim" in outcome.error
    assert world.share("c").exists()


def test_a_pod_that_joined_is_noted(world: World) -> None:
    world.prepared()
    world.claims["c"]["status"]["reservedFor"].append({"resource": "pods", "name": "p2"})
    world.preparer().prepare(ref())
    record = schema.load(world.record_path("c").read_bytes(), "c")
    assert set(record.pods) == {"p2", "pod-of-c"}
