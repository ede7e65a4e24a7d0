from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from apportion.errors import StateError
from apportion.model import GpuUuid
from apportion.watch import record
from apportion.watch.condition import Condition, Level, Reason
from apportion.watch.record import Known, Record
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import samples

UUID = samples.gpu(0).uuid
_XID = Condition(Reason.XID, Level.LOST, 1764500000, "Xid 79: the GPU fell off the bus", 79)
_RECORD = Record("boot-1", "19170", {UUID: Known(samples.gpu(0), (_XID,))})


def content(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.dump(_RECORD))
    return found | changes


def loaded(data: Any) -> Record:
    return record.load(json.dumps(data).encode())


def test_what_is_written_is_read() -> None:
    other = GpuUuid("GPU-other")
    whole = Record("boot-1", "", {UUID: _RECORD.gpus[UUID], other: Known()})
    assert record.load(record.dump(whole)) == whole


def test_the_file_of_version_1_stays_readable() -> None:
    golden = (
        b'{"boot": "boot-1", "driver": "19170", "gpus": [{"conditions": [{"level": "LOST", '
        b'"number": 79, "reason": "xid", "since": 1764500000, "text": "Xid 79: the GPU fell off '
        b'the bus"}], "gpu": {"architecture": "Turing", "brand": "Tesla", "compute_capability": '
        b'[7, 5], "cuda_driver_version": [13, 0], "driver_version": "580.159.04", "index": 0, '
        b'"memory_reserved": 464519168, "memory_total": 16106127360, "mig_enabled": false, '
        b'"minor": 0, "numa_node": 0, "pci_bus_id": "0000:3b:00.0", "pcie_root": "pci0000:3a", '
        b'"product_name": "Tesla T4", "uuid": "GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000"}, '
        b'"uuid": "GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000"}], "version": 1}\n'
    )
    assert record.load(golden) == _RECORD
    assert record.dump(_RECORD) == golden


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = content(more=1)
    data["gpus"][0]["more"] = data["gpus"][0]["conditions"][0]["more"] = "x"
    data["gpus"][0]["gpu"]["more"] = {}
    assert loaded(data) == _RECORD


def test_a_reason_of_a_later_version_still_counts() -> None:
    data = content()
    data["gpus"][0]["conditions"][0] |= {"reason": "cosmic-rays", "number": 0}
    (found,) = loaded(data).gpus[UUID].conditions
    assert (found.reason, found.level, found.text) == (Reason.UNREADABLE, Level.LOST, _XID.text)


def test_a_gpu_described_by_fewer_fields_keeps_its_conditions() -> None:
    data = content()
    del data["gpus"][0]["gpu"]["minor"]
    assert loaded(data).gpus[UUID] == Known(None, (_XID,))


@pytest.mark.parametrize("version", [0, "1", None, 1.5, True])
def test_what_is_no_version_is_damage(version: object) -> None:
    with pytest.raises(StateError, match="no version"):
        loaded(content(version=version))


def test_a_later_version_is_read_as_far_as_it_can_be() -> None:
    assert loaded(content(version=2, more=1)) == _RECORD
    data = content(version=2)
    data["gpus"][0]["conditions"][0]["level"] = "DIRE"
    (found,) = loaded(data).gpus[UUID].conditions
    assert (found.number, found.level) == (79, Level.FAULT)
    with pytest.raises(StateError, match="damaged"):
        loaded({"version": 2, "cards": []})


@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{}", b'{"version": 1}', b'{"version": 1, "gpus": 3}', b"\xff"]
)
def test_damage_is_said(data: bytes) -> None:
    with pytest.raises(StateError, match="damaged"):
        record.load(data)


@given(st.binary(max_size=200) | st.integers(0, 600).map(lambda n: record.dump(_RECORD)[:n]))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    with contextlib.suppress(StateError):
        record.load(data)
