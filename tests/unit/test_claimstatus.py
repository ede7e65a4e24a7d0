from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from apportion import claimstatus
from apportion.claimstatus import LATER, NOW, SOON, Condition, ShareStatus
from apportion.model import Access, Capacity, CoresUse, DeviceName, GpuUuid, Share, ShareKey, Usage

MIB = 1 << 20
READY = Condition("Ready", "True", "Prepared", "in force", "2026-01-01T00:00:00Z")
SHARE = Share(
    key=ShareKey("u-0"),
    request="gpu",
    pool="node-a",
    device=DeviceName("gpu-0"),
    share_id="id-0",
    uuid=GpuUuid("GPU-1"),
    capacity=Capacity(cores=30, memory=4096 * MIB),
)
STATUS = ShareStatus(
    node="node-a",
    key=SHARE.key,
    uuid=SHARE.uuid,
    capacity=SHARE.capacity,
    usage=Usage(
        total=5 * MIB,
        held=5 * MIB,
        processes=2,
        peak=9 * MIB,
        denied=1,
        cores=CoresUse(used=1_500_000_000, waited=250_000_000, overrun=1_000_000),
    ),
    observed="2026-01-01T00:01:00Z",
    conditions=(READY,),
)


def using(mib: int, denied: int = 0, processes: int = 1) -> ShareStatus:
    usage = Usage(mib * MIB, mib * MIB, processes, 4096 * MIB, denied)
    return replace(STATUS, usage=usage)


def test_an_entry_is_what_its_reader_reads() -> None:
    made = claimstatus.entry("apportion.gpu", SHARE, STATUS)
    assert claimstatus.read(made) == STATUS
    assert made["data"] == {
        "apiVersion": "apportion.gpu/v1alpha1",
        "kind": "ShareStatus",
        "node": "node-a",
        "share": "u-0",
        "uuid": "GPU-1",
        "memoryLimitBytes": 4096 * MIB,
        "coresLimit": 30,
        "access": "share",
        "memoryUsedBytes": 5 * MIB,
        "memoryPeakBytes": 9 * MIB,
        "refused": 1,
        "processes": 2,
        "coresUsedSeconds": 1.5,
        "coresWaitedSeconds": 0.25,
        "coresOverrunSeconds": 0.001,
        "observedAt": "2026-01-01T00:01:00Z",
    }
    assert (made["driver"], made["pool"], made["device"], made["shareID"]) == (
        "apportion.gpu",
        "node-a",
        "gpu-0",
        "id-0",
    )
    assert len(json.dumps(made["data"])) < 10 * 1024


@pytest.mark.parametrize("access", list(Access))
def test_how_much_of_the_gpu_it_is_is_told(access: Access) -> None:
    status = replace(STATUS, access=access, usage=None)
    made = claimstatus.entry("apportion.gpu", SHARE, status)
    assert made["data"]["access"] == access.value
    assert "memoryUsedBytes" not in made["data"]
    assert claimstatus.read(made) == status
    del made["data"]["access"]
    assert claimstatus.read(made) == replace(status, access=Access.SHARE), "as older plugins tell"


def test_a_card_given_whole_has_no_share_id_and_a_ledger_may_be_unreadable() -> None:
    made = claimstatus.entry("d", replace(SHARE, share_id=None), replace(STATUS, usage=None))
    assert "shareID" not in made
    assert "memoryUsedBytes" not in made["data"]
    read = claimstatus.read(made)
    assert read is not None
    assert read.usage is None


def test_fields_of_a_later_version_are_no_trouble() -> None:
    made = claimstatus.entry("d", SHARE, STATUS)
    made["data"] |= {"apiVersion": "apportion.gpu/v9", "more": {"deep": []}}
    assert claimstatus.read(made) == STATUS


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Other"},
        {"uuid": None},
        {"node": 5},
        {"memoryLimitBytes": "4Gi"},
        {"coresLimit": True},
        {"coresLimit": -1},
        {"observedAt": None},
    ],
)
def test_what_somebody_else_wrote_is_not_read(change: dict[str, Any]) -> None:
    made = claimstatus.entry("d", SHARE, STATUS)
    made["data"] |= change
    assert claimstatus.read(made) is None
    assert claimstatus.read({"data": "text"}) is None
    assert claimstatus.read({}) is None


@pytest.mark.parametrize("value", [None, -1, "1", True, float("nan"), 1e300])
def test_time_that_an_older_plugin_did_not_tell_or_nobody_can_is_none(value: object) -> None:
    made = claimstatus.entry("apportion.gpu", SHARE, STATUS)
    made["data"]["coresWaitedSeconds"] = value
    found = claimstatus.read(made)
    assert found is not None
    assert found.usage is not None
    assert (found.usage.held, found.usage.cores) == (5 * MIB, None)


def test_time_that_nothing_counts_is_not_told() -> None:
    assert STATUS.usage is not None
    untimed = replace(STATUS, usage=replace(STATUS.usage, cores=None))
    made = claimstatus.entry("apportion.gpu", SHARE, untimed)
    assert not [name for name in made["data"] if name.endswith("Seconds")]
    assert claimstatus.read(made) == untimed


def test_time_on_the_gpu_alone_is_no_reason_to_tell() -> None:
    assert STATUS.usage is not None
    later = replace(STATUS, usage=replace(STATUS.usage, cores=CoresUse(used=9_000_000_000)))
    assert claimstatus.urgency(STATUS, later) is None


def test_a_use_that_is_half_there_is_none() -> None:
    made = claimstatus.entry("d", SHARE, STATUS)
    made["data"]["memoryUsedBytes"] = 0.5
    read = claimstatus.read(made)
    assert read is not None
    assert read.usage is None


def test_own_entries_are_those_of_driver_and_pool() -> None:
    ours = claimstatus.entry("d", SHARE, STATUS)
    others: list[Any] = [ours | {"driver": "e"}, ours | {"pool": "node-b"}, "nonsense"]
    claim = {"status": {"devices": [*others, ours]}}
    assert claimstatus.own(claim, driver="d", pool="node-a") == {("gpu-0", "id-0"): ours}
    odd_ones: list[dict[str, Any]] = [{}, {"status": None}, {"status": {"devices": None}}]
    for odd in odd_ones:
        assert claimstatus.own(odd, driver="d", pool="node-a") == {}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, using(0), NOW),
        (using(0), using(0), None),
        (using(0), using(1), SOON),
        (using(1), using(0), SOON),
        (using(0, denied=0), using(0, denied=1), SOON),
        (using(100, denied=1), using(100, denied=9), None),
        (using(100), using(100, processes=5), None),
        (using(100), using(101), LATER),
        (using(1000), using(1000 + 127), LATER),
        (using(1000), using(1000 + 128), SOON),
        (using(1000), using(1000 - 128), SOON),
        (using(1000), replace(STATUS, usage=None), SOON),
        (replace(STATUS, usage=None), using(0), SOON),
        (replace(STATUS, usage=None), replace(STATUS, usage=None), None),
        (using(0), replace(using(0), uuid=GpuUuid("GPU-2")), NOW),
        (using(0), replace(using(0), capacity=Capacity(1, 1)), NOW),
        (using(0), replace(using(0), observed="later"), None),
        (using(0), replace(using(0), conditions=(replace(READY, since="later"),)), None),
        (using(0), replace(using(0), conditions=(replace(READY, status="False"),)), NOW),
        (using(0), replace(using(0), conditions=(replace(READY, message="hot"),)), SOON),
        (using(0), replace(using(0), conditions=(READY, replace(READY, type="Healthy"))), NOW),
    ],
)
def test_what_is_worth_telling_and_when(
    before: ShareStatus | None, now: ShareStatus, expected: int | None
) -> None:
    assert claimstatus.urgency(before, now) == expected


def test_a_small_share_has_a_step_worth_a_write() -> None:
    small = Capacity(cores=1, memory=64 * MIB)
    told, now = (replace(using(mib), capacity=small) for mib in (20, 30))
    assert claimstatus.urgency(told, now) == LATER
    assert claimstatus.urgency(told, replace(using(36), capacity=small)) == SOON


def test_a_condition_has_the_time_of_its_last_change() -> None:
    fresh = replace(READY, since="")
    down = replace(fresh, status="False")
    now = replace(STATUS, conditions=(fresh, replace(fresh, type="Healthy")))
    assert [c.since for c in claimstatus.dated(now, STATUS).conditions] == [
        READY.since,
        STATUS.observed,
    ]
    (changed,) = claimstatus.dated(replace(STATUS, conditions=(down,)), STATUS).conditions
    assert changed.since == STATUS.observed
    assert claimstatus.dated(now, None).conditions[0].since == STATUS.observed
