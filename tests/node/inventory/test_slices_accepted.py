"""A real API server takes the slices of every policy, and gives them back as they were sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from apportion import slices
from apportion.model import Gpu, Inventory
from apportion.slices import Difference, Policy

from tests.fakes import samples
from tests.fakes.samples import MIB
from tests.node.support.apiserver import ApiServer

RESOURCE = "/apis/resource.k8s.io/v1/resourceslices"
ODD: dict[str, Any] = {
    "numa_node": None,
    "pcie_root": None,
    "product_name": "NVIDIA " + "é" * 64,
    "brand": "unknown",
    "architecture": "unknown",
    "driver_version": "570.86.10.01",
}


def _sent(server: ApiServer, policy: Policy, *gpus: Gpu) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our body and what the server made of it."""
    offered = slices.devices(Inventory(gpus), policy)
    (body,) = slices.slices(offered, policy, generation=1)
    found = server.call("POST", RESOURCE, body)
    server.call("DELETE", f"{RESOURCE}/{found['metadata']['name']}")
    return body, found


@pytest.mark.parametrize("cores_min", [0, 1, 100])
@pytest.mark.parametrize("memory_capacity", ["usable", "total"])
@pytest.mark.parametrize("naming", ["pci", "index"])
def test_every_policy_is_accepted_unchanged(
    api_server: ApiServer, cores_min: int, memory_capacity: str, naming: str
) -> None:
    policy = Policy(
        driver="hami-core-gpu.project-hami.io",
        node="node-of-slices",
        naming=naming,
        prefix="hami-gpu-",
        memory_capacity=memory_capacity,
        cores_min=cores_min,
    )
    body, found = _sent(api_server, policy, samples.gpu(0), samples.gpu(1))
    assert slices.differs(body, found) == Difference()


@pytest.mark.parametrize(
    "changes",
    [ODD, {"memory_total": 16106127361, "memory_reserved": 1}, {"memory_total": 444 * MIB}],
)
def test_odd_gpus_are_accepted_unchanged(api_server: ApiServer, changes: dict[str, Any]) -> None:
    policy = Policy(driver=samples.DRIVER, node="n" * 63 + "." + "o" * 63 + "." + "p" * 63)
    gpu = dataclasses.replace(samples.gpu(0), **changes)
    body, found = _sent(api_server, policy, gpu)
    assert slices.differs(body, found) == Difference()


def test_a_full_slice_is_accepted(api_server: ApiServer) -> None:
    policy = Policy(driver=samples.DRIVER, node="node-of-slices", naming="index")
    gpus = [samples.gpu(n, pci_bus_id="0000:3b:00.0") for n in range(slices.MAX_DEVICES)]
    body, found = _sent(api_server, policy, *gpus)
    assert slices.differs(body, found) == Difference()


def test_what_a_server_without_the_feature_gate_drops_is_named(
    gateless_server: ApiServer,
) -> None:
    policy = Policy(driver=samples.DRIVER, node="node-of-slices")
    body, found = _sent(gateless_server, policy, samples.gpu(0))
    at = "spec.devices.gpu-0000-3b-00-0"
    assert slices.differs(body, found) == Difference(
        dropped=(
            f"{at}.allowMultipleAllocations",
            f"{at}.capacity.cores.requestPolicy",
            f"{at}.capacity.memory.requestPolicy",
        )
    )
