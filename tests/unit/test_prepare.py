"""The path of a claim, step by step, on real files with faults put in between."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apportion.enforce.front import FrontEnforcer
from apportion.errors import EnforcementError, KubeUnavailableError
from apportion.ledger import schema
from apportion.ledger.schema import State
from apportion.model import ClaimOutcome, ClaimRef, ClaimUid, PreparedDevice

from tests.node.prepare.world import (
    DEVICES,
    DRIVER,
    NODE,
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


def prepared(world: World, name: str = "c", *results: dict[str, Any]) -> ClaimOutcome:
    outcome = world.preparer().prepare(world.add(name, *results))
    assert outcome.error == ""
    return outcome


# What a Prepare makes and answers


def test_the_answer_names_request_device_share_and_the_shares_own_cdi_name_first(
    world: World,
) -> None:
    assert prepared(world).devices == (
        PreparedDevice(
            requests=("gpu",),
            pool=NODE,
            device=DEVICES[0],
            cdi_ids=(f"k8s.{DRIVER}/claim=uid-c-0", f"k8s.{DRIVER}/driver=all"),
            share_id="share-a",
        ),
    )


def test_a_subrequest_is_answered_under_its_request(world: World) -> None:
    outcome = prepared(world, "c", result(request="gpu/large"))
    assert outcome.devices[0].requests == ("gpu",)


def test_record_share_folder_and_spec_are_there(world: World) -> None:
    outcome = prepared(world)
    record = schema.load(world.record_path("c").read_bytes(), "c")
    assert (record.state, record.boot, record.devices) == (
        State.COMPLETED,
        "boot-1",
        outcome.devices,
    )
    assert (record.pods, record.library) == (("pod-of-c",), world.enforcer.build)
    assert (world.share("c") / "limits").read_text().splitlines()[3:5] == [
        "memory 4294967296",
        "cores 30",
    ]
    (device,) = world.spec("c")["devices"]
    assert device["name"] == "uid-c-0"
    assert device["containerEdits"]["deviceNodes"] == [
        {
            "path": "/dev/nvidia0",
            "hostPath": "/run/nvidia/driver/dev/nvidia0",
            "permissions": "rw",
        }
    ]
    static = json.loads(world.cdi.driver_path().read_text())
    assert static["containerEdits"]["mounts"]


def test_a_prepared_share_is_one_line_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "apportion.prepare")
    ticks = iter((10.0, 10.0125, 10.0125))
    preparer = world.preparer()
    preparer._clock = lambda: next(ticks)
    preparer.prepare(world.add("c", result(0), result(1, memory="1Gi", cores="5")))
    first, second = (vars(record) for record in caplog.records)
    assert first["message"] == "prepared"
    wanted = {
        "claim": "default/c",
        "uid": "uid-c",
        "pod": "pod-of-c",
        "device": DEVICES[0],
        "uuid": UUIDS[0],
        "memory": 4 << 30,
        "memory_mib": "4096MiB",
        "cores": 30,
        "share": "uid-c-0",
        "ms": 12.5,
    }
    assert wanted.items() <= first.items()
    assert (second["share"], second["memory_mib"], second["cores"]) == ("uid-c-1", "1024MiB", 5)


def test_two_shares_of_one_gpu_in_one_claim_stand_beside_each_other(world: World) -> None:
    outcome = prepared(
        world,
        "c",
        result(0, request="a", memory="4Gi", share_id="s"),
        result(0, request="b", memory="8Gi", share_id="s"),
    )
    assert [(d.requests, d.share_id, d.cdi_ids[0][-7:]) for d in outcome.devices] == [
        (("a",), "s", "uid-c-0"),
        (("b",), "s1", "uid-c-1"),
    ]
    assert [device["name"] for device in world.spec("c")["devices"]] == ["uid-c-0", "uid-c-1"]
    limits = [(world.share("c", n) / "limits").read_text() for n in (0, 1)]
    assert "memory 4294967296\n" in limits[0]
    assert "memory 8589934592\n" in limits[1]


def test_keys_count_results_of_other_drivers_too(world: World) -> None:
    foreign = result(1) | {"driver": "nic.example.com"}
    outcome = prepared(world, "c", foreign, result(0))
    assert [device.cdi_ids[0] for device in outcome.devices] == [f"k8s.{DRIVER}/claim=uid-c-1"]


def test_two_claims_on_one_gpu_have_nothing_in_common_but_the_static_spec(world: World) -> None:
    prepared(world, "a")
    before = world.state()
    prepared(world, "b")
    assert before.items() <= world.state().items()
    world.preparer().unprepare(ref("b"))
    assert world.state() == before


# The kubelet contract, line by line


def test_kubelet_one_prepare_per_claim_gets_its_devices(world: World) -> None:
    assert len(prepared(world, "c", result(0), result(1)).devices) == 2


def test_kubelet_restart_replays_prepare_and_gets_the_same_answer(world: World) -> None:
    first = prepared(world)
    ledger = (world.share("c") / "ledger").stat().st_ino
    record = world.record_path("c").stat().st_ino
    assert prepared(world) == first
    assert prepared(world.restarted()) == first
    assert (world.share("c") / "ledger").stat().st_ino == ledger
    assert world.record_path("c").stat().st_ino == record


def test_kubelet_replay_rewrites_a_lost_or_changed_cdi_spec(world: World) -> None:
    prepared(world)
    before = world.state()
    world.cdi.claim_path(ref().uid).unlink()
    world.cdi.driver_path().write_text("{}")
    prepared(world)
    assert world.state() == before
    world.cdi.claim_path(ref().uid).write_text("{}")
    prepared(world.restarted())
    assert world.state() == before


def test_kubelet_replay_after_a_reboot_prepares_everything_again(world: World) -> None:
    first = prepared(world)
    ledger = world.share("c") / "ledger"
    with ledger.open("r+b") as written:
        written.seek(24)
        written.write(b"\xff" * 8)
    after = world.restarted("boot-2")
    assert prepared(after) == first
    assert ledger.read_bytes()[24:32] == bytes(8)
    assert schema.load(world.record_path("c").read_bytes(), "c").boot == "boot-2"


def test_kubelet_unprepare_after_the_last_pod_removes_everything(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world, "c", result(0), result(0), result(1))
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_kubelet_repeats_unprepare_and_an_unknown_claim_is_success(world: World) -> None:
    assert world.preparer().unprepare(ref("never")) == FORGOTTEN
    prepared(world)
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert world.preparer().unprepare(ref()) == FORGOTTEN


def test_kubelet_unprepare_needs_no_api_server_and_no_driver(world: World) -> None:
    prepared(world)
    shutil.rmtree(world.config.driver_root_mount)
    world.claims.clear()
    assert world.preparer(devices={}).unprepare(ref()) == FORGOTTEN
    assert not world.share("c").exists()


def test_kubelet_error_of_one_claim_fails_no_other(world: World) -> None:
    preparer = world.preparer()
    wanted = [world.add("a"), ref("missing"), world.add("b")]
    outcomes = [preparer.prepare(each) for each in wanted]
    assert [bool(outcome.devices) for outcome in outcomes] == [True, False, True]
    assert outcomes[1].error.startswith("cannot prepare claim default/missing")


def test_kubelet_same_name_with_a_new_uid_is_another_claim(world: World) -> None:
    prepared(world)
    newer = ClaimRef(ClaimUid("uid-newer"), "default", "c")
    assert "UID" in world.preparer().prepare(newer).error
    world.claims["c"] = claim(newer, result(1))
    assert world.preparer().prepare(newer).devices
    assert "UID" in world.preparer().prepare(ref()).error
    # A late Unprepare of the old one takes nothing of its successor's.
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert (world.config.shares_dir / "uid-newer-0").exists()
    assert world.cdi.claims() == {"uid-newer"}


# What is refused


@pytest.mark.parametrize("uid", ["../../etc/x", "a/b", "", ".", "a" * 64])
def test_a_uid_that_is_no_uid_never_becomes_a_path(world: World, uid: str) -> None:
    odd = ClaimRef(ClaimUid(uid), "default", "c")
    for outcome in (world.preparer().prepare(odd), world.preparer().unprepare(odd)):
        assert "cannot name a file" in outcome.error
    assert world.state() == {}


def test_over_commit_is_refused_by_the_ledger_itself_and_names_who_is_in_the_way(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(world, "a", result(0, memory="8Gi", cores="50"))
    before = world.state()
    outcome = world.preparer().prepare(world.add("b", result(0, memory="7Gi")))
    assert outcome.devices == ()
    for part in ("default/b", UUIDS[0], "default/a (8192MiB", "given 7168MiB", "6725MiB"):
        assert part in outcome.error
    assert world.state() == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_over_commit_within_one_claim_is_refused(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    outcome = world.preparer().prepare(
        world.add("c", result(0, memory="8Gi"), result(0, memory="8Gi"))
    )
    assert "no other claim holds" in outcome.error
    assert world.state() == before


def test_cores_are_proven_as_well(world: World) -> None:
    prepared(world, "a", result(0, memory="1Gi", cores="80"))
    outcome = world.preparer().prepare(world.add("b", result(0, memory="1Gi", cores="21")))
    assert "20 cores left" in outcome.error


def test_an_api_server_that_is_away_is_said_and_nothing_is_left(world: World) -> None:
    def away(_ref: ClaimRef) -> dict[str, Any]:
        raise KubeUnavailableError("the API server does not answer; tried again by kubelet")

    outcome = world.preparer(fetch=away).prepare(world.add("c"))
    assert outcome.error.startswith("cannot prepare claim default/c: the API server")
    assert world.state() == {}


def test_a_claim_that_is_not_allocated_is_refused(world: World) -> None:
    world.add("c")
    del world.claims["c"]["status"]
    outcome = world.preparer().prepare(ref())
    assert outcome.error.startswith("cannot prepare claim default/c: ")
    assert "not allocated" in outcome.error
    assert outcome.error.count("default/c") == 1


def test_a_missing_device_node_is_said_and_prepared_once_it_appears(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    node = world.config.driver_root_mount / "dev/nvidia0"
    node.unlink()
    outcome = world.preparer().prepare(world.add("c"))
    assert "/run/nvidia/driver/dev/nvidia0" in outcome.error
    assert world.state() == before
    node.touch()
    prepared(world)


def test_a_missing_driver_is_said(world: World) -> None:
    shutil.rmtree(world.config.driver_root_mount)
    outcome = world.preparer().prepare(world.add("c"))
    assert "install the NVIDIA driver" in outcome.error
    assert world.state() == {}


def test_a_failed_self_test_prepares_nothing(world: World) -> None:
    def fail(_trial: object) -> str:
        raise EnforcementError("self-test failed: granted")

    enforcer = FrontEnforcer(world.config, fail)
    preparer = world.preparer(enforcer=enforcer)
    with pytest.raises(EnforcementError, match="granted"):
        preparer.ready(UUIDS[0])
    assert "self-test failed" in preparer.prepare(world.add("c")).error
    assert world.state() == {}


def test_a_fault_of_ours_is_an_error_of_one_claim_and_logged_with_its_trace(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    broken = Faulty(world.cdi, "write_claim", ZeroDivisionError("oops"))
    outcome = world.preparer(cdi=broken).prepare(world.add("c"))
    assert "ZeroDivisionError: oops; this is a fault of the plugin" in outcome.error
    assert world.state() == before
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info
    broken = Faulty(world.cdi, "remove_claim", ZeroDivisionError("oops"))
    assert "fault of the plugin" in world.preparer(cdi=broken).unprepare(ref()).error


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
    prepared(world, "other")
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
    first = prepared(world, "c", result(0), result(1))
    before = world.state()
    inode = (world.share("c") / "ledger").stat().st_ino
    world.preparer(**faulty(world, *step)).prepare(ref())
    assert world.state() == before
    assert (world.share("c") / "ledger").stat().st_ino == inode
    assert world.preparer().prepare(ref()) == first


@pytest.mark.parametrize("step", _STEPS[4:], ids=lambda step: "-".join(map(str, step)))
def test_what_a_dead_plugin_left_started_goes_when_the_next_prepare_fails(
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
    if step[1] == "begin":
        assert outcome.devices, "a started record is gone on with"
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
    world.preparer().sweep(lambda _ref: True)
    assert not world.share("c").exists()


# Unprepare fails


@pytest.mark.parametrize(
    ("part", "call"),
    [("cdi", "remove_claim"), ("enforcer", "remove"), ("store", "remove"), ("store", "get")],
)
def test_an_unprepare_that_fails_says_why_keeps_the_record_and_works_the_next_time(
    world: World, part: str, call: str
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world, "c", result(0), result(0))
    outcome = world.preparer(**faulty(world, part, call, after=False, nth=1)).unprepare(ref())
    assert outcome.error.startswith("cannot unprepare claim default/c: ")
    assert world.record_path("c").exists()
    assert world.store.held(UUIDS[0]).memory == 8 << 30
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_unprepare_removes_spec_then_shares_then_record(world: World) -> None:
    prepared(world)
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
    first = prepared(world)
    inode = (world.share("c") / "ledger").stat().st_ino
    world.record_path("c").write_bytes(world.record_path("c").read_bytes()[:40])
    assert prepared(world.restarted()) == first
    assert (world.share("c") / "ledger").stat().st_ino == inode
    world.preparer().unprepare(ref())
    assert world.state() == {
        path: text for path, text in world.state().items() if path.endswith("-driver.json")
    }


def test_a_running_share_without_record_survives_a_prepare_that_fails(world: World) -> None:
    prepared(world)
    inode = (world.share("c") / "ledger").stat().st_ino
    world.record_path("c").unlink()
    again = world.restarted()
    again.preparer(cdi=Faulty(again.cdi, "write_claim")).prepare(ref())
    assert (world.share("c") / "ledger").stat().st_ino == inode


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\0" * 400])
def test_a_damaged_record_is_unprepared(world: World, content: bytes) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world, "c", result(0), result(1))
    world.record_path("c").write_bytes(content)
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def newer_record(world: World, name: str) -> None:
    content = {"version": 9, "claim": "told otherwise"}
    data = schema._canonical(content | {"seal": schema._sealed(content)})
    world.record_path(name).write_bytes(data)


def test_a_record_of_a_newer_plugin_is_not_prepared_over_and_can_be_unprepared(
    world: World,
) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world)
    newer_record(world, "c")
    kept = world.state()
    outcome = world.restarted().preparer().prepare(ref())
    assert "run the newer plugin" in outcome.error
    assert world.state() == kept
    assert world.restarted().preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_a_claim_that_was_allocated_anew_gets_its_new_share_only(world: World) -> None:
    prepared(world, "c", result(0), result(0, memory="1Gi"))
    world.claims["c"] = claim(ref(), result(1, memory="2Gi"))
    outcome = world.preparer().prepare(ref())
    assert [device.device for device in outcome.devices] == [DEVICES[1]]
    assert not world.share("c", 1).exists()
    assert world.store.held(UUIDS[0]).memory == 0
    assert world.store.held(UUIDS[1]).memory == 2 << 30


def test_a_claim_that_was_allocated_anew_waits_for_processes_of_its_old_share(
    world: World,
) -> None:
    prepared(world)
    world.claims["c"] = claim(ref(), result(1))

    class Busy(Faulty):
        def in_use(self, _key: str) -> bool:
            return True

    outcome = world.preparer(enforcer=Busy(world.enforcer, "none")).prepare(ref())
    assert "allocated anew while processes still use its old share uid-c-0" in outcome.error
    assert world.share("c").exists()


def test_a_share_folder_that_says_something_else_is_left_and_reported(world: World) -> None:
    prepared(world)
    limits = world.share("c") / "limits"
    limits.chmod(0o644)
    limits.write_text(limits.read_text().replace("4294967296", "8589934592"))
    outcome = world.preparer().prepare(ref())
    assert "says something else than the claim" in outcome.error
    assert world.share("c").exists()


def test_a_pod_that_joined_is_noted(world: World) -> None:
    prepared(world)
    world.claims["c"]["status"]["reservedFor"].append({"resource": "pods", "name": "p2"})
    world.preparer().prepare(ref())
    record = schema.load(world.record_path("c").read_bytes(), "c")
    assert set(record.pods) == {"p2", "pod-of-c"}


# Sweep


def everything(_ref: ClaimRef) -> bool:
    return True


def test_sweep_keeps_claims_that_exist_and_those_it_cannot_ask_for(world: World) -> None:
    prepared(world)
    before = world.state()
    world.preparer().sweep(everything)
    world.preparer().sweep(lambda _ref: None)
    assert world.state() == before


def test_sweep_removes_claims_that_went_while_the_plugin_was_down(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world)
    world.restarted().preparer().sweep(lambda _ref: False)
    assert world.state() == before


def test_sweep_removes_what_was_prepared_before_the_last_boot(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    prepared(world)
    after = world.restarted("boot-2")
    after.preparer().sweep(everything)
    assert world.state() == before
    assert after.store.held(UUIDS[0]).memory == 0


def make_stray(world: World, kind: str) -> None:
    if kind == "spec":
        world.cdi.write_claim(ClaimUid("uid-x"), {})
    elif kind == "share":
        shutil.copytree(world.share("c"), world.config.shares_dir / "uid-x-0")
    elif kind == "half-made share":
        (world.config.shares_dir / ".uid-x-0.tmp").mkdir()
    elif kind == "half-written spec":
        (world.config.cdi_dir / f".k8s.{DRIVER}-claim_uid-x.json.01.tmp").touch()
    else:
        (world.config.plugin_dir / "claims/.uid-x.json.01.tmp").touch()


@pytest.mark.parametrize(
    "kind", ["spec", "share", "half-made share", "half-written spec", "half-written record"]
)
def test_sweep_removes_strays(world: World, kind: str) -> None:
    prepared(world)
    before = world.state()
    make_stray(world, kind)
    assert world.state() != before
    world.preparer().sweep(everything)
    assert world.state() == before


def test_sweep_gives_back_what_a_stray_share_folder_held(world: World) -> None:
    prepared(world)
    world.record_path("c").unlink()
    after = world.restarted()
    assert after.store.held(UUIDS[0]).memory == 4 << 30
    after.preparer().sweep(everything)
    assert after.store.held(UUIDS[0]).memory == 0


class Held(Faulty):
    """An enforcer whose shares all have living processes."""

    def in_use(self, _key: str) -> bool:
        return True


def test_sweep_never_removes_a_share_in_use(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    prepared(world)
    prepared(world, "lost")
    world.record_path("lost").unlink()
    before = world.state()
    world.preparer(enforcer=Held(world.enforcer, "none")).sweep(lambda _ref: False)
    assert world.state() == before
    assert "processes still use its share" in caplog.text


def test_sweep_leaves_a_claim_alone_that_a_call_is_working_on(world: World) -> None:
    prepared(world)
    before = world.state()
    with world.store.claim_lock(ref().uid):
        world.preparer().sweep(lambda _ref: False)
    assert world.state() == before


def test_sweep_leaves_a_claim_alone_that_was_prepared_anew_meanwhile(world: World) -> None:
    prepared(world)

    def gone_and_back(wanted: ClaimRef) -> bool:
        world.preparer().unprepare(wanted)
        world.claims["c"] = claim(ref(), result(1))
        world.preparer().prepare(wanted)
        return False

    world.preparer().sweep(gone_and_back)
    assert world.share("c").exists()


def test_sweep_moves_a_damaged_record_aside_and_keeps_its_share_and_spec(world: World) -> None:
    prepared(world)
    world.record_path("c").write_text("{")
    for _ in range(2):
        world.restarted().preparer().sweep(everything)
    assert world.record_path("c").with_name("uid-c.json.damaged").exists()
    assert world.share("c").exists()
    assert world.cdi.claims() == {"uid-c"}


def test_sweep_leaves_what_a_newer_plugin_wrote(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(world)
    newer_record(world, "c")
    before = world.state()
    world.restarted().preparer().sweep(lambda _ref: False)
    assert world.state() == before
    assert "sweep failed, tried again later" in caplog.text


def test_sweep_goes_on_after_a_claim_that_fails_to_go(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(world, "a")
    prepared(world, "b")
    world.preparer(cdi=Faulty(world.cdi, "remove_claim")).sweep(lambda _ref: False)
    assert world.share("a").exists()
    assert not world.share("b").exists()
    assert "remove_claim failed" in caplog.text


def test_sweep_that_cannot_read_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.preparer(store=Faulty(world.store, "records")).sweep(everything)
    assert "sweep failed, tried again later" in caplog.text


def test_sweep_removes_libraries_that_no_record_names(world: World) -> None:
    prepared(world)
    old = world.config.plugin_dir / "lib"
    for name in ("named", "unnamed"):
        (old / name).mkdir()
    record = schema.load(world.record_path("c").read_bytes(), "c")
    world.record_path("c").write_bytes(schema.dump(replace(record, library="named")))
    world.preparer().sweep(everything)
    assert sorted(os.listdir(old)) == sorted([world.enforcer.build, "named"])  # noqa: PTH208
