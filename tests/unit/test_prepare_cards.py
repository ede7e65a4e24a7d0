"""The same node with a card removed, added or swapped."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from apportion.model import ClaimOutcome, GpuUuid

from tests.node.prepare.world import DEVICES, UUIDS, World, result

NEW = GpuUuid("GPU-99999999-0000-4000-8000-000000000009")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


def _reboot(world: World) -> World:
    shutil.rmtree(world.config.driver_shares_dir)
    return world.restarted("boot-2")


def _swap(world: World) -> None:
    """Put another card into the first slot: the same address and so the same name."""
    old = world.devices[DEVICES[0]]
    world.devices[DEVICES[0]] = replace(old, gpu=replace(old.gpu, uuid=NEW))


def _uuid(world: World, name: str) -> str:
    lines = (world.share(name) / "limits").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("uuid "))


def test_a_removed_card_is_named_and_its_claims_can_end(world: World) -> None:
    wanted = world.add("c", result(0))
    world.preparer().prepare(wanted)
    other = world.add("d", result(1))
    world.preparer().prepare(other)
    after = _reboot(world)
    without = {DEVICES[1]: world.devices[DEVICES[1]]}
    preparer = after.preparer(devices=without)
    outcome = preparer.prepare(wanted)
    assert DEVICES[0] in outcome.error
    assert preparer.prepare(other).devices
    assert preparer.unprepare(wanted) == ClaimOutcome()
    assert not world.record_path("c").exists()


def test_a_card_more_changes_nothing_of_what_is_there(world: World) -> None:
    wanted = world.add("c", result(0))
    first = world.preparer(devices={DEVICES[0]: world.devices[DEVICES[0]]}).prepare(wanted)
    before = world.state()
    assert world.preparer().prepare(wanted) == first
    assert world.preparer().prepare(world.add("d", result(1))).devices
    assert {path: world.state()[path] for path in before} == before


def test_a_swapped_card_never_takes_the_limits_of_the_old_one(world: World) -> None:
    wanted = world.add("c", result(0))
    world.preparer().prepare(wanted)
    assert _uuid(world, "c") == UUIDS[0]
    after = _reboot(world)
    _swap(after)
    assert after.preparer().prepare(wanted).devices
    assert _uuid(after, "c") == NEW
    assert after.store.held(UUIDS[0]).memory == 0
    assert after.store.held(NEW).memory == 4 << 30


def test_a_card_swapped_while_the_node_runs_is_prepared_anew(world: World) -> None:
    wanted = world.add("c", result(0))
    world.preparer().prepare(wanted)
    after = world.restarted()
    _swap(after)
    assert after.preparer().prepare(wanted).devices
    assert _uuid(after, "c") == NEW
    assert after.store.held(UUIDS[0]).memory == 0
