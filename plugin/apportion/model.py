"""The values that the parts hand to each other: frozen, and touching nothing of the world."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

GpuUuid = NewType("GpuUuid", str)
"""`GPU-` and a UUID, as NVML prints it."""

DeviceName = NewType("DeviceName", str)
"""Name of a device in a ResourceSlice: a DNS label."""

ClaimUid = NewType("ClaimUid", str)
"""metadata.uid of a ResourceClaim."""

ShareKey = NewType("ShareKey", str)
"""`<claim uid>-<n>`, n being the index of the result in the claim's allocation."""


class CoresPolicy(enum.StrEnum):
    """What a share may do with cores that nobody else uses."""

    CAP = "cap"
    BURST = "burst"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU as NVML describes it.

    Attributes:
        uuid: NVML's UUID.
        index: NVML's index at the time of the scan; not stable over reboots.
        minor: the number in /dev/nvidia<minor>.
        pci_bus_id: `dddd:bb:dd.f`, lower case, as in sysfs.
        pcie_root: `pci<dddd>:<bb>` or None where sysfs does not say.
        numa_node: NUMA node or None where unknown.
        product_name: for example "Tesla T4".
        brand: for example "Tesla".
        architecture: for example "Turing".
        driver_version: for example "580.159.04".
        cuda_driver_version: (major, minor).
        compute_capability: (major, minor).
        memory_total: nominal bytes (NVML v2 total).
        memory_reserved: bytes that the driver keeps for itself (NVML v2 reserved).
        mig_enabled: whether MIG mode is on now.
    """

    uuid: GpuUuid
    index: int
    minor: int
    pci_bus_id: str
    pcie_root: str | None
    numa_node: int | None
    product_name: str
    brand: str
    architecture: str
    driver_version: str
    cuda_driver_version: tuple[int, int]
    compute_capability: tuple[int, int]
    memory_total: int
    memory_reserved: int
    mig_enabled: bool


@dataclass(frozen=True, slots=True)
class Excluded:
    """A GPU that was found and is not published.

    Attributes:
        identity: which it is, as well as it could be read, for a person.
        reason: why, in words for a person.
        passing: its UUID, or where that could not be read NVML's index of it, if it may answer the
            next time without anybody doing anything; else None.
        uuid: its UUID, None where that could not be read.
        code: the nvmlReturn_t with which reading it failed; 0: it was read, and is not fit.
    """

    identity: str
    reason: str
    passing: GpuUuid | int | None = None
    uuid: GpuUuid | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a scan found: usable GPUs in the order of their PCI addresses, and the rest."""

    gpus: tuple[Gpu, ...]
    excluded: tuple[Excluded, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a device offers or a share takes: cores in percent of the GPU, memory in bytes."""

    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as it is published: the name in the slice and what may be consumed of it."""

    name: DeviceName
    gpu: Gpu
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Vitals:
    """What NVML says of a GPU's health; None: it cannot tell.

    Attributes:
        uncorrected: ECC errors that could not be corrected since the driver's start.
        remap_failed: whether faulty memory could not be remapped.
        remap_pending: whether a remapping or a retired page waits for a reset.
        recovery: what the driver wants done, as nvmlDeviceGpuRecoveryAction_t.
        thermal: whether clocks are low because the GPU is hot.
        contains: whether the GPU confines an ECC error to the programs that it touches.
    """

    uncorrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    recovery: int | None = None
    thermal: bool | None = None
    contains: bool = False


class HealthState(enum.StrEnum):
    """What is told of a device: also the words that kubelet puts into a pod's status."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a published device is.

    Attributes:
        pool: pool name.
        device: device name.
        state: whether it can be used.
        seen: seconds since 1970 at which this was found so.
        message: what is wrong and what to do, for a person; empty: nothing to say.
    """

    pool: str
    device: DeviceName
    state: HealthState
    seen: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Taint:
    """A device taint (KEP-5055).

    Attributes:
        key: label name; ours begin with the driver's name.
        value: label value, or empty.
        effect: None, NoSchedule or NoExecute.
        added: when, as the API writes it: 2026-01-31T12:00:00Z. In another form each look at the
            slice would see a difference.
    """

    key: str
    value: str
    effect: str
    added: str


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Which claim: kubelet names all three, and the UID must match the object found."""

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Share:
    """One allocation result of ours: a part of one GPU.

    Attributes:
        key: names the share's folder and its CDI device.
        request: name of the request, `request/subrequest` for a prioritized list.
        pool: pool of the result.
        device: name of the device in the slice.
        share_id: the scheduler's ID of this share, None for a device given whole.
        uuid: GPU that the device is.
        capacity: what was consumed, as allocated; enforced as it is.
        policy: what happens with idle cores.
    """

    key: ShareKey
    request: str
    pool: str
    device: DeviceName
    share_id: str | None
    uuid: GpuUuid
    capacity: Capacity
    policy: CoresPolicy = CoresPolicy.CAP


@dataclass(frozen=True, slots=True)
class ResolvedClaim:
    """A claim read from the API and found good: our shares of it, in the order of its results.

    Attributes:
        ref: the claim.
        shares: our part of its allocation.
        pods: names of the pods it is reserved for, for logs and metrics.
    """

    ref: ClaimRef
    shares: tuple[Share, ...]
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What kubelet is told of one share.

    Attributes:
        requests: request names; a subrequest is named with its parent before the slash.
        pool: pool name.
        device: device name.
        cdi_ids: fully qualified CDI names, the share's own first.
        share_id: as allocated.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """The answer for one claim of a call: devices, or an error in words."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount from the host into the container."""

    host_path: str
    container_path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node: its path in the container and where it lies on the host."""

    path: str
    host_path: str


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What of the driver goes into a container, found below a driver root.

    Attributes:
        libdir: folder of the libraries inside the container, for example
            `/usr/lib/x86_64-linux-gnu`.
        cuda: host path of the real libcuda, with links resolved.
        nvml: host path of the real libnvidia-ml.
        mounts: everything else: other libraries, programs, firmware.
        nodes: device nodes that all GPUs need (nvidiactl, nvidia-uvm, …).
    """

    libdir: str
    cuda: str
    nvml: str
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Hook:
    """A createContainer hook: a program on the host and its arguments after argv[0]."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """What is added to a container: CDI's containerEdits without their JSON."""

    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.mounts + other.mounts,
            self.nodes + other.nodes,
            self.env + other.env,
            self.hooks + other.hooks,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a share's ledger says.

    Attributes:
        total: bytes that new allocations are measured against; too large after the death of a
            process until the next one of the share counts again.
        held: bytes charged to processes that live now.
        processes: how many processes live now that were charged, be it for a context alone.
        peak: highest total that an allocation led to, in bytes.
        denied: allocations refused since the share was made.
    """

    total: int
    held: int
    processes: int
    peak: int
    denied: int


@dataclass(frozen=True, slots=True)
class Own:
    """How a process sees itself: its PID, and the inode of the PID namespace that it counts in."""

    namespace: int
    pid: int


@dataclass(frozen=True, slots=True)
class Charge:
    """What a share's ledger says of one live process, in bytes."""

    own: Own
    bytes: int


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a share folder lets its containers take: the truth of enforcement."""

    key: ShareKey
    uuid: GpuUuid
    capacity: Capacity
