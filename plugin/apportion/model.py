"""The values that the parts hand to each other: frozen, and touching nothing of the world."""

from __future__ import annotations

import enum
from dataclasses import dataclass
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


class CoresMode(enum.StrEnum):
    """How a share is held to its cores; the words of limits.h."""

    NONE = "none"
    TIMESLICE = "timeslice"
    MPS = "mps"


class Access(enum.StrEnum):
    """How much of its GPU an allocation result gives."""

    SHARE = "share"
    """A part, which the limits hold it to."""

    WHOLE = "whole"
    """All of it, and nobody else any: the driver's own libraries and numbers."""

    ADMIN = "admin"
    """A look at it beside all others (adminAccess): as WHOLE, and it takes nothing."""


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


WHOLE = Capacity(cores=100, memory=1 << 50)
"""What the limits of a whole card say: more memory than a GPU has, so the driver's own is shown."""

ADMIN = Capacity(cores=0, memory=1 << 50)
"""What the limits of admin access say; as it takes nothing, it is left out of all sums."""


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
        share_id: the scheduler's ID of this share.
        uuid: GPU that the device is.
        capacity: what was consumed, as allocated; nothing for admin access.
        policy: what happens with idle cores.
        access: how much of the GPU this is; only a SHARE is held to its capacity.
    """

    key: ShareKey
    request: str
    pool: str
    device: DeviceName
    share_id: str | None
    uuid: GpuUuid
    capacity: Capacity
    policy: CoresPolicy = CoresPolicy.CAP
    access: Access = Access.SHARE

    @property
    def allowed(self) -> Capacity:
        """What its limits say, and what it counts for against the GPU."""
        return {Access.WHOLE: WHOLE, Access.ADMIN: ADMIN}.get(self.access, self.capacity)


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
class CoresUse:
    """What a share's ledger says of its time on the GPU, in nanoseconds since the share was made.

    Attributes:
        used: time that its work took.
        waited: time that launches were held back, summed over threads.
        overrun: of `used`, what lay outside its slots.
    """

    used: int = 0
    waited: int = 0
    overrun: int = 0


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
        cores: its time on the GPU; None where nothing counts it, as only time division does.
    """

    total: int
    held: int
    processes: int
    peak: int
    denied: int
    cores: CoresUse | None = None


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
    """What a share folder lets its containers take: the truth of enforcement.

    Attributes:
        key: the share.
        uuid: its GPU.
        capacity: its limits; of a whole card or admin access, WHOLE or ADMIN.
        policy: what happens with idle cores.
        mode: how its cores are held; `none` for shares of plugins that did not hold them yet.
    """

    key: ShareKey
    uuid: GpuUuid
    capacity: Capacity
    policy: CoresPolicy = CoresPolicy.CAP
    mode: CoresMode = CoresMode.NONE
