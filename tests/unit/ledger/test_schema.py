from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apportion.errors import StateError
from apportion.ledger import schema
from apportion.ledger.schema import NewerVersionError, Record, State
from apportion.model import (
    Access,
    Capacity,
    ClaimRef,
    ClaimUid,
    CoresPolicy,
    DeviceName,
    GpuUuid,
    PreparedDevice,
    Share,
    ShareKey,
)
from hypothesis import given
from hypothesis import strategies as st

_GOLDEN = Path(__file__).parent / "golden"

RECORD = Record(
    boot="7d2b3c0e-0000-4000-8000-000000000001",
    state=State.COMPLETED,
    ref=ClaimRef(ClaimUid("0a1b2c3d-0000-4000-8000-000000000002"), "team-a", "train"),
    pods=("train-0",),
    library="0123456789abcdef",
    shares=(
        Share(
            key=ShareKey("0a1b2c3d-0000-4000-8000-000000000002-0"),
            request="gpu/small",
            pool="node-a",
            device=DeviceName("gpu-0000-3b-00-0"),
            share_id="5e0f",
            uuid=GpuUuid("GPU-11111111-0000-4000-8000-000000000001"),
            capacity=Capacity(cores=30, memory=4 << 30),
            policy=CoresPolicy.BURST,
        ),
        Share(
            key=ShareKey("0a1b2c3d-0000-4000-8000-000000000002-2"),
            request="whole",
            pool="node-a",
            device=DeviceName("gpu-0000-86-00-0"),
            share_id=None,
            uuid=GpuUuid("GPU-22222222-0000-4000-8000-000000000002"),
            capacity=Capacity(cores=100, memory=14917 << 20),
        ),
    ),
    devices=(
        PreparedDevice(
            requests=("gpu",),
            pool="node-a",
            device="gpu-0000-3b-00-0",
            cdi_ids=(
                "k8s.apportion.gpu/claim=0a1b2c3d-0000-4000-8000-000000000002-0",
                "k8s.apportion.gpu/driver=all",
            ),
            share_id="5e0f",
        ),
    ),
)


def _sealed(content: dict[str, Any]) -> bytes:
    return schema._canonical(content | {"seal": schema._sealed(content)})


def _content() -> dict[str, Any]:
    content = json.loads(schema.dump(RECORD))
    del content["seal"]
    assert isinstance(content, dict)
    return content


def test_a_record_of_a_plugin_without_whole_cards_is_read_as_shares() -> None:
    assert schema.load((_GOLDEN / "record-v1.json").read_bytes(), "golden") == RECORD


def test_version_1_is_read_and_written_as_the_golden_file_has_it() -> None:
    golden = (_GOLDEN / "record-v1-access.json").read_bytes()
    share, whole = RECORD.shares
    admin = replace(
        whole, key=ShareKey(f"{RECORD.ref.uid}-3"), capacity=Capacity(0, 0), access=Access.ADMIN
    )
    record = replace(RECORD, shares=(share, replace(whole, access=Access.WHOLE), admin))
    assert schema.load(golden, "golden") == record
    assert schema.dump(record) == golden


@pytest.mark.parametrize("access", ["all", "", 1, None, [], {}])
def test_an_access_that_is_none_is_damage(access: object) -> None:
    content = _content()
    content["shares"][0]["access"] = access
    with pytest.raises(StateError, match="damaged"):
        schema.load(_sealed(content), "c.json")


def test_a_started_record_of_version_1_is_read_as_the_golden_file_has_it() -> None:
    golden = (_GOLDEN / "record-v1-started.json").read_bytes()
    assert schema.load(golden, "golden") == replace(RECORD, state=State.STARTED, devices=())


@pytest.mark.parametrize("length", [None, 300])
def test_whose_a_damaged_record_is_can_be_read_where_that_part_is_whole(length: int | None) -> None:
    data = schema.dump(RECORD).replace(b"4294967296", b"8294967296")[:length]
    assert schema.claim_of(data) == RECORD.ref


@pytest.mark.parametrize("old", [b'"train"', b'"team-a"', b'"0a1b2c3d-0000'])
def test_whose_a_damaged_record_is_is_not_guessed(old: bytes) -> None:
    data = schema.dump(RECORD)
    assert schema.claim_of(data.replace(old, old[:-1] + b'x"', 1)) is None
    assert schema.claim_of((_GOLDEN / "record-v1-started.json").read_bytes()) is None


@given(st.binary(max_size=200))
def test_nobody_is_in_any_bytes(data: bytes) -> None:
    assert schema.claim_of(data) is None
    assert schema.claim_of(b'"claim":' + data) is None


def test_fields_of_a_later_plugin_are_read_over_and_written_back() -> None:
    golden = (_GOLDEN / "record-v1-more-fields.json").read_bytes()
    record = schema.load(golden, "golden")
    assert record.extra == {"conditions": [{"type": "Ready"}], "guard": "kill"}
    assert replace(record, extra={}) == RECORD
    again = json.loads(schema.dump(record))
    assert again["conditions"] == [{"type": "Ready"}]
    assert again["guard"] == "kill"


def test_a_higher_version_is_refused_by_a_kind_of_its_own_and_names_the_file() -> None:
    content = _content() | {"version": 2, "shares": "something new"}
    with pytest.raises(NewerVersionError, match=r"c\.json has version 2.*reads up to 1"):
        schema.load(_sealed(content), "c.json")


def test_a_changed_digit_is_damage() -> None:
    data = schema.dump(RECORD).replace(b"4294967296", b"8294967296")
    with pytest.raises(StateError, match=r"c\.json is damaged: its seal"):
        schema.load(data, "c.json")


@given(st.integers(0, len(schema.dump(RECORD)) - 2))
def test_every_truncation_is_damage_and_never_another_error(length: int) -> None:
    with pytest.raises(StateError, match="damaged"):
        schema.load(schema.dump(RECORD)[:length], "c.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_damage_and_never_another_error(data: bytes) -> None:
    with pytest.raises(StateError, match="damaged"):
        schema.load(data, "c.json")


def test_nesting_without_end_is_damage() -> None:
    with pytest.raises(StateError, match="damaged"):
        schema.load(b"[" * 100_000, "c.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "1"),
        ("version", True),
        ("boot_id", 7),
        ("state", "half"),
        ("claim", []),
        ("claim", {"uid": "../x", "namespace": "a", "name": "b"}),
        ("claim", {"uid": "u", "namespace": "a"}),
        ("pods", [1]),
        ("library", None),
        ("shares", {}),
        ("shares", ["x"]),
        ("shares", [{"key": "k"}]),
        ("devices", [{"requests": [], "pool": "p", "device": "d", "cdi_ids": [1]}]),
    ],
)
def test_a_wrong_field_under_a_good_seal_is_damage(field: str, value: object) -> None:
    with pytest.raises(StateError, match=r"c\.json is damaged"):
        schema.load(_sealed(_content() | {field: value}), "c.json")


@pytest.mark.parametrize("amount", [-1, 1.5, "4", None, True])
def test_an_amount_that_is_no_amount_is_damage(amount: object) -> None:
    content = _content()
    content["shares"][0]["memory"] = amount
    with pytest.raises(StateError, match="memory"):
        schema.load(_sealed(content), "c.json")


@pytest.mark.parametrize(
    "key", ["../x", "", "0", "other-0", "{}", "{}-", "{}-x", "{}-00", "{}-0/.."]
)
def test_a_share_of_no_claim_or_another_is_damage(key: str) -> None:
    content = _content()
    content["shares"][0]["key"] = key.format(content["claim"]["uid"])
    with pytest.raises(StateError, match="is no share of claim UID"):
        schema.load(_sealed(content), "c.json")


def test_completing_keeps_what_the_record_holds() -> None:
    started = replace(RECORD, state=State.STARTED, devices=(), extra={"x": 1})
    done = started.completed(pods=("p",), library="l", devices=RECORD.devices)
    assert done.state is State.COMPLETED
    assert (done.shares, done.extra, done.pods) == (RECORD.shares, {"x": 1}, ("p",))
