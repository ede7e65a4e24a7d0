"""What NVML's numbers mean: return codes with what to do, brands, architectures.

Numbers as in nvml.h, not by pynvml's names: an older or newer pynvml lacks some, and a test proves
that each code which the installed one has is in the table.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

UNKNOWN = "unknown"
"""Brand or architecture newer than these tables; the GPU works all the same."""


class Kind(enum.Enum):
    """What a failure says about whom.

    LIBRARY: NVML as a whole is of no use; no GPU can be judged. PASSING: the same call may work
    later. DEVICE: this GPU or driver answers so until somebody acts.
    """

    LIBRARY = "library"
    PASSING = "passing"
    DEVICE = "device"


class Meaning(NamedTuple):
    """Kind of a code, and words for a person."""

    kind: Kind
    text: str


_TABLE: dict[int, Meaning] = {
    1: Meaning(Kind.LIBRARY, "NVML was shut down or not started; it is started again"),
    2: Meaning(Kind.DEVICE, "NVML refuses the argument"),
    3: Meaning(Kind.DEVICE, "this GPU or driver does not support it"),
    4: Meaning(
        Kind.DEVICE,
        "no permission; the plugin must run as root with the device nodes of all GPUs",
    ),
    5: Meaning(Kind.PASSING, "NVML was started already"),
    6: Meaning(Kind.DEVICE, "not found"),
    7: Meaning(Kind.PASSING, "the answer grew while it was read"),
    8: Meaning(Kind.DEVICE, "external power is not connected properly; check its cables"),
    9: Meaning(
        Kind.LIBRARY, "the driver's kernel module is not loaded; modprobe nvidia, see dmesg"
    ),
    10: Meaning(Kind.PASSING, "the driver did not answer in time"),
    11: Meaning(Kind.DEVICE, "the kernel found an interrupt problem; see dmesg"),
    12: Meaning(Kind.LIBRARY, "a library of the driver is missing; reinstall the driver"),
    13: Meaning(Kind.DEVICE, "the driver is too old for it; update the driver"),
    14: Meaning(Kind.DEVICE, "its infoROM is corrupted; have the card replaced"),
    15: Meaning(
        Kind.DEVICE,
        "the GPU is lost: it fell off the bus; look for Xid 79 in dmesg, then reboot the node",
    ),
    16: Meaning(
        Kind.DEVICE, "the GPU must be reset: stop what uses it and run nvidia-smi --gpu-reset"
    ),
    17: Meaning(Kind.PASSING, "the operating system refused it; see dmesg"),
    18: Meaning(
        Kind.LIBRARY,
        "library and kernel module are of different driver versions; unload the old module or "
        "reboot the node",
    ),
    19: Meaning(Kind.PASSING, "the GPU is in use by a driver of another kind"),
    20: Meaning(Kind.PASSING, "not enough memory on the host"),
    21: Meaning(Kind.DEVICE, "there is no data"),
    22: Meaning(Kind.DEVICE, "not possible on vGPU hosts with ECC"),
    23: Meaning(Kind.PASSING, "resources are short"),
    24: Meaning(Kind.DEVICE, "the frequency is not supported"),
    25: Meaning(Kind.DEVICE, "the driver does not know this version of the call"),
    26: Meaning(Kind.DEVICE, "the driver no longer offers it"),
    27: Meaning(Kind.PASSING, "the GPU is not ready yet"),
    28: Meaning(Kind.DEVICE, "no such GPU"),
    29: Meaning(Kind.DEVICE, "the GPU is in a state that does not allow it"),
    30: Meaning(Kind.DEVICE, "this kind of reset is not supported"),
    999: Meaning(
        Kind.DEVICE,
        "an internal error of the driver: see dmesg for Xid messages; in a container also what a "
        "device node that may not be opened gives (the plugin must be privileged)",
    ),
}

_NEW = Meaning(Kind.DEVICE, "a failure that this version of Apportion does not know")

ABSENT = frozenset({3, 13})
"""Not supported, function not found: the reading does not exist, and nothing is broken."""

HEALED_BY_REOPENING = frozenset({15, 16, 28, 999}) | {
    code for code, meaning in _TABLE.items() if meaning.kind is Kind.LIBRARY
}
"""A GPU that was reset or a driver that was replaced shows only after nvmlInit."""

BRANDS: dict[int, str] = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "GRID",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA Virtual Applications",
    8: "NVIDIA Virtual PC",
    9: "NVIDIA Virtual Compute Server",
    10: "NVIDIA RTX Virtual Workstation",
    11: "NVIDIA Cloud Gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
    18: "NVIDIA RTX Virtual Game Development",
}

ARCHITECTURES: dict[int, str] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def meaning(code: int) -> Meaning:
    """Return what an nvmlReturn_t means; of one from a newer driver only that it is unknown."""
    return _TABLE.get(code, _NEW)


def concerns_all(code: int) -> bool:
    """Return whether the failure is NVML's as a whole, so that no GPU can be judged by it."""
    return meaning(code).kind is Kind.LIBRARY


def passes(code: int) -> bool:
    """Return whether the same call may work later without anybody doing anything."""
    return meaning(code).kind is Kind.PASSING
