"""How a GPU is, by what NVML tells; each reading that a driver or GPU does not have is None."""

from __future__ import annotations

from typing import Any, Protocol

from apportion.model import GpuUuid, Vitals

# nvml.h: NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC.
_UNCORRECTED, _VOLATILE = 1, 0
# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
_RECOVERY_ACTION = 230
# Of the reasons for lower clocks those that are heat; power and sync are no trouble.
_HEAT = 0x20 | 0x40
# Ampere, compute capability 8: an ECC error is confined to the programs that it touches.
_CONTAINS = 8


class Readings(Protocol):
    """What is asked of NVML; `nvml.Nvml` is it."""

    def optional(self, uuid: GpuUuid, function: str, *arguments: Any) -> Any:
        """Return a reading, None where this driver or GPU has none of the kind."""

    def compute_capability(self, uuid: GpuUuid) -> tuple[int, int]:
        """Return (major, minor)."""


def compute_mode(nvml: Readings, uuid: GpuUuid) -> int:
    """Return which programs may use a GPU, as nvmlComputeMode_t; 0, all, where it is not told.

    Raises:
        NvmlError: it cannot be read.
    """
    found = nvml.optional(uuid, "nvmlDeviceGetComputeMode")
    return 0 if found is None else int(found)


def read(nvml: Readings, uuid: GpuUuid) -> Vitals:
    """Return a GPU's vitals.

    Raises:
        NvmlDeviceError: the GPU cannot be read: lost, or in need of a reset.
        NvmlUnavailableError: NVML is of no use now.
    """
    pending, failed = _remapping(nvml, uuid)
    errors = nvml.optional(uuid, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)
    return Vitals(
        uncorrected=None if errors is None else int(errors),
        remap_failed=failed,
        remap_pending=pending,
        recovery=_recovery(nvml, uuid),
        thermal=_hot(nvml, uuid),
        contains=nvml.compute_capability(uuid)[0] >= _CONTAINS,
    )


def _remapping(nvml: Readings, uuid: GpuUuid) -> tuple[bool | None, bool | None]:
    """Return whether a remapping waits for a reset, and whether one failed.

    Before Ampere pages are retired instead, and no failure of it is reported.
    """
    rows = nvml.optional(uuid, "nvmlDeviceGetRemappedRows")
    if rows is not None:
        return bool(rows[2]), bool(rows[3])
    pages = nvml.optional(uuid, "nvmlDeviceGetRetiredPagesPendingStatus")
    return (None if pages is None else bool(pages)), None


def _recovery(nvml: Readings, uuid: GpuUuid) -> int | None:
    found = nvml.optional(uuid, "nvmlDeviceGetFieldValues", [_RECOVERY_ACTION])
    if not found or found[0].nvmlReturn != 0:
        return None
    return int(found[0].value.uiVal)


def _hot(nvml: Readings, uuid: GpuUuid) -> bool | None:
    # Renamed in R535: older drivers lack the new name, and newer ones will lose the old.
    for name in ("Event", "Throttle"):
        mask = nvml.optional(uuid, f"nvmlDeviceGetCurrentClocks{name}Reasons")
        if mask is not None:
            return bool(int(mask) & _HEAT)
    return None
