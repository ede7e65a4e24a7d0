"""What a lab must not leave on its node and in its cluster."""

from __future__ import annotations

from functools import partial

from tests.lab.walk import Walk


def shares_gone(walk: Walk, driver: str) -> None:
    """No claim has a CDI file or a share folder any more."""
    walk.until("claims' CDI files left", lambda: _files(walk, "/var/run/cdi", "claim_"), [])
    folder = "/run/apportion/shares"
    walk.until("share folders left", lambda: _files(walk, folder, f"{driver}/"), [])


def plugin_gone(walk: Walk) -> None:
    """The plugin has left no CDI file and no socket."""
    walk.until("CDI files left", lambda: _files(walk, "/var/run/cdi", ""), [])
    for folder in ("plugins", "plugins_registry"):
        walk.until(
            f"sockets in {folder}",
            partial(_files, walk, f"/var/lib/kubelet/{folder}", ".sock"),
            [],
        )
    walk.show("  (kubelet withdraws the node's slice half a minute after its driver has gone)")


def slice_gone(walk: Walk) -> None:
    """No slice is left: kubelet wipes them 30 s after the driver's socket has gone."""
    walk.until("slices left", lambda: len(walk.get("resourceslices")["items"]), 0, timeout=90)


def _files(walk: Walk, folder: str, part: str) -> list[str]:
    found = walk.cluster.node_exec(["find", folder, "-mindepth", "1"], check=False).stdout
    return sorted(path for path in found.splitlines() if part in path)
