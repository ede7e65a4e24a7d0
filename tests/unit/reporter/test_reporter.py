"""Claims that are told of their shares, on a node of files and an API server of one dictionary."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from apportion.claimstatus import Condition
from apportion.errors import (
    KubeForbiddenError,
    KubeInvalidError,
    KubeUnavailableError,
    StorageError,
)
from apportion.model import ClaimRef, ShareKey
from apportion.reporter.marks import Marks

from tests.node.prepare.world import DRIVER, GIB, NODE, ref, result
from tests.unit.reporter.scene import MIB, Scene, key_of


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return Scene(tmp_path)


def test_a_prepared_claim_is_told_of_each_share(scene: Scene) -> None:
    scene.prepare("c", result(0), result(1, memory="6Gi", cores="50"))
    scene.rest()
    first, second = scene.api.devices("c")
    results = scene.world.claims["c"]["status"]["allocation"]["devices"]["results"]
    assert [key_of(item) for item in (first, second)] == [key_of(item) for item in results]
    assert first["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "its limits are in force",
            "lastTransitionTime": "1970-01-01T02:46:40Z",
        }
    ]
    assert [item["data"]["memoryLimitBytes"] for item in (first, second)] == [4 * GIB, 6 * GIB]
    assert first["data"]["memoryUsedBytes"] == 0
    assert scene.api.calls == ["get", "apply"]


def test_nothing_that_changed_is_nothing_written(scene: Scene) -> None:
    scene.prepare()
    for _ in range(100):
        scene.rest(30)
    assert scene.writes() == 1
    assert scene.api.calls.count("get") == 1


def test_use_is_told_once_in_an_interval_by_steps_and_in_the_end_exactly(scene: Scene) -> None:
    scene.prepare()
    scene.rest()
    scene.hold("c", 1000)
    scene.rest(10)
    assert scene.api.used("c") == [0]
    scene.rest(20)
    assert scene.api.used("c") == [1000 * MIB]
    scene.hold("c", 1010)
    for _ in range(9):
        scene.rest(30)
    assert scene.api.used("c") == [1000 * MIB]
    scene.rest(30)
    assert scene.api.used("c") == [1010 * MIB]
    scene.hold("c", 0)
    scene.rest(30)
    assert scene.api.used("c") == [0]
    assert scene.writes() == 4


def test_what_a_process_before_this_one_told_is_not_told_again(scene: Scene) -> None:
    scene.prepare()
    scene.rest()
    scene.started()
    scene.rest(30)
    assert scene.writes() == 1
    scene.hold("c", 1000)
    scene.rest(30)
    (entry,) = scene.api.devices("c")
    assert entry["data"]["memoryUsedBytes"] == 1000 * MIB
    assert entry["conditions"][0]["lastTransitionTime"] == "1970-01-01T02:46:40Z"


def test_other_drivers_entries_stay(scene: Scene) -> None:
    wanted = scene.world.add("c")
    other = {"driver": "net.example.com", "pool": NODE, "device": "nic-0"}
    scene.world.claims["c"]["status"]["devices"] = [other]
    scene.preparer().prepare(wanted)
    scene.rest()
    assert [item["driver"] for item in scene.api.devices("c")] == ["net.example.com", DRIVER]
    scene.preparer().unprepare(wanted)
    scene.rest()
    assert scene.api.devices("c") == [other]


def test_a_claim_that_lives_on_unprepared_says_nothing_more(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    scene.preparer().unprepare(wanted)
    scene.rest()
    assert scene.api.devices("c") == []
    assert scene.marks.uids() == frozenset()
    scene.rest(3000)
    assert scene.writes() == 2


def test_the_same_after_a_crash_in_between(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    # Its note went with the process.
    scene.world.preparer().unprepare(wanted)
    scene.started()
    scene.rest()
    assert scene.api.devices("c") == []
    assert scene.marks.uids() == frozenset()


def test_a_mark_that_nests_too_deep_is_a_damaged_one(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    (scene.world.config.plugin_dir / "told" / wanted.uid).write_bytes(b"[" * 100_000)
    scene.preparer().unprepare(wanted)
    scene.rest()
    assert scene.marks.uids() == frozenset()


def test_a_claim_that_is_gone_is_left(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    del scene.world.claims["c"]
    scene.preparer().unprepare(wanted)
    scene.rest()
    assert scene.marks.uids() == frozenset()


def test_another_claim_of_the_name_is_never_touched(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = scene.prepare()
    scene.rest()
    scene.world.claims["c"]["metadata"]["uid"] = "another"
    scene.hold("c", 1000)
    scene.rest(30)
    scene.preparer().unprepare(wanted)
    scene.rest()
    assert scene.api.used("c") == [0]
    assert scene.marks.uids() == frozenset()
    assert not [r for r in caplog.records if r.levelno == logging.ERROR]


def test_what_was_to_be_taken_back_stays_when_the_claim_is_prepared_again(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    scene.api.error = KubeUnavailableError("away")
    scene.preparer().unprepare(wanted)
    scene.reporter.step()
    scene.preparer().prepare(wanted)
    scene.api.error = None
    scene.rest(60)
    assert scene.api.used("c") == [0]
    assert scene.writes() == 1


def test_a_claim_that_fails_holds_up_no_other(scene: Scene) -> None:
    scene.prepare("a")
    scene.prepare("b")
    scene.api.errors = [KubeUnavailableError("a webhook does not answer", 500)]
    assert [scene.reporter.step() for _ in range(2)] == [0.0, 0.0]
    assert sorted(len(scene.api.devices(name)) for name in "ab") == [0, 1]
    scene.rest()
    assert [len(scene.api.devices(name)) for name in "ab"] == [1, 1]


def test_a_claim_that_is_prepared_again_at_once_is_told_again(scene: Scene) -> None:
    wanted = scene.prepare()
    scene.rest()
    scene.preparer().unprepare(wanted)
    scene.preparer().prepare(wanted)
    scene.hold("c", 500)
    scene.rest(30)
    assert scene.api.used("c") == [500 * MIB]


def test_an_allocation_that_is_not_the_prepared_one_is_not_written_to(scene: Scene) -> None:
    scene.prepare()
    scene.world.claims["c"]["status"]["allocation"]["devices"]["results"][0]["shareID"] = "new"
    scene.rest()
    assert scene.writes() == 0
    for _ in range(10):
        scene.rest(30)
    assert scene.api.calls == ["get"]


def test_missing_limits_are_a_share_that_is_not_ready(scene: Scene) -> None:
    scene.prepare()
    scene.rest()
    (scene.world.share("c") / "limits").unlink()
    for _ in range(40):
        scene.rest(30)
    (condition,) = scene.api.devices("c")[0]["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "LimitsMissing")
    assert condition["lastTransitionTime"] > "1970-01-01T02:46:40Z"


def test_conditions_that_change_are_told_at_once_when_that_is_said(scene: Scene) -> None:
    scene.prepare()
    scene.rest()
    scene.conditions = (Condition("Healthy", "False", "Xid79", "fallen off the bus"),)
    scene.rest(1)
    assert len(scene.api.devices("c")[0]["conditions"]) == 1
    scene.reporter.changed()
    scene.rest(1)
    assert [c["type"] for c in scene.api.devices("c")[0]["conditions"]] == ["Ready", "Healthy"]
    scene.conditions = (Condition("Healthy", "True", "NothingFound"),)
    scene.reporter.changed()
    scene.rest(1)
    assert scene.api.devices("c")[0]["conditions"][1]["status"] == "True"


def test_a_ledger_that_cannot_be_read_is_a_use_that_is_not_known(scene: Scene) -> None:
    scene.usages[scene.world.key("c")] = None
    scene.prepare()
    scene.rest()
    assert "memoryUsedBytes" not in scene.api.devices("c")[0]["data"]


def test_an_api_server_that_is_away_is_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.api.error = KubeUnavailableError("away")
    scene.prepare()
    began = scene.seconds
    for _ in range(50):
        scene.seconds += scene.reporter.step()
    assert scene.seconds - began > 500
    scene.api.error = None
    scene.rest(60)
    assert scene.api.used("c") == [0]
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1


def test_without_the_right_it_is_said_once_and_tried_slowly(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.api.error = KubeForbiddenError("may not patch", 403)
    for name in ("a", "b", "c"):
        scene.prepare(name, result(0, memory="1Gi", cores="1"))
    scene.rest()
    for _ in range(19):
        scene.rest(30)
    assert len(scene.api.calls) == 1
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    scene.api.error = None
    scene.rest(60)
    assert scene.writes() == 3


def test_a_claim_that_is_refused_holds_up_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare("a", result(0, memory="1Gi", cores="1"))
    scene.api.errors = [KubeInvalidError("must be an allocated device in the claim", 422)]
    scene.rest()
    scene.prepare("b", result(0, memory="1Gi", cores="1"))
    scene.rest()
    assert (scene.api.devices("a"), scene.api.used("b")) == ([], [0])
    assert not [r for r in caplog.records if r.levelno == logging.ERROR]
    scene.api.errors = [KubeInvalidError("again", 422)]
    scene.rest(30)
    assert [r.levelname for r in caplog.records if r.levelno == logging.ERROR] == ["ERROR"]
    scene.rest(600)
    assert scene.api.used("a") == [0]


def test_a_dropped_field_is_said_once_loudly_and_tried_slowly(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.api.drops = True
    for name in ("a", "b"):
        scene.prepare(name, result(0, memory="1Gi", cores="1"))
    scene.rest()
    for _ in range(10):
        scene.rest(30)
    assert scene.writes() == 1
    assert "DRAResourceClaimDeviceStatus" in scene.said[0]
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    scene.api.drops = False
    for _ in range(30):
        scene.rest(30)
    assert (scene.api.used("a"), scene.api.used("b")) == ([0], [0])


def test_a_thousand_claims_are_told_at_a_bounded_rate(scene: Scene) -> None:
    scene.prepare("c")
    scene.rest()
    (first,) = scene.world.store.records()
    # With all cores, so that none needs a part of the GPU's time.
    whole = replace(first.shares[0].capacity, cores=100)
    for n in range(1000):
        wanted = scene.world.add(f"x{n}")
        key = ShareKey(f"{wanted.uid}-0")
        shares = (replace(first.shares[0], key=key, capacity=whole),)
        record = replace(first, ref=wanted, shares=shares)
        scene.world.store.commit(record)
        scene.world.enforcer.prepare(shares[0])
        scene.reporter.prepared(record)
    began = scene.seconds
    scene.rest()
    assert scene.writes() == 1001
    assert scene.seconds - began >= 0.19 * 980


def test_a_record_that_is_being_prepared_or_damaged_is_left_in_peace(scene: Scene) -> None:
    scene.prepare()
    scene.rest()
    scene.world.record_path("c").write_bytes(b"{")
    scene.started()
    for _ in range(40):
        scene.rest(30)
    assert scene.api.used("c") == [0]
    assert scene.marks.uids() == {ref("c").uid}


def test_a_full_disk_delays_and_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare()
    with monkeypatch.context() as full:
        full.setattr(Marks, "add", _no_space)
        for _ in range(10):
            scene.seconds += scene.reporter.step()
    assert scene.writes() == 0
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    scene.rest(60)
    assert scene.api.used("c") == [0]


def _no_space(_marks: Marks, _ref: ClaimRef) -> None:
    raise StorageError("cannot write: No space left on device")


def test_the_loop_ends_when_told(scene: Scene) -> None:
    thread = threading.Thread(target=scene.reporter.run)
    thread.start()
    scene.reporter.stop()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(("calls", "waits"), [(0, 1), (2, 3), (1000, 5)])
def test_it_lets_kubelets_calls_pass_but_not_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, calls: int, waits: int
) -> None:
    uid = scene.prepare().uid
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) <= calls:
            scene.reporter.removed(uid)
        return False

    monkeypatch.setattr(scene.reporter._stop, "wait", wait)
    scene.reporter._let_pass()
    assert len(waited) == waits
