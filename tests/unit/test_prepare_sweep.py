"""What the sweep takes, and what it leaves alone."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apportion.errors import KubeNotFoundError, KubeUnavailableError
from apportion.ledger import schema
from apportion.model import ClaimRef, ClaimUid

from tests.node.prepare.world import (
    DRIVER,
    UUIDS,
    Faulty,
    World,
    claim,
    ref,
    result,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # A busy disk makes these tests ten times slower; tests/node/prepare has it as it is.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)


def away(_ref: ClaimRef) -> dict[str, Any]:
    raise KubeUnavailableError("the API server does not answer")


def test_sweep_keeps_claims_that_exist_and_those_it_cannot_ask_for(world: World) -> None:
    world.prepared()
    before = world.state()
    world.preparer().sweep(ask=True)
    world.preparer(fetch=away).sweep(ask=True)
    world.claims["c"]["status"]["allocation"] = "odd"
    world.preparer().sweep(ask=True)
    world.claims.clear()
    world.preparer().sweep(ask=False)
    assert world.state() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["status"].pop("allocation"),
        lambda found: found["metadata"].update(uid="another"),
        lambda found: found.update(claim(ref(), result(1))),
        lambda found: found.update(claim(ref(), result(share_id="given-anew"))),
        lambda found: found.update(claim(ref(), result() | {"pool": "another-node"})),
        lambda found: found.update(claim(ref(), result() | {"driver": "another.example.com"})),
    ],
    ids=["deallocated", "another", "another card", "another share", "another node", "no share"],
)
def test_sweep_removes_shares_that_the_claim_does_not_have_any_more(
    world: World, change: Callable[[dict[str, Any]], object]
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    change(world.claims["c"])
    busy = world.preparer(enforcer=Held(world.enforcer, "none"))
    busy.sweep(ask=True)
    assert world.share("c").exists()
    world.preparer().sweep(ask=True)
    assert world.state() == before
    assert world.store.held(UUIDS[0]).memory == 0


def test_sweep_removes_claims_that_went_while_the_plugin_was_down(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    world.claims.clear()
    world.restarted().preparer().sweep(ask=True)
    assert world.state() == before


def test_sweep_removes_what_was_prepared_before_the_last_boot(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    after = world.restarted("boot-2")
    after.preparer().sweep(ask=True)
    assert world.state() == before
    assert after.store.held(UUIDS[0]).memory == 0


def make_stray(world: World, kind: str) -> None:
    if kind == "spec":
        world.cdi.write_claim(ClaimUid("uid-x"), {})
    elif kind == "share":
        shutil.copytree(world.share("c"), world.config.driver_shares_dir / "uid-x-0")
    elif kind == "half-made share":
        (world.config.driver_shares_dir / ".uid-x-0.tmp").mkdir()
    elif kind == "half-written spec":
        (world.config.cdi_dir / f".k8s.{DRIVER}-claim_uid-x.json.01.tmp").touch()
    else:
        (world.config.plugin_dir / "claims/.uid-x.json.01.tmp").touch()


@pytest.mark.parametrize(
    "kind", ["spec", "share", "half-made share", "half-written spec", "half-written record"]
)
def test_sweep_removes_strays(world: World, kind: str) -> None:
    world.prepared()
    before = world.state()
    make_stray(world, kind)
    assert world.state() != before
    world.preparer().sweep(ask=True)
    assert world.state() == before


def test_sweep_takes_nothing_of_another_driver_on_the_node(world: World) -> None:
    world.prepared()
    before = world.state()
    other = replace(world, driver="other.example.com", claims={})
    other.preparer().ready(UUIDS[0])
    world.claims.clear()
    other.preparer().sweep(ask=True)
    assert before.items() <= world.state().items()
    assert other.enforcer.share_keys() == ()


def test_sweep_gives_back_what_a_stray_share_folder_held(world: World) -> None:
    world.prepared()
    world.record_path("c").unlink()
    after = world.restarted()
    assert after.store.held(UUIDS[0]).memory == 4 << 30
    after.preparer().sweep(ask=True)
    assert after.store.held(UUIDS[0]).memory == 0


class Held(Faulty):
    """An enforcer whose shares all have living processes."""

    def in_use(self, _key: str) -> bool:
        return True


def test_sweep_never_removes_a_share_in_use(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.prepared()
    world.prepared("lost")
    world.record_path("lost").unlink()
    before = world.state()
    world.claims.clear()
    world.preparer(enforcer=Held(world.enforcer, "none")).sweep(ask=True)
    assert world.state() == before
    assert "processes still use its share" in caplog.text


def test_sweep_leaves_a_claim_alone_that_a_call_is_working_on(world: World) -> None:
    world.prepared()
    before = world.state()
    with world.store.claim_lock(ref().uid):
        world.claims.clear()
        world.preparer().sweep(ask=True)
    assert world.state() == before


def test_sweep_leaves_a_claim_alone_that_was_prepared_anew_meanwhile(world: World) -> None:
    world.prepared()

    def gone_and_back(wanted: ClaimRef) -> dict[str, Any]:
        world.preparer().unprepare(wanted)
        world.claims["c"] = claim(ref(), result(1))
        world.preparer().prepare(wanted)
        raise KubeNotFoundError("gone", 404)

    world.preparer(fetch=gone_and_back).sweep(ask=True)
    assert world.share("c").exists()


def test_sweep_moves_a_damaged_record_aside_and_keeps_its_share_and_spec(world: World) -> None:
    world.prepared()
    world.record_path("c").write_text("{")
    for _ in range(2):
        world.restarted().preparer().sweep(ask=True)
    assert world.record_path("c").with_name("uid-c.json.damaged").exists()
    assert world.share("c").exists()
    assert world.cdi.claims() == {"uid-c"}


def damage(world: World, name: str) -> Path:
    """Change a digit in the record of a claim that was prepared; return where it will lie."""
    path = world.record_path(name)
    path.write_bytes(path.read_bytes().replace(b"4294967296", b"8589934592"))
    return path.with_name(f"{path.name}.damaged")


def test_sweep_removes_a_claim_with_a_damaged_record_once_the_api_server_has_it_no_more(
    world: World,
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    aside = damage(world, "c")
    after = world.restarted()
    after.preparer().sweep(ask=True)
    after.preparer().sweep(ask=True)
    assert aside.exists()
    world.claims.clear()
    after.preparer(fetch=away).sweep(ask=True)
    after.preparer(enforcer=Held(after.enforcer, "none")).sweep(ask=True)
    after.preparer().sweep(ask=False)
    assert aside.exists()
    assert world.share("c").exists()
    after.preparer().sweep(ask=True)
    assert world.state() == before
    assert after.store.held(UUIDS[0]).memory == 0


def test_sweep_does_not_ask_for_a_name_that_may_be_damaged_too(world: World) -> None:
    world.prepared()
    world.record_path("c").write_bytes(
        world.record_path("c").read_bytes().replace(b'"name":"c"', b'"name":"d"')
    )
    for _ in range(2):
        world.restarted().preparer().sweep(ask=True)
    assert world.share("c").exists()


def test_sweep_removes_a_damaged_record_and_its_spec_after_a_boot_took_the_share(
    world: World,
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared()
    world.record_path("c").write_text("{")
    world.preparer().sweep(ask=False)
    shutil.rmtree(world.share("c"))
    world.restarted("boot-2").preparer().sweep(ask=False)
    assert world.state() == before


def test_sweep_removes_a_damaged_record_beside_a_good_one(world: World) -> None:
    world.prepared()
    aside = damage(world, "c")
    after = world.restarted()
    died = after.preparer(store=Faulty(after.store, "commit", KeyboardInterrupt()))
    died._undo = lambda *_arguments: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        died.prepare(ref())
    after.preparer().sweep(ask=True)
    assert aside.exists(), "a started record may yet be undone"
    after.prepared()
    after.preparer().sweep(ask=True)
    assert not aside.exists()
    assert after.store.uids() == {"uid-c"}
    assert world.share("c").exists()


def test_sweep_leaves_what_a_newer_plugin_wrote(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepared()
    world.write_newer_record("c")
    before = world.state()
    world.claims.clear()
    world.restarted().preparer().sweep(ask=True)
    assert world.state() == before
    assert "sweep failed, tried again later" in caplog.text


def test_sweep_goes_on_after_a_claim_that_fails_to_go(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepared("a")
    world.prepared("b")
    world.claims.clear()
    world.preparer(cdi=Faulty(world.cdi, "remove_claim")).sweep(ask=True)
    assert world.share("a").exists()
    assert not world.share("b").exists()
    assert "remove_claim failed" in caplog.text


def test_sweep_that_cannot_read_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.preparer(store=Faulty(world.store, "records")).sweep(ask=True)
    assert "sweep failed, tried again later" in caplog.text


def test_sweep_puts_a_static_spec_back_before_it_removes_what_another_plugin_named(
    world: World,
) -> None:
    preparer = world.preparer()
    old = world.config.plugin_dir / "lib/old"
    old.mkdir(parents=True)
    # Not ready yet: the spec on disk may be the only one that names it.
    preparer.sweep(ask=True)
    assert old.exists()
    preparer.ready(UUIDS[0])
    static = world.config.cdi_dir / f"k8s.{DRIVER}-driver.json"
    mine = static.read_text()
    static.write_text(mine.replace(world.enforcer.build, "old"))
    preparer.sweep(ask=True)
    assert static.read_text() == mine
    assert not old.exists()


def test_a_gpu_that_leaves_in_the_middle_of_a_prepare_is_no_fault_of_the_plugin(
    world: World,
) -> None:
    def leaves(wanted: ClaimRef) -> dict[str, Any]:
        world.devices.clear()
        return world.fetch(wanted)

    outcome = world.preparer(fetch=leaves).prepare(world.add("c"))
    assert "which this node does not publish" in outcome.error


def test_sweep_removes_libraries_that_no_record_names(world: World) -> None:
    world.prepared()
    old = world.config.plugin_dir / "lib"
    for name in ("named", "unnamed"):
        (old / name).mkdir()
    record = schema.load(world.record_path("c").read_bytes(), "c")
    world.record_path("c").write_bytes(schema.dump(replace(record, library="named")))
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    assert sorted(os.listdir(old)) == sorted([world.enforcer.build, "named"])  # noqa: PTH208
