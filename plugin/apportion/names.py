"""Names that Kubernetes, CDI and containers see, each made in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from apportion.model import ClaimUid, DeviceName, Gpu, ShareKey

CONTAINER_ROOT = "/run/apportion"
"""Where everything of ours lies in a container."""

CONTAINER_SHARES = f"{CONTAINER_ROOT}/shares"
CONTAINER_DRIVER = f"{CONTAINER_ROOT}/driver"
"""The real libraries; the front libraries' DT_NEEDED names exactly this folder."""

CONTAINER_MPS = f"{CONTAINER_ROOT}/mps"
"""The pipes of MPS daemons, by the UUID of the GPU; shim/src/cuda/mps.c looks there."""

CORES = "cores"
MEMORY = "memory"
CONFIG_API = "apportion.gpu/v1alpha1"
CONFIG_KIND = "ShareConfig"

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MAX_DRIVER = 63
_MAX_NODE = 253
_MAX_PREFIX = 50


def is_uid(text: str) -> bool:
    """Return whether `text` can name a file: the UIDs that the API server gives always can."""
    return _UID.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Return whether `text` is a DNS label (RFC 1123), as device names must be."""
    return _LABEL.fullmatch(text) is not None


def is_driver_name(text: str) -> bool:
    """Return whether `text` is a DNS subdomain of at most 63 characters (KEP-4381)."""
    return len(text) <= _MAX_DRIVER and _SUBDOMAIN.fullmatch(text) is not None


def is_device_prefix(text: str) -> bool:
    """Return whether `text` before an address or index makes a DNS label of at most 63."""
    return len(text) <= _MAX_PREFIX and is_label(text + "0")


def is_node_name(text: str) -> bool:
    """Return whether `text` is a DNS subdomain of at most 253 characters, as node names are."""
    return len(text) <= _MAX_NODE and _SUBDOMAIN.fullmatch(text) is not None


def share_key(uid: ClaimUid, index: int) -> ShareKey:
    """Return the key of the `index`-th result of a claim; allocations never change."""
    return ShareKey(f"{uid}-{index}")


def claim_kind(driver: str) -> str:
    """Return the CDI kind of the per-claim specs."""
    return f"k8s.{driver}/claim"


def driver_kind(driver: str) -> str:
    """Return the CDI kind of the static spec."""
    return f"k8s.{driver}/driver"


def claim_spec_file(driver: str, uid: ClaimUid) -> str:
    """Return the file name of a claim's CDI spec."""
    return f"k8s.{driver}-claim_{uid}.json"


def driver_spec_file(driver: str) -> str:
    """Return the file name of the static CDI spec."""
    return f"k8s.{driver}-driver.json"


def device_names(
    gpus: Sequence[Gpu], *, by: str = "pci", prefix: str = ""
) -> dict[DeviceName, Gpu]:
    """Name each GPU for the slice, in the order given.

    Args:
        gpus: what the scan found.
        by: "pci" names by address and is stable when another card leaves; "index" counts.
        prefix: before the address or index; default "gpu-".

    Returns:
        names, each a DNS label: `gpu-0000-3b-00-0`, or `hami-gpu-0` with by="index" and
        prefix="hami-gpu-".
    """
    front = prefix or "gpu-"
    return {
        DeviceName(front + (re.sub(r"[:.]", "-", gpu.pci_bus_id) if by == "pci" else str(n))): gpu
        for n, gpu in ((gpu.index, gpu) for gpu in gpus)
    }
