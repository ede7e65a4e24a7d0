"""Taints in slices, and slices for API servers that drop them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from apportion import slices
from apportion.model import Inventory, Taint
from apportion.slices import Difference, Policy

from tests.fakes import samples

POLICY = Policy(driver=samples.DRIVER, node=samples.NODE)
_TAINT = Taint("apportion.gpu/xid", "79", "NoSchedule", "2026-01-31T12:00:00Z")
_NOTE = Taint("apportion.gpu/thermal", "", "None", "2026-01-31T12:00:00Z")


def _tainted(count: int, *indices: int, taint: Taint = _TAINT) -> list[dict[str, Any]]:
    taints = {samples.gpu(index).uuid: (taint,) for index in indices}
    offered = slices.devices(Inventory(tuple(map(samples.gpu, range(count)))), POLICY)
    return slices.slices(offered, POLICY, generation=7, taints=taints)


def test_a_taint_is_on_its_device_alone() -> None:
    (body,) = _tainted(2, 0)
    bad, good = body["spec"]["devices"]
    assert bad["taints"] == [
        {
            "key": "apportion.gpu/xid",
            "value": "79",
            "effect": "NoSchedule",
            "timeAdded": "2026-01-31T12:00:00Z",
        }
    ]
    assert "taints" not in good


def test_a_taint_without_a_value_has_none() -> None:
    (body,) = _tainted(1, 0, taint=_NOTE)
    assert "value" not in body["spec"]["devices"][0]["taints"][0]


@pytest.mark.parametrize(
    ("count", "tainted", "sizes"),
    [
        (128, (), [128]),
        (129, (), [128, 1]),
        (64, (0,), [64]),
        (65, (0,), [64, 1]),
        (129, (128,), [64, 64, 1]),
    ],
)
def test_slices_with_taints_hold_half_as_many(
    count: int, tainted: tuple[int, ...], sizes: list[int]
) -> None:
    bodies = _tainted(count, *tainted)
    assert [len(body["spec"]["devices"]) for body in bodies] == sizes
    pools = {
        (b["spec"]["pool"]["generation"], b["spec"]["pool"]["resourceSliceCount"]) for b in bodies
    }
    assert pools == {(7, len(sizes))}


def test_taints_that_the_server_dropped_are_gated_and_other_taints_are_changed() -> None:
    (wanted,), (found,) = _tainted(1, 0), _tainted(1)
    name = found["spec"]["devices"][0]["name"]
    assert slices.differs(wanted, found) == Difference(dropped=(f"spec.devices.{name}.taints",))
    assert slices.differs(found, wanted) == Difference(changed=(f"spec.devices.{name}.taints",))
    (later,) = _tainted(1, 0, taint=dataclasses.replace(_TAINT, value="62"))
    assert slices.differs(wanted, later).changed == (f"spec.devices.{name}.taints",)


def test_time_and_order_of_taints_are_no_difference() -> None:
    other = dataclasses.replace(_TAINT, value="62")
    later = dataclasses.replace(_TAINT, added="2026-01-31T12:00:01Z")
    offered = slices.devices(Inventory((samples.gpu(0),)), POLICY)
    (one,), (two,), (three,) = (
        slices.slices(offered, POLICY, generation=7, taints={samples.gpu(0).uuid: taints})
        for taints in ((_TAINT, other), (other, later), (other, other))
    )
    assert not slices.differs(one, two)
    assert slices.differs(one, three).changed


def test_where_taints_are_dropped_a_tainted_device_is_not_offered() -> None:
    bodies = _tainted(65, 0)
    (body,) = slices.untainted([bodies[0]])
    assert len(body["spec"]["devices"]) == 63
    # A slice without devices is none, and the count is of those that are.
    (only,) = slices.untainted(_tainted(65, 64))
    assert len(only["spec"]["devices"]) == 64
    assert only["spec"]["pool"]["resourceSliceCount"] == 1
    assert slices.untainted(_tainted(1, 0)) == []


def test_a_device_with_a_taint_for_information_stays_without_it() -> None:
    assert slices.untainted(_tainted(2, 0, taint=_NOTE)) == _tainted(2)
