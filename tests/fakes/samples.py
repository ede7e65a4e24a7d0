"""Values for tests: a Tesla T4 as a scan finds it, a claim as the API server gives it."""

from __future__ import annotations

import dataclasses
from typing import Any

from apportion.model import Capacity, ClaimRef, ClaimUid, Device, DeviceName, Gpu, GpuUuid

MIB = 1 << 20
GIB = 1 << 30
DRIVER = "apportion.gpu"
NODE = "node-0"
CLAIM_UID = ClaimUid("0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10")
SHARE_ID = "7f4b3a52-8f0e-4b7b-9d5e-0c2a4be1a001"
REF = ClaimRef(uid=CLAIM_UID, namespace="test-dra", name="single-gpu-0")


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return the `index`-th T4 of a node: 15360 MiB, 443 of them reserved."""
    bus = 0x3B + index
    t4 = Gpu(
        uuid=GpuUuid(f"GPU-6d1c2f5e-8a3b-4c7d-9e0f-{index:012x}"),
        index=index,
        minor=index,
        pci_bus_id=f"0000:{bus:02x}:00.0",
        pcie_root="pci0000:3a",
        numa_node=0,
        product_name="Tesla T4",
        brand="Tesla",
        architecture="Turing",
        driver_version="580.159.04",
        cuda_driver_version=(13, 0),
        compute_capability=(7, 5),
        memory_total=15360 * MIB,
        memory_reserved=443 * MIB,
        mig_enabled=False,
    )
    return dataclasses.replace(t4, **changes)


def device(index: int = 0, *, memory: int = 14917 * MIB, **changes: Any) -> Device:
    """Return the `index`-th T4 as it is published by default."""
    card = gpu(index, **changes)
    name = DeviceName("gpu-" + card.pci_bus_id.replace(":", "-").replace(".", "-"))
    return Device(name, card, Capacity(cores=100, memory=memory))


def devices(count: int = 2) -> dict[DeviceName, Device]:
    """Return what a node with `count` T4s publishes."""
    return {card.name: card for card in map(device, range(count))}


def result(
    index: int = 0, *, cores: str = "30", memory: str = "4Gi", **changes: Any
) -> dict[str, Any]:
    """Return a result of a claim's allocation: a share of the `index`-th T4.

    A change to None takes the field out.
    """
    fields = {
        "request": "single-gpu",
        "driver": DRIVER,
        "pool": NODE,
        "device": str(device(index).name),
        "shareID": SHARE_ID,
        "consumedCapacity": {"cores": cores, "memory": memory},
    } | changes
    return {key: value for key, value in fields.items() if value is not None}


def config(
    parameters: Any = None, *, source: str = "FromClaim", driver: str = DRIVER, **changes: Any
) -> dict[str, Any]:
    """Return an entry of an allocation's config: by default a ShareConfig that sets nothing."""
    if parameters is None:
        parameters = share_config()
    opaque = {"driver": driver, "parameters": parameters}
    return {"source": source, "opaque": opaque} | changes


def share_config(**fields: Any) -> dict[str, Any]:
    """Return a ShareConfig with `fields`."""
    return {"apiVersion": "apportion.gpu/v1alpha1", "kind": "ShareConfig"} | fields


def claim(
    *results: dict[str, Any],
    configs: list[dict[str, Any]] | None = None,
    ref: ClaimRef = REF,
    pods: tuple[str, ...] = ("pod-0",),
) -> dict[str, Any]:
    """Return an allocated ResourceClaim; without results, lab A's share of the first T4."""
    devices: dict[str, Any] = {"results": list(results) or [result()]}
    if configs is not None:
        devices["config"] = configs
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "spec": {},
        "status": {
            "allocation": {"devices": devices},
            "reservedFor": [
                {"resource": "pods", "name": pod, "uid": f"uid-of-{pod}"} for pod in pods
            ],
        },
    }
