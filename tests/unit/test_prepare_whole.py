"""Whole cards and admin access on the path of a claim: no front, no limit, and the proof."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apportion.ledger import schema
from apportion.model import WHOLE, Access, Capacity, ClaimOutcome

from tests.node.prepare.world import DEVICES, DRIVER, T4_MEMORY, UUIDS, World, result

FRONT, PLAIN = (f"k8s.{DRIVER}/driver={name}" for name in ("all", "plain"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


def whole(device: int = 0, **more: Any) -> dict[str, Any]:
    return result(device, memory=str(T4_MEMORY), cores="100", **more)


def admin(device: int = 0, **more: Any) -> dict[str, Any]:
    return result(device, memory="1Mi", cores="1", **more) | {"adminAccess": True}


def error(world: World, name: str, *results: dict[str, Any]) -> str:
    return world.preparer().prepare(world.add(name, *results)).error


def ids(outcome: ClaimOutcome) -> list[tuple[str, ...]]:
    return [device.cdi_ids[1:] for device in outcome.devices]


@pytest.mark.parametrize(("given", "cores"), [(whole(), 100), (admin(), 0)])
def test_it_has_the_drivers_own_libraries_its_node_and_no_limit(
    world: World, given: dict[str, Any], cores: int
) -> None:
    outcome = world.prepared("c", given)
    assert ids(outcome) == [(PLAIN,)]
    (device,) = world.spec("c")["devices"]
    (node,) = device["containerEdits"]["deviceNodes"]
    assert node["path"] == "/dev/nvidia0"
    said = (world.share("c") / "limits").read_text()
    assert f"uuid {UUIDS[0]}\nmemory {WHOLE.memory}\ncores {cores}\n" in said
    assert "\ncores-mode none\n" in said
    assert sorted(path.name for path in world.share("c").iterdir()) == ["ledger", "limits"]


def test_each_device_of_a_claim_has_what_it_was_given(world: World) -> None:
    outcome = world.prepared("c", result(0), whole(1, request="big"))
    assert ids(outcome) == [(FRONT,), (PLAIN,)]
    assert [device.requests for device in outcome.devices] == [("gpu",), ("big",)]


def test_a_card_given_whole_is_nobody_elses_and_the_other_way_round(world: World) -> None:
    world.prepared("whole", whole(0))
    world.prepared("share", result(1, memory="1Mi", cores="1"))
    held = "held by default/whole (the whole card)"
    assert held in error(world, "a", result(0, memory="1Mi", cores="1"))
    assert held in error(world, "b", whole(0))
    assert "given the whole card: held by default/share" in error(world, "c", whole(1))
    assert "the whole card and more" in error(world, "d", whole(0), result(0, memory="1Mi"))
    world.preparer().unprepare(world.add("whole", whole(0)))
    world.prepared("b", whole(0))


def test_admin_access_is_beside_all_others_and_takes_nothing(world: World) -> None:
    for name in ("first", "second"):
        world.prepared(name, admin(0))
    world.prepared("whole", whole(0))
    world.prepared("late", admin(0))
    world.preparer().unprepare(world.add("whole", whole(0)))
    world.prepared("part", result(0, memory="1Gi"), admin(0, request="look"))
    assert world.store.held(UUIDS[0]) == Capacity(cores=30, memory=1 << 30)


def test_what_lost_its_record_counts_for_what_its_folder_allows(world: World) -> None:
    world.prepared("whole", whole(0))
    world.prepared("look", admin(0))
    world.prepared("look", admin(1))
    for name in ("whole", "look"):
        world.record_path(name).write_text("damaged")
    after = world.restarted()
    assert after.store.held(UUIDS[0]) == WHOLE
    assert after.store.held(UUIDS[1]) == Capacity(0, 0)
    assert "the whole card" in error(after, "c", result(0))
    after.prepared("d", whole(1))


def test_again_is_the_same_and_what_was_taken_comes_back(world: World) -> None:
    first = world.prepared("c", whole(0), admin(1, request="look"))
    before = world.state()
    assert world.preparer().prepare(world.add("c", whole(0), admin(1, request="look"))) == first
    assert world.state() == before
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    world.cdi.claim_path(world.add("c").uid).unlink()
    preparer.sweep(ask=False)
    assert world.state() == before
    assert [reason for _ref, reason, _text in world.told] == ["CDISpecRestored"]


def test_a_card_that_an_older_plugin_gave_as_a_share_stays_one(world: World) -> None:
    """Its containers run with the front libraries, and with limits that say its capacity."""
    claim = world.add("c", whole(0))
    world.preparer().prepare(claim)
    record = schema.load(world.record_path("c").read_bytes(), "c")
    world.preparer().unprepare(claim)
    old = [replace(share, access=Access.SHARE) for share in record.shares]
    written = schema.dump(replace(record, shares=tuple(old), boot=world.boot))
    world.record_path("c").write_bytes(written)
    outcome = world.restarted().preparer().prepare(claim)
    assert ids(outcome) == [(FRONT,)]
    assert f"memory {T4_MEMORY}\n" in (world.share("c") / "limits").read_text()
    after = schema.load(world.record_path("c").read_bytes(), "c")
    assert [share.access for share in after.shares] == [Access.SHARE]
    assert "held by default/c" in error(world.restarted(), "d", whole(0))


def test_a_card_stays_whole_when_another_capacity_is_published(world: World) -> None:
    claim = world.add("c", whole(0))
    first = world.preparer().prepare(claim)
    world.devices[DEVICES[0]] = replace(
        world.devices[DEVICES[0]], capacity=Capacity(100, 15360 << 20)
    )
    assert world.restarted().preparer().prepare(claim) == first
    assert "the whole card" in error(world, "d", result(0, memory="1Mi", cores="1"))


def test_a_card_that_a_process_is_seen_on_is_not_swept(world: World) -> None:
    """The ledger of a whole card does not know."""
    claim = world.add("c", whole(0))
    busy = {world.key("c")}
    preparer = world.preparer(in_use=lambda key: key in busy)
    preparer.prepare(claim)
    del world.claims["c"]
    preparer.sweep(ask=True)
    assert world.share("c").exists()
    busy.clear()
    preparer.sweep(ask=True)
    assert not world.share("c").exists()
    assert world.store.held(UUIDS[0]) == Capacity(0, 0)
