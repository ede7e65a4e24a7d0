"""What a Prepare and an Unprepare make and answer, and what is refused."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from apportion.enforce import proof
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


# What a Prepare makes and answers


def test_the_answer_names_request_device_share_and_the_shares_own_cdi_name_first(
    world: World,
) -> None:
    assert world.prepared().devices == (
        PreparedDevice(
            requests=("gpu",),
            pool=NODE,
            device=DEVICES[0],
            cdi_ids=(f"k8s.{DRIVER}/claim=uid-c-0", f"k8s.{DRIVER}/driver=all"),
            share_id="share-a",
        ),
    )


def test_a_subrequest_is_answered_under_its_request(world: World) -> None:
    outcome = world.prepared("c", result(request="gpu/large"))
    assert outcome.devices[0].requests == ("gpu",)


def test_record_share_folder_and_spec_are_there(world: World) -> None:
    outcome = world.prepared()
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
    static = json.loads((world.config.cdi_dir / f"k8s.{DRIVER}-driver.json").read_text())
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
    outcome = world.prepared(
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
    outcome = world.prepared("c", foreign, result(0))
    assert [device.cdi_ids[0] for device in outcome.devices] == [f"k8s.{DRIVER}/claim=uid-c-1"]


def test_two_claims_on_one_gpu_have_nothing_in_common_but_the_static_spec(world: World) -> None:
    world.prepared("a")
    before = world.state()
    world.prepared("b")
    assert before.items() <= world.state().items()
    world.preparer().unprepare(ref("b"))
    assert world.state() == before


# The kubelet contract, line by line


def test_kubelet_one_prepare_per_claim_gets_its_devices(world: World) -> None:
    assert len(world.prepared("c", result(0), result(1)).devices) == 2


def test_kubelet_restart_replays_prepare_and_gets_the_same_answer(world: World) -> None:
    first = world.prepared()
    ledger = (world.share("c") / "ledger").stat().st_ino
    record = world.record_path("c").stat().st_ino
    assert world.prepared() == first
    assert world.restarted().prepared() == first
    assert (world.share("c") / "ledger").stat().st_ino == ledger
    assert world.record_path("c").stat().st_ino == record


def test_kubelet_replay_rewrites_a_lost_or_changed_cdi_spec(world: World) -> None:
    world.prepared()
    before = world.state()
    world.cdi.claim_path(ref().uid).unlink()
    (world.config.cdi_dir / f"k8s.{DRIVER}-driver.json").write_text("{}")
    world.prepared()
    assert world.state() == before
    world.cdi.claim_path(ref().uid).write_text("{}")
    world.restarted().prepared()
    assert world.state() == before


def test_kubelet_replay_after_a_reboot_prepares_everything_again(world: World) -> None:
    first = world.prepared()
    ledger = world.share("c") / "ledger"
    with ledger.open("r+b") as written:
        written.seek(24)
        written.write(b"\xff" * 8)
    after = world.restarted("boot-2")
    assert after.prepared() == first
    assert ledger.read_bytes()[24:32] == bytes(8)
    assert schema.load(world.record_path("c").read_bytes(), "c").boot == "boot-2"


def test_kubelet_unprepare_after_the_last_pod_removes_everything(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    world.prepared("c", result(0), result(0), result(1))
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert world.state() == before


def test_kubelet_repeats_unprepare_and_an_unknown_claim_is_success(world: World) -> None:
    assert world.preparer().unprepare(ref("never")) == FORGOTTEN
    world.prepared()
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert world.preparer().unprepare(ref()) == FORGOTTEN


def test_kubelet_unprepare_needs_no_api_server_and_no_driver(world: World) -> None:
    world.prepared()
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
    world.prepared()
    newer = ClaimRef(ClaimUid("uid-newer"), "default", "c")
    assert "UID" in world.preparer().prepare(newer).error
    world.claims["c"] = claim(newer, result(1))
    assert world.preparer().prepare(newer).devices
    assert "UID" in world.preparer().prepare(ref()).error
    # A late Unprepare of the old one takes nothing of its successor's.
    assert world.preparer().unprepare(ref()) == FORGOTTEN
    assert (world.config.driver_shares_dir / "uid-newer-0").exists()
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
    world.prepared("a", result(0, memory="8Gi", cores="50"))
    before = world.state()
    outcome = world.preparer().prepare(world.add("b", result(0, memory="7Gi")))
    assert outcome.devices == ()
    for part in ("default/b", UUIDS[0], "default/a (8192MiB", "given 7168MiB", "6725MiB"):
        assert part in outcome.error
    assert world.state() == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert world.told == [(ref("b"), "OverCommitRefused", outcome.error)]


def test_what_kubelet_is_told_is_told_to_the_pods_in_the_same_words(world: World) -> None:
    refused = world.preparer().prepare(ref("none"))
    assert world.told == [(ref("none"), "PrepareRefused", refused.error)]
    world.prepared("c")
    broken = Faulty(world.cdi, "remove_claim")
    failed = world.preparer(cdi=broken).unprepare(ref("c"))
    assert world.told[1:] == [(ref("c"), "UnprepareFailed", failed.error)]


def test_over_commit_within_one_claim_is_refused(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    outcome = world.preparer().prepare(
        world.add("c", result(0, memory="8Gi"), result(0, memory="8Gi"))
    )
    assert "no other claim holds" in outcome.error
    assert world.state() == before


def test_cores_are_proven_as_well(world: World) -> None:
    world.prepared("a", result(0, memory="1Gi", cores="80"))
    outcome = world.preparer().prepare(world.add("b", result(0, memory="1Gi", cores="21")))
    assert "20 cores left" in outcome.error


def test_an_api_server_that_is_away_is_said_and_nothing_is_left(world: World) -> None:
    def away(_ref: ClaimRef) -> dict[str, Any]:
        raise KubeUnavailableError("the API server does not answer; tried again by kubelet")

    outcome = world.preparer(fetch=away).prepare(world.add("c"))
    assert outcome.error.startswith("cannot prepare claim default/c: the API server")
    assert world.state() == {}


def test_a_claim_that_is_not_there_is_refused_with_what_to_do(world: World) -> None:
    assert world.preparer().prepare(ref()).error == (
        "cannot prepare claim default/c: it was deleted or never there; if its pod stays, delete "
        "the pod (GET /apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c: 404 "
        'resourceclaims.resource.k8s.io "c" not found)'
    )


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
    world.prepared()


def test_a_missing_driver_is_said(world: World) -> None:
    shutil.rmtree(world.config.driver_root_mount)
    outcome = world.preparer().prepare(world.add("c"))
    assert "install the NVIDIA driver" in outcome.error
    assert world.state() == {}


def test_a_failed_self_test_prepares_nothing(world: World) -> None:
    def fail(_trial: object) -> proof.Verdict:
        raise EnforcementError("self-test failed: granted")

    enforcer = FrontEnforcer(world.config, fail)
    preparer = world.preparer(enforcer=enforcer)
    with pytest.raises(EnforcementError, match="granted"):
        preparer.ready(UUIDS[0])
    assert "self-test failed" in preparer.prepare(world.add("c")).error
    assert world.state() == {}


def test_a_fault_of_ours_leaves_nothing_and_is_left_to_the_server(world: World) -> None:
    world.preparer().ready(UUIDS[0])
    before = world.state()
    broken = Faulty(world.cdi, "write_claim", ZeroDivisionError("oops"))
    with pytest.raises(ZeroDivisionError):
        world.preparer(cdi=broken).prepare(world.add("c"))
    assert world.state() == before


# The last plugin of a node goes


def test_without_claims_no_cdi_file_stays(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    assert world.config.cdi_dir.joinpath(f"k8s.{DRIVER}-driver.json").exists()
    preparer.retire()
    assert list(world.config.cdi_dir.iterdir()) == []
    preparer.ready(UUIDS[0])
    assert world.config.cdi_dir.joinpath(f"k8s.{DRIVER}-driver.json").exists()


def test_with_a_claim_the_static_spec_stays_for_its_containers(world: World) -> None:
    world.prepared()
    world.preparer().retire()
    assert world.config.cdi_dir.joinpath(f"k8s.{DRIVER}-driver.json").exists()
