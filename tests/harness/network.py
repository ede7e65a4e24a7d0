"""The cluster's own network: a bridge in the control plane's namespace, a veth pair per node.

No interface leads to the host, so nothing leaves the cluster, and nothing is left when the
namespaces are gone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

PREFIX = "10.77.0"
CONTROL_PLANE = f"{PREFIX}.1"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
PODS = "10.88.0.0/16"
_FIRST_NODE = 10
_TIMEOUT = 20.0  # seconds


def node_address(index: int) -> str:
    return f"{PREFIX}.{_FIRST_NODE + index}"


def pod_subnet(index: int) -> str:
    return f"10.88.{index}.0/24"


def node_routes(index: int, count: int) -> list[str]:
    """A node's routes: the other nodes' pods, Services (kube-proxy rewrites them), nothing else."""
    others = [number for number in range(count) if number != index]
    return [
        *(f"{pod_subnet(number)} via {node_address(number)}" for number in others),
        f"{SERVICES} dev eth0",
        "unreachable default",
    ]


def control_plane_routes(count: int) -> list[str]:
    """The control plane reaches pods: webhooks and aggregated APIs."""
    return [f"{pod_subnet(number)} via {node_address(number)}" for number in range(count)]


def connect_control_plane(pid: int, routes: Sequence[str]) -> None:
    """Configure the network namespace of the process."""
    lines = [
        "link set lo up",
        "link add lan type bridge",
        f"addr add {CONTROL_PLANE}/24 dev lan",
        "link set lan up",
    ]
    # Next hops are on the bridge's network; they need not exist yet.
    _ip(pid, [*lines, *(f"route add {route}" for route in routes)])


def connect_node(
    control_plane_pid: int, pid: int, index: int, address: str, routes: Sequence[str]
) -> None:
    """Plug the process's network namespace into the bridge and configure it."""
    port = f"node{index}"
    _ip(
        control_plane_pid,
        [
            f"link add {port} type veth peer name eth0 netns {pid}",
            f"link set {port} master lan up",
        ],
    )
    lines = ["link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"]
    _ip(pid, [*lines, *(f"route add {route}" for route in routes)])


def disconnect_node(control_plane_pid: int, index: int) -> None:
    """Unplug a node. Its namespace's end would do that too, but the kernel takes its time."""
    _ip(control_plane_pid, [f"link del node{index}"])


def _ip(pid: int, lines: Sequence[str]) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"],
        input="\n".join(lines),
        text=True,
        check=True,
        timeout=_TIMEOUT,
    )
