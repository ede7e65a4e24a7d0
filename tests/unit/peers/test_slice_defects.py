"""What was found in other DRA drivers' slices and must not be here; see the file beside this."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pynvml
import pytest
from apportion import slices
from apportion.inventory import scan
from apportion.model import Inventory
from apportion.slices import Policy

from tests.fakes import samples
from tests.fakes.samples import MIB
from tests.unit.inventory.test_scan import Cards

POLICY = Policy(driver=samples.DRIVER, node=samples.NODE)


def _published(inventory: Inventory, policy: Policy = POLICY) -> list[dict[str, Any]]:
    bodies = slices.slices(slices.devices(inventory, policy), policy, generation=1)
    return [device for body in bodies for device in body["spec"]["devices"]]


def test_d9_the_least_number_of_cores_that_can_be_asked_for_is_one() -> None:
    (device,) = _published(Inventory((samples.gpu(),)))
    policy = device["capacity"]["cores"]["requestPolicy"]
    assert policy["validRange"]["min"] == "1"


def test_d10_default_and_most_are_whole_steps() -> None:
    gpu = samples.gpu(memory_total=16106127361, memory_reserved=0)
    (device,) = _published(Inventory((gpu,)))
    memory = device["capacity"]["memory"]
    asked = memory["requestPolicy"]
    assert asked["validRange"]["step"] == "1Mi"
    assert memory["value"] == asked["default"] == asked["validRange"]["max"] == "15Gi"


def test_d11_i16_a_gpu_without_a_pcie_root_is_published_without_it(tmp_path: Path) -> None:
    found = scan.scan(Cards(samples.gpu()), tmp_path)
    (device,) = _published(found)
    assert "resource.kubernetes.io/pcieRoot" not in device["attributes"]
    assert device["attributes"]["uuid"]["string"] == samples.gpu().uuid


def test_d13_a_gpu_in_mig_mode_is_not_shared(tmp_path: Path) -> None:
    found = scan.scan(Cards(samples.gpu(0, mig_enabled=True), samples.gpu(1)), tmp_path)
    assert [gpu.index for gpu in found.gpus] == [1]


def test_d21_a_lost_gpu_hides_no_other(tmp_path: Path) -> None:
    cards = Cards(*(samples.gpu(n) for n in range(3)))
    cards.failures[cards.gpus[1].uuid, "memory"] = pynvml.NVML_ERROR_GPU_IS_LOST
    found = scan.scan(cards, tmp_path)
    assert [gpu.index for gpu in found.gpus] == [0, 2]


@pytest.mark.parametrize("count", [1, 2, 16, 128, 129, 300])
def test_i5_every_gpu_that_is_found_is_published(count: int) -> None:
    inventory = Inventory(tuple(samples.gpu(n % 200, pci_bus_id=_bus(n)) for n in range(count)))
    names = {device["name"] for device in _published(inventory)}
    assert len(names) == count


def _bus(number: int) -> str:
    return f"{number // 32:04x}:{number % 32:02x}:00.0"


def test_i9_what_the_driver_keeps_for_itself_is_not_offered() -> None:
    (device,) = _published(Inventory((samples.gpu(),)))
    assert device["capacity"]["memory"]["value"] == "14917Mi"
    assert samples.gpu().memory_total == 15360 * MIB


def test_i15_a_gpu_keeps_its_name_when_another_one_leaves() -> None:
    both = _published(Inventory((samples.gpu(0), samples.gpu(1))))
    # NVML counts anew without the first.
    left = _published(Inventory((dataclasses.replace(samples.gpu(1), index=0, minor=0),)))
    assert left[0]["name"] == both[1]["name"]
    assert left[0]["attributes"]["uuid"] == both[1]["attributes"]["uuid"]


def test_i23_steps_are_whole_numbers() -> None:
    for device in _published(Inventory((samples.gpu(),))):
        for capacity in device["capacity"].values():
            step = capacity["requestPolicy"]["validRange"]["step"]
            assert step.removesuffix("Mi").isdigit()
