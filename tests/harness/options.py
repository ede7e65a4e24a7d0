"""What a test may choose about its cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.errors import HarnessError
from tests.harness.spec import CONTROL_PLANE
from tests.harness.versions import DEFAULT_KUBERNETES

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")
MAX_NODES = 8


@dataclass(frozen=True)
class NodeOptions:
    """One node, and the GPUs it seems to have.

    driver_root: folder on the host with a driver's files (`usr/lib/…`); bind-mounted read-only at
        /run/nvidia/driver, or laid over the node's own /usr where driver_on_host is set.
    fakegpu_dir: folder of the simulated kernel module; bind-mounted read-write at /run/fakegpu in
        the node and in every container.
    gpu_minors: /dev/nvidia<minor> to make (nodes like /dev/null), with nvidiactl, nvidia-uvm and
        nvidia-uvm-tools; also below /run/nvidia/driver/dev where the driver root has such a folder.
    host_devices: device nodes of the host to show in the node (a real GPU's).
    """

    name: str = "node-a"
    driver_root: Path | None = None
    driver_on_host: bool = False
    fakegpu_dir: Path | None = None
    gpu_minors: tuple[int, ...] = ()
    host_devices: tuple[Path, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _DNS_LABEL.fullmatch(self.name):
            raise HarnessError(f"node name {self.name!r} is not a short DNS label")
        if self.name == CONTROL_PLANE:
            raise HarnessError(f"a node can't be called {CONTROL_PLANE}: that machine exists")


@dataclass(frozen=True)
class ClusterOptions:
    """One cluster. Everything has a default; two clusters may run at once.

    name: shows in `status`, in cgroups and in the state folder's name.
    nodes: one kubelet and containerd each, in namespaces of its own.
    kubernetes_version: a key of versions.KUBERNETES, such as "1.36".
    feature_gates: given to API server, scheduler, controller manager, kubelet and kube-proxy, on
        top of what versions.KUBERNETES says the version needs.
    images: archives of images that every node has from its start, unpacked once and kept in the
        cache. The pause, busybox and Python images are always there.
    state_dir: everything the cluster writes; removed at stop unless keep_state. None: a new folder
        in the system's temporary folder.
    *_args: further flags, such as ("--v=4",). kubelet_config: further KubeletConfiguration fields.
    node_authorizer_workaround: lets nodes `get` every ResourceClaim. The node authorizer's graph
        lags, and a kubelet that asks for a fresh claim too early waits 75 to 90 s before it tries
        again; without this, tests of anything else measure that.
    start_timeout: seconds for the whole start.
    """

    name: str = "apportion"
    nodes: tuple[NodeOptions, ...] = (NodeOptions(),)
    kubernetes_version: str = DEFAULT_KUBERNETES
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    images: tuple[Path, ...] = ()
    state_dir: Path | None = None
    keep_state: bool = False
    apiserver_args: tuple[str, ...] = ()
    scheduler_args: tuple[str, ...] = ()
    controller_manager_args: tuple[str, ...] = ()
    kubelet_args: tuple[str, ...] = ()
    kubelet_config: Mapping[str, object] = field(default_factory=dict)
    node_authorizer_workaround: bool = True
    start_timeout: float = 90.0

    def __post_init__(self) -> None:
        if not _DNS_LABEL.fullmatch(self.name):
            raise HarnessError(f"cluster name {self.name!r} is not a short DNS label")
        names = [node.name for node in self.nodes]
        if not 1 <= len(names) <= MAX_NODES or len(set(names)) != len(names):
            raise HarnessError(f"1 to {MAX_NODES} nodes with different names are needed: {names}")
