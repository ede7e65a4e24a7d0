"""CDI specs as dictionaries: the static one that all claims share, and the small one of a claim.

Nothing collides when several shares or claims meet in one container: a share's paths and its CDI
name hold its key, and what is common is in the static spec, which runtimes apply once. The fronts
are in a device of that spec, which only shares name; whatever else a container has, and in whatever
order, nothing else lies at their places. Pure.
Source: CDI SPEC.md 0.5.0, the lowest with device names that start with a digit and with hostPath.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apportion import names
from apportion.container import DeviceNode, DriverFiles, Edits, Hook, Mount
from apportion.model import Access, ShareKey

CDI_VERSION = "0.5.0"
# Records from before there were whole cards name the first one: it must stay what has the fronts.
FRONT_DEVICE, PLAIN_DEVICE = "all", "plain"

_VOID = "NVIDIA_VISIBLE_DEVICES=void"


def driver_id(driver: str, access: Access) -> str:
    """Return the CDI name of what a container needs beside its own share of a GPU."""
    device = FRONT_DEVICE if access is Access.SHARE else PLAIN_DEVICE
    return f"{names.driver_kind(driver)}={device}"


def share_id(driver: str, key: ShareKey) -> str:
    """Return the CDI name of one share."""
    return f"{names.claim_kind(driver)}={key}"


def driver_spec(driver: str, found: DriverFiles, common: Edits, front: Edits) -> dict[str, Any]:
    """Return the static spec: nodes, driver files, and what enforcement puts over them.

    Args:
        driver: name of the DRA driver.
        found: the driver's files.
        common: what every container gets besides.
        front: what those with a share get over that; its mounts win over the driver's files.

    Returns:
        the spec. What is common is in its own edits, which runtimes apply once however many of its
        devices are named. Each device has the variable that keeps NVIDIA's own runtime from adding
        GPUs.
    """
    covered = {mount.container_path for mount in (*common.mounts, *front.mounts)}
    plain = tuple(mount for mount in found.mounts if mount.container_path not in covered)
    devices = {FRONT_DEVICE: Edits(env=(_VOID,)) + front, PLAIN_DEVICE: Edits(env=(_VOID,))}
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.driver_kind(driver),
        "devices": [
            {"name": name, "containerEdits": _edits(edits)} for name, edits in devices.items()
        ],
        "containerEdits": _edits(Edits(mounts=plain, nodes=found.nodes) + common),
    }


def claim_spec(driver: str, shares: Sequence[tuple[ShareKey, Edits]]) -> dict[str, Any]:
    """Return a claim's spec: one device for each share, named by the share's key.

    Args:
        driver: name of the DRA driver.
        shares: key and edits of each share: its GPU's node and its own mounts.
    """
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.claim_kind(driver),
        "devices": [{"name": key, "containerEdits": _edits(edits)} for key, edits in shares],
    }


def _edits(edits: Edits) -> dict[str, Any]:
    found: dict[str, Any] = {
        "env": list(edits.env),
        "deviceNodes": [_node(node) for node in edits.nodes],
        "mounts": [_mount(mount) for mount in edits.mounts],
        "hooks": [_hook(hook) for hook in edits.hooks],
    }
    return {key: value for key, value in found.items() if value}


def _node(node: DeviceNode) -> dict[str, Any]:
    # Without mknod: what a container may use is named here and nothing else.
    return {"path": node.path, "hostPath": node.host_path, "permissions": "rw"}


def _mount(mount: Mount) -> dict[str, Any]:
    access = "rw" if mount.writable else "ro"
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": [access, "nosuid", "nodev", "bind"],
    }


def _hook(hook: Hook) -> dict[str, Any]:
    name = hook.path.rpartition("/")[2]
    return {"hookName": "createContainer", "path": hook.path, "args": [name, *hook.args]}
