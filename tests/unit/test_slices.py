from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from apportion import quantity, slices
from apportion.model import CoresMode, Inventory
from apportion.slices import Difference, Policy
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import samples
from tests.fakes.samples import MIB

POLICY = Policy(driver=samples.DRIVER, node=samples.NODE)
LAB = Policy(
    driver="hami-core-gpu.project-hami.io",
    node="t4-node",
    naming="index",
    prefix="hami-gpu-",
    memory_capacity="total",
    cores_min=0,
)
# The API server's own expression (semver.org 2.0.0), see pkg/apis/resource/validation.
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


def _inventory(count: int = 1, **changes: Any) -> Inventory:
    return Inventory(tuple(samples.gpu(n, **changes) for n in range(count)))


def _slices(count: int = 1, policy: Policy = POLICY, **changes: Any) -> list[dict[str, Any]]:
    offered = slices.devices(_inventory(count, **changes), policy)
    return slices.slices(offered, policy, generation=1)


def _device(policy: Policy = POLICY, **changes: Any) -> dict[str, Any]:
    (body,) = _slices(1, policy, **changes)
    found: dict[str, Any] = body["spec"]["devices"][0]
    return found


def test_step_one_of_the_lab_prints_exactly_its_capacity() -> None:
    assert json.dumps(_device(LAB)["capacity"], sort_keys=True) == json.dumps(
        {
            "cores": {
                "requestPolicy": {
                    "default": "100",
                    "validRange": {"max": "100", "min": "0", "step": "1"},
                },
                "value": "100",
            },
            "memory": {
                "requestPolicy": {
                    "default": "15Gi",
                    "validRange": {"max": "15Gi", "min": "1Mi", "step": "1Mi"},
                },
                "value": "15Gi",
            },
        },
        sort_keys=True,
    )


def test_the_labs_device_driver_and_pool() -> None:
    (body,) = _slices(1, LAB)
    device = body["spec"]["devices"][0]
    assert body["spec"]["driver"] == "hami-core-gpu.project-hami.io"
    assert body["spec"]["pool"]["name"] == body["spec"]["nodeName"] == "t4-node"
    assert device["name"] == "hami-gpu-0"
    assert device["allowMultipleAllocations"] is True
    attributes = device["attributes"]
    assert attributes["productName"] == {"string": "Tesla T4"}
    assert attributes["architecture"] == {"string": "Turing"}
    assert attributes["cudaComputeCapability"] == {"version": "7.5.0"}
    assert attributes["uuid"] == {"string": samples.gpu(0).uuid}


def test_a_slice_by_default() -> None:
    assert _slices() == [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": "node-0-apportion.gpu-"},
            "spec": {
                "driver": "apportion.gpu",
                "nodeName": "node-0",
                "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": "gpu-0000-3b-00-0",
                        "allowMultipleAllocations": True,
                        "attributes": {
                            "architecture": {"string": "Turing"},
                            "brand": {"string": "Tesla"},
                            "coresMode": {"string": "none"},
                            "cudaComputeCapability": {"version": "7.5.0"},
                            "cudaDriverVersion": {"version": "13.0.0"},
                            "driverVersion": {"version": "580.159.4"},
                            "index": {"int": 0},
                            "memoryMode": {"string": "front"},
                            "minor": {"int": 0},
                            "productName": {"string": "Tesla T4"},
                            "resource.kubernetes.io/numaNode": {"int": 0},
                            "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
                            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
                            "uuid": {"string": "GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000"},
                        },
                        "capacity": {
                            "cores": {
                                "value": "100",
                                "requestPolicy": {
                                    "default": "100",
                                    "validRange": {"min": "1", "max": "100", "step": "1"},
                                },
                            },
                            "memory": {
                                "value": "14917Mi",
                                "requestPolicy": {
                                    "default": "14917Mi",
                                    "validRange": {"min": "1Mi", "max": "14917Mi", "step": "1Mi"},
                                },
                            },
                        },
                    }
                ],
            },
        }
    ]


def test_a_body_is_what_json_can_hold() -> None:
    assert json.loads(json.dumps(_slices(2))) == _slices(2)


def test_the_mode_and_the_servers_memory_are_those_of_the_gpu() -> None:
    first, second = (samples.gpu(n) for n in range(2))
    policy = Policy(
        samples.DRIVER,
        samples.NODE,
        mode_of=lambda uuid: CoresMode.MPS if uuid == second.uuid else CoresMode.TIMESLICE,
        mps_reserve=128 * MIB,
    )
    offered = slices.devices(_inventory(2), policy)
    (body,) = slices.slices(offered, policy, generation=1)
    found = [one["attributes"]["coresMode"] for one in body["spec"]["devices"]]
    assert found == [{"string": "timeslice"}, {"string": "mps"}]
    usable = quantity.align_down(first.memory_total - first.memory_reserved)
    assert [one.capacity.memory for one in offered] == [usable, usable - 128 * MIB]


def test_what_sysfs_does_not_say_is_left_out() -> None:
    attributes = _device(pcie_root=None, numa_node=None)["attributes"]
    assert not {name for name in attributes if "pcieRoot" in name or "numaNode" in name}


def test_a_product_name_over_the_apis_limit_is_cut_between_letters() -> None:
    name = "ä" + "x" * 62 + "ä"
    assert _device(product_name=name)["attributes"]["productName"] == {"string": name[:-1]}


@pytest.mark.parametrize(
    ("total", "reserved", "policy", "memory"),
    [
        (15360 * MIB, 443 * MIB, "usable", 14917 * MIB),
        (15360 * MIB, 443 * MIB, "total", 15360 * MIB),
        (15360 * MIB + 1, 443 * MIB, "usable", 14917 * MIB),
        (15360 * MIB, 443 * MIB + 1, "usable", 14916 * MIB),
        (15109 * MIB, 0, "usable", 15109 * MIB),
        (16106127361, 0, "total", 15 << 30),
    ],
)
def test_memory_is_offered_in_whole_mebibytes(
    total: int, reserved: int, policy: str, memory: int
) -> None:
    inventory = _inventory(memory_total=total, memory_reserved=reserved)
    changed = Policy(samples.DRIVER, samples.NODE, memory_capacity=policy)
    (device,) = slices.devices(inventory, changed)
    assert device.capacity.memory == memory
    assert device.capacity.cores == 100


@pytest.mark.parametrize("least", [0, 1, 50, 99, 100])
def test_the_api_accepts_the_policy_of_every_setting(least: int) -> None:
    policy = Policy(samples.DRIVER, samples.NODE, cores_min=least)
    for capacity in _device(policy)["capacity"].values():
        _accepted(capacity)


@given(st.integers(MIB, 2**50), st.integers(0, 2**30))
def test_the_api_accepts_every_size_of_memory(total: int, reserved: int) -> None:
    if total - reserved >= MIB:
        device = _device(memory_total=total, memory_reserved=reserved)
        _accepted(device["capacity"]["memory"])


def _accepted(capacity: dict[str, Any]) -> None:
    """The rules of the API's validateRequestPolicyRange."""
    value = quantity.parse(capacity["value"])
    default = quantity.parse(capacity["requestPolicy"]["default"])
    valid = {k: quantity.parse(v) for k, v in capacity["requestPolicy"]["validRange"].items()}
    assert valid["min"] <= default <= valid["max"] <= value
    if "step" in valid:
        assert valid["min"] + valid["step"] <= value
        assert (default - valid["min"]) % valid["step"] == 0
        assert (valid["max"] - valid["min"]) % valid["step"] == 0
    else:
        assert valid["min"] == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.159.04", "580.159.4"),
        ("535.54", "535.54.0"),
        ("418.87.00", "418.87.0"),
        ("570.86.10.01", "570.86.10+1"),
        ("13.0", "13.0.0"),
        ("7.5", "7.5.0"),
        ("580", None),
        ("580.x.1", None),
        ("580.1.2.3.4", None),
        ("", None),
        ("580.15٣.1", None),
    ],
)
def test_a_vendors_version_becomes_a_semantic_one(text: str, expected: str | None) -> None:
    assert slices.version(text) == expected


@given(st.from_regex(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}", fullmatch=True))
def test_every_version_that_is_published_is_a_semantic_one(text: str) -> None:
    found = slices.version(text)
    assert found is not None
    assert SEMVER.fullmatch(found)


@pytest.mark.parametrize("version", ["beta", "1." + "9" * 70])
def test_a_version_that_the_api_would_refuse_is_left_out(version: str) -> None:
    assert "driverVersion" not in _device(driver_version=version)["attributes"]


def test_no_gpu_makes_no_slice() -> None:
    assert _slices(0) == []


@pytest.mark.parametrize(("count", "sizes"), [(128, [128]), (129, [128, 1]), (257, [128, 128, 1])])
def test_a_slice_has_at_most_128_devices(count: int, sizes: list[int]) -> None:
    policy = Policy(samples.DRIVER, samples.NODE, naming="index")
    bodies = _slices(count, policy, pci_bus_id="0000:3b:00.0")
    assert [len(body["spec"]["devices"]) for body in bodies] == sizes
    pools = [body["spec"]["pool"] for body in bodies]
    assert pools == [{"name": "node-0", "generation": 1, "resourceSliceCount": len(sizes)}] * len(
        sizes
    )
    named = [device["name"] for body in bodies for device in body["spec"]["devices"]]
    assert named == [f"gpu-{n}" for n in range(count)]


def test_names_and_order_do_not_depend_on_chance() -> None:
    assert json.dumps(_slices(3)) == json.dumps(_slices(3))
    attributes = list(_device()["attributes"])
    assert attributes == sorted(attributes)


# What differs.


def _published(count: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our body and the same as a server gives it back."""
    wanted = _slices(count)[0]
    found = copy.deepcopy(wanted)
    found["metadata"] = {"name": "node-0-apportion.gpu-x7z2k", "uid": "u", "resourceVersion": "7"}
    return wanted, found


def test_what_the_server_fills_in_is_no_difference() -> None:
    wanted, found = _published()
    difference = slices.differs(wanted, found)
    assert difference == Difference()
    assert not difference


def test_quantities_are_compared_as_numbers() -> None:
    wanted, found = _published()
    memory = found["spec"]["devices"][0]["capacity"]["memory"]
    memory["value"] = str(14917 * MIB)
    memory["requestPolicy"]["validRange"]["step"] = "1024Ki"
    assert not slices.differs(wanted, found)


@pytest.mark.parametrize("value", ["14916Mi", "much", 15641608192])
def test_another_quantity_is_a_change(value: object) -> None:
    wanted, found = _published()
    found["spec"]["devices"][1]["capacity"]["memory"]["value"] = value
    path = "spec.devices.gpu-0000-3c-00-0.capacity.memory.value"
    assert slices.differs(wanted, found) == Difference(changed=(path,))


def test_a_server_without_the_feature_gate_is_seen_for_what_it_is() -> None:
    wanted, found = _published(1)
    (device,) = found["spec"]["devices"]
    del device["allowMultipleAllocations"]
    for capacity in device["capacity"].values():
        del capacity["requestPolicy"]
    at = "spec.devices.gpu-0000-3b-00-0"
    assert slices.differs(wanted, found) == Difference(
        dropped=(
            f"{at}.allowMultipleAllocations",
            f"{at}.capacity.cores.requestPolicy",
            f"{at}.capacity.memory.requestPolicy",
        )
    )


def test_null_is_a_field_that_is_not_there() -> None:
    wanted, found = _published(1)
    found["spec"]["devices"][0]["allowMultipleAllocations"] = None
    found["spec"]["devices"][0]["attributes"]["uuid"] = None
    at = "spec.devices.gpu-0000-3b-00-0"
    assert slices.differs(wanted, found) == Difference(
        dropped=(f"{at}.allowMultipleAllocations",), changed=(f"{at}.attributes.uuid",)
    )


def test_what_somebody_changed_added_or_removed_is_named() -> None:
    wanted, found = _published()
    first, second = found["spec"]["devices"]
    first["attributes"]["index"]["int"] = True
    first["attributes"]["productName"] = {"string": "tesla t4"}
    first["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    second["allowMultipleAllocations"] = False
    found["spec"]["pool"]["generation"] = 2
    found["spec"]["allNodes"] = True
    del found["spec"]["nodeName"]
    assert slices.differs(wanted, found) == Difference(
        changed=(
            "spec.allNodes",
            "spec.devices.gpu-0000-3b-00-0.attributes.index.int",
            "spec.devices.gpu-0000-3b-00-0.attributes.productName.string",
            "spec.devices.gpu-0000-3b-00-0.taints",
            "spec.devices.gpu-0000-3c-00-0.allowMultipleAllocations",
            "spec.nodeName",
            "spec.pool.generation",
        )
    )


def test_devices_are_compared_by_name_not_by_place() -> None:
    wanted, found = _published()
    found["spec"]["devices"].reverse()
    assert not slices.differs(wanted, found)
    found["spec"]["devices"].pop()
    assert slices.differs(wanted, found).changed == ("spec.devices.gpu-0000-3b-00-0",)


@pytest.mark.parametrize("devices", ["x", {}, [1], [{}], [None], None])
def test_nonsense_in_place_of_devices_is_a_change(devices: object) -> None:
    wanted, found = _published(1)
    found["spec"]["devices"] = devices
    assert slices.differs(wanted, found).changed
    assert slices.differs(wanted, {"spec": devices}).changed
    assert slices.differs(wanted, {}).changed == ("spec",)
