"""GPUs and policy in, ResourceSlices out; and what differs between ours and the server's. Pure.

Source of names and limits: resource.k8s.io/v1 (k8s.io/api v0.36) and its validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import names, quantity
from apportion.model import Capacity, CoresMode, Device, Gpu, GpuUuid, Inventory, Taint

API_VERSION = "resource.k8s.io/v1"
ALL_CORES = 100
"""A device's `cores` are percent of the GPU."""

MAX_DEVICES = 128
"""Devices in one slice without taints."""

MAX_TAINTED = 64
"""Devices in one slice of which any has a taint; counters and lists, which we do not use, too."""

_MAX_TEXT = 64
_STANDARD = "resource.kubernetes.io/"
_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}")
_SEMVER_PARTS = 3

TAINTS = "taints"
"""The field of a device that goes without the gate of features.TAINTS; others: SHARING's."""

# What an API server removes in silence when a feature gate is off (its dropDisabledFields).
_GATED = frozenset({"allowMultipleAllocations", "requestPolicy", TAINTS})


@dataclass(frozen=True, slots=True)
class Policy:
    """How the GPUs of this node are offered.

    Attributes:
        driver: name of the DRA driver.
        node: name of the node, and of the pool.
        naming: device names by "pci" or by "index".
        prefix: before the address or index; empty is "gpu-".
        memory_capacity: "usable" publishes what can be allocated, "total" the nominal size.
        cores_min: least cores of a share, 0 to 100.
        mode_of: how the cores of a GPU are enforced.
        memory_mode: how memory is enforced here; "front": by libraries before the driver's.
        mps_reserve: bytes that are not offered of a GPU with the mode MPS.
    """

    driver: str
    node: str
    naming: str = "pci"
    prefix: str = ""
    memory_capacity: str = "usable"
    cores_min: int = 1
    mode_of: Callable[[GpuUuid], CoresMode] = lambda _uuid: CoresMode.NONE
    memory_mode: str = "front"
    mps_reserve: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """What the server's slice has otherwise than ours, as sorted field paths.

    Attributes:
        dropped: fields behind a feature gate (features.SHARING, features.TAINTS) that are not
            there.
        changed: all other fields that are missing, added or have another value.
    """

    dropped: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.changed)


def devices(inventory: Inventory, policy: Policy) -> tuple[Device, ...]:
    """Return the GPUs as they are offered, in the order of the inventory.

    A GPU's memory is in bytes, a multiple of 1 MiB: what is over the last whole MiB is offered to
    nobody, because the API refuses a default that is no multiple of the step.
    """
    named = names.device_names(inventory.gpus, by=policy.naming, prefix=policy.prefix)
    return tuple(
        Device(name, gpu, Capacity(cores=ALL_CORES, memory=_memory(gpu, policy)))
        for name, gpu in named.items()
    )


def slices(
    devices: Sequence[Device],
    policy: Policy,
    *,
    generation: int,
    taints: Mapping[GpuUuid, Sequence[Taint]] | None = None,
) -> list[dict[str, Any]]:
    """Return the ResourceSlices of the node's pool, without what the server fills in.

    Args:
        devices: what is offered; none gives no slice, as a pool without slices is none.
        policy: how it is offered.
        generation: of the pool; all its slices carry the same.
        taints: of each GPU that has any.
    """
    taints = taints or {}
    most = MAX_TAINTED if any(taints.get(device.gpu.uuid) for device in devices) else MAX_DEVICES
    groups = [devices[n : n + most] for n in range(0, len(devices), most)]
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{policy.node}-{policy.driver}-"},
            "spec": {
                "driver": policy.driver,
                "nodeName": policy.node,
                "pool": {
                    "name": policy.node,
                    "generation": generation,
                    "resourceSliceCount": len(groups),
                },
                "devices": [
                    _device(device, policy, taints.get(device.gpu.uuid, ())) for device in group
                ],
            },
        }
        for group in groups
    ]


def untainted(bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return slices for an API server that drops taints: without them, and without their devices.

    A device that no taint can keep work away from is not offered at all; where the taint is for
    information only, it stays.
    """
    kept = []
    for body in bodies:
        devices = [
            {key: value for key, value in device.items() if key != TAINTS}
            for device in body["spec"]["devices"]
            if all(taint["effect"] == "None" for taint in device.get(TAINTS) or ())
        ]
        if devices:
            kept.append((body, devices))
    return [
        {
            **body,
            "spec": body["spec"]
            | {
                "devices": devices,
                "pool": body["spec"]["pool"] | {"resourceSliceCount": len(kept)},
            },
        }
        for body, devices in kept
    ]


def without_notes(bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return slices for an API server that does not know the effect None: without such taints."""
    found = []
    for body in bodies:
        devices = [_noteless(device) for device in body["spec"]["devices"]]
        found.append({**body, "spec": body["spec"] | {"devices": devices}})
    return found


def _noteless(device: Mapping[str, Any]) -> dict[str, Any]:
    taints = [taint for taint in device.get(TAINTS) or () if taint["effect"] != "None"]
    rest = {key: value for key, value in device.items() if key != TAINTS}
    return rest | ({TAINTS: taints} if taints else {})


def version(text: str) -> str | None:
    """Return a vendor's version as the semantic version that the API asks for, or None.

    Semantic versions have three numbers without leading zeros: 580.159.04 is 580.159.4, 13.0 is
    13.0.0, and a fourth number becomes build metadata, which comparisons ignore. CEL then
    compares driver versions as numbers; the price is that the text is not NVIDIA's own.
    """
    if _VERSION.fullmatch(text) is None:
        return None
    numbers = [str(int(part)) for part in text.split(".")]
    numbers += ["0"] * (_SEMVER_PARTS - len(numbers))
    build = "".join(f"+{part}" for part in numbers[_SEMVER_PARTS:])
    return ".".join(numbers[:_SEMVER_PARTS]) + build


def differs(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Difference:
    """Return what the server's object has otherwise than the body that was sent.

    Only `spec` is compared, pool generation and count included: to ask whether the content is
    right whatever its generation, make `wanted` with the generation that was found. Quantities
    are compared as numbers ("4Gi" is "4096Mi"), devices by name, taints by all but their order and
    time: two plugins of a rolling update may have seen the same thing a second apart.
    """
    paths = sorted(set(_walk("spec", wanted.get("spec"), found.get("spec"))))
    return Difference(
        dropped=tuple(path for path, gated in paths if gated),
        changed=tuple(path for path, gated in paths if not gated),
    )


def _memory(gpu: Gpu, policy: Policy) -> int:
    reserved = 0 if policy.memory_capacity == "total" else gpu.memory_reserved
    if policy.mode_of(gpu.uuid) is CoresMode.MPS:
        reserved += policy.mps_reserve
    return quantity.align_down(gpu.memory_total - reserved)


def _device(device: Device, policy: Policy, taints: Sequence[Taint]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": device.name,
        "allowMultipleAllocations": True,
        "attributes": _attributes(device.gpu, policy),
        "capacity": {
            names.CORES: _capacity(device.capacity.cores, least=policy.cores_min, step=1),
            names.MEMORY: _capacity(device.capacity.memory, least=quantity.MIB, step=quantity.MIB),
        },
    }
    return found | ({TAINTS: [_taint(taint) for taint in taints]} if taints else {})


def _taint(taint: Taint) -> dict[str, Any]:
    value = {"value": taint.value} if taint.value else {}
    return {"key": taint.key, "effect": taint.effect, "timeAdded": taint.added} | value


def _capacity(value: int, *, least: int, step: int) -> dict[str, Any]:
    """Return a capacity whose default is all of it, so that a request without one gets the card."""
    whole = quantity.render(value)
    valid = {"min": quantity.render(least), "max": whole}
    # The API refuses a step that leads from min past the value; then min is all there is.
    if least + step <= value:
        valid["step"] = quantity.render(step)
    return {"value": whole, "requestPolicy": {"default": whole, "validRange": valid}}


def _attributes(gpu: Gpu, policy: Policy) -> dict[str, Any]:
    found: dict[str, dict[str, Any] | None] = {
        "architecture": _text(gpu.architecture),
        "brand": _text(gpu.brand),
        "coresMode": _text(policy.mode_of(gpu.uuid)),
        "cudaComputeCapability": _version(_dotted(gpu.compute_capability)),
        "cudaDriverVersion": _version(_dotted(gpu.cuda_driver_version)),
        "driverVersion": _version(gpu.driver_version),
        "index": {"int": gpu.index},
        "memoryMode": _text(policy.memory_mode),
        "minor": {"int": gpu.minor},
        "productName": _text(gpu.product_name),
        "uuid": _text(gpu.uuid),
        # The standard names, which constraints across drivers (GPU and NIC) compare.
        f"{_STANDARD}numaNode": None if gpu.numa_node is None else {"int": gpu.numa_node},
        f"{_STANDARD}pciBusID": _text(gpu.pci_bus_id),
        f"{_STANDARD}pcieRoot": None if gpu.pcie_root is None else _text(gpu.pcie_root),
    }
    return {name: value for name, value in sorted(found.items()) if value is not None}


def _text(value: str) -> dict[str, Any]:
    """Cut at the API's limit, which counts bytes."""
    return {"string": value.encode()[:_MAX_TEXT].decode(errors="ignore")}


def _version(text: str) -> dict[str, Any] | None:
    """None leaves the attribute out: one name must have one type on all devices."""
    value = version(text)
    return None if value is None or len(value) > _MAX_TEXT else {"version": value}


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


def _walk(path: str, wanted: Any, found: Any) -> Iterable[tuple[str, bool]]:
    """Yield (path, whether a feature gate explains it) of each difference below `path`."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key in sorted({*wanted, *found}):
            below = f"{path}.{key}"
            if found.get(key) is None:
                yield below, key in _GATED
            else:
                yield from _walk(below, wanted.get(key), found[key])
    elif path == "spec.devices" and isinstance(wanted, list) and isinstance(found, list):
        yield from _walk(path, _by_name(wanted), _by_name(found))
    elif type(wanted) is not type(found) or not _same(path, wanted, found):
        yield path, False


def _by_name(entries: Sequence[Any]) -> dict[str, Any]:
    """Index devices by name; one without a usable name keeps its place, and so never matches."""
    return {
        str(entry["name"]) if isinstance(entry, Mapping) and "name" in entry else f"[{n}]": entry
        for n, entry in enumerate(entries)
    }


def _timeless(taints: Sequence[Any]) -> list[list[tuple[str, str]]]:
    return sorted(
        sorted((key, str(value)) for key, value in taint.items() if key != "timeAdded")
        for taint in taints
        if isinstance(taint, Mapping)
    )


def _same(path: str, wanted: Any, found: Any) -> bool:
    if path.endswith(f".{TAINTS}") and isinstance(wanted, list) and isinstance(found, list):
        return _timeless(wanted) == _timeless(found)
    if wanted == found or ".capacity." not in path:
        return bool(wanted == found)
    try:
        return quantity.parse(wanted) == quantity.parse(found)
    except ValueError:
        return False
