"""All GPUs of the node in one pass; a bad one is left out with its reason and harms no other."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from apportion import quantity
from apportion.errors import NvmlError
from apportion.inventory import codes
from apportion.inventory.nvml import Memory
from apportion.model import Excluded, Gpu, GpuUuid, Inventory

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Readings(Protocol):
    """What a scan asks of NVML; `nvml.Nvml` is it, tests bring their own."""

    def open(self) -> None:
        """Start NVML where it is not, or not well."""

    def distrust(self) -> None:
        """Let the next `open` start NVML anew."""

    def count(self) -> int:
        """Return the number of GPUs."""

    def driver_version(self) -> str:
        """Return the driver's version."""

    def cuda_driver_version(self) -> tuple[int, int]:
        """Return the driver's CUDA version."""

    def uuid(self, index: int) -> GpuUuid:
        """Return the UUID of a GPU by index."""

    def pci_bus_id(self, uuid: GpuUuid) -> str:
        """Return its PCI address in NVML's form."""

    def minor(self, uuid: GpuUuid) -> int:
        """Return the number of its device node."""

    def product_name(self, uuid: GpuUuid) -> str:
        """Return its product name."""

    def brand(self, uuid: GpuUuid) -> str:
        """Return its brand."""

    def architecture(self, uuid: GpuUuid) -> str:
        """Return its architecture."""

    def compute_capability(self, uuid: GpuUuid) -> tuple[int, int]:
        """Return its compute capability."""

    def mig_enabled(self, uuid: GpuUuid) -> bool:
        """Return whether it is in MIG mode."""

    def memory(self, uuid: GpuUuid) -> Memory:
        """Return its memory."""


@dataclass(frozen=True, slots=True)
class _Driver:
    version: str
    cuda: tuple[int, int]


class _UnfitError(Exception):
    """This GPU cannot be shared; the text says why and what to do."""


def scan(nvml: Readings, sysfs: Path) -> Inventory:
    """Return the GPUs that can be shared, by PCI address, and the others with the reason.

    Args:
        nvml: opened here where it is not; after a lost GPU, or none, it is started anew.
        sysfs: the host's, for what NVML does not tell: PCIe root and NUMA node.

    Raises:
        NvmlUnavailableError: no library or driver, or NVML failed as a whole: nothing is known of
            any GPU, which is not the same as that there is none.
    """
    nvml.open()
    driver = _Driver(nvml.driver_version(), nvml.cuda_driver_version())
    gpus: list[Gpu] = []
    excluded: list[Excluded] = []
    count = nvml.count()
    for index in range(count):
        found = _examine(nvml, sysfs, driver, index)
        if isinstance(found, Gpu):
            gpus.append(found)
        else:
            excluded.append(found)
    if count == 0:
        nvml.distrust()
    return Inventory(
        gpus=tuple(sorted(gpus, key=by_address)),
        excluded=tuple(sorted(excluded, key=lambda gpu: gpu.identity)),
    )


def by_address(gpu: Gpu) -> tuple[int, ...]:
    """Return what GPUs are sorted by."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", gpu.pci_bus_id))


def pci_address(text: str) -> str:
    """Return an address in sysfs's form: lower case, a domain of 8 digits cut to its last 4.

    Raises:
        ValueError: not an address.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:3b:00.0")
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def pcie_root(sysfs: Path, address: str) -> str | None:
    """Return the root complex of a PCI device, such as "pci0000:3a"; None where unknown.

    The same rule as Kubernetes' deviceattribute helper, so that a NIC's driver says the same.
    """
    try:
        target = os.readlink(sysfs / "bus/pci/devices" / address)  # noqa: PTH115 - as it is
    except OSError:
        return None
    parts = PurePath(target).parts
    roots = [part for part in parts if _ROOT.fullmatch(part)]
    return roots[0] if roots and parts[-1] == address else None


def numa_node(sysfs: Path, address: str) -> int | None:
    """Return the NUMA node of a PCI device; None where the kernel does not say (-1)."""
    try:
        text = (sysfs / "bus/pci/devices" / address / "numa_node").read_text(encoding="ascii")
        node = int(text)
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _examine(nvml: Readings, sysfs: Path, driver: _Driver, index: int) -> Gpu | Excluded:
    identity = f"GPU {index}"
    which: GpuUuid | int = index
    try:
        uuid = nvml.uuid(index)
        identity = which = uuid
        address = pci_address(nvml.pci_bus_id(uuid))
        identity = f"{uuid} ({address})"
        return _describe(nvml, sysfs, uuid, driver=driver, index=index, address=address)
    except NvmlError as error:
        if codes.concerns_all(error.code):
            raise
        passing = which if codes.passes(error.code) else None
        return Excluded(identity, str(error), passing, _uuid(which), error.code)
    except (_UnfitError, ValueError) as error:
        return Excluded(identity, str(error), uuid=_uuid(which))


def _uuid(which: GpuUuid | int) -> GpuUuid | None:
    return None if isinstance(which, int) else which


def _describe(
    nvml: Readings, sysfs: Path, uuid: GpuUuid, *, driver: _Driver, index: int, address: str
) -> Gpu:
    if nvml.mig_enabled(uuid):
        raise _UnfitError(
            "MIG mode is on, and a GPU is shared whole or not at all: switch it off with "
            f"nvidia-smi -i {uuid} -mig 0, or leave this GPU to a driver for MIG"
        )
    memory = _memory(nvml, uuid)
    return Gpu(
        uuid=uuid,
        index=index,
        minor=nvml.minor(uuid),
        pci_bus_id=address,
        pcie_root=pcie_root(sysfs, address),
        numa_node=numa_node(sysfs, address),
        product_name=nvml.product_name(uuid),
        brand=nvml.brand(uuid),
        architecture=nvml.architecture(uuid),
        driver_version=driver.version,
        cuda_driver_version=driver.cuda,
        compute_capability=nvml.compute_capability(uuid),
        memory_total=memory.total,
        memory_reserved=memory.reserved,
        mig_enabled=False,
    )


def _memory(nvml: Readings, uuid: GpuUuid) -> Memory:
    """Return its memory, or refuse a GPU that has none of its own (GB10 shares the host's)."""
    advice = "a share of it would have no size; it cannot be published"
    try:
        memory = nvml.memory(uuid)
    except NvmlError as error:
        if error.code not in codes.ABSENT:
            raise
        raise _UnfitError(f"no memory information, as on GPUs with the host's: {advice}") from error
    if memory.total - memory.reserved < quantity.MIB:
        raise _UnfitError(
            f"memory is {memory.total} bytes, {memory.reserved} of them reserved: {advice}"
        )
    return memory
