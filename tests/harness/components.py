"""Command lines and configuration of the cluster's programs. Pure: paths in, text out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import network, pki
from tests.harness.options import ClusterOptions, NodeOptions
from tests.harness.versions import KUBERNETES

ETCD = "etcd"
APISERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
CONTAINERD = "containerd"
KUBELET = "kubelet"
PROXY = "kube-proxy"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
API_URL = f"https://{network.CONTROL_PLANE}:6443"
READY_URL = f"{API_URL}/readyz"
KUBELET_READY_URL = "http://127.0.0.1:10248/healthz"
PROXY_READY_URL = "http://127.0.0.1:10256/healthz"
ETCD_URL = "http://127.0.0.1:2379"
_CNI_PROGRAMS = "/usr/lib/cni"


@dataclass(frozen=True)
class Paths:
    """Where the programs and the cluster's files are."""

    kubernetes: Path  # folder of programs
    containerd: Path  # folder of programs
    state: Path

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def kubeconfig(self, user: str) -> Path:
        return self.pki / f"{user}.kubeconfig"

    def machine(self, name: str) -> Path:
        return self.state / "machines" / name


def control_plane(
    paths: Paths, options: ClusterOptions, gates: Mapping[str, bool]
) -> dict[str, list[str]]:
    """Argument lists of etcd, API server, controller manager and scheduler, without programs."""
    gate_flags = _gate_flags(gates)
    apis = [f"--runtime-config={api}" for api in KUBERNETES[options.kubernetes_version].apis]
    return {
        ETCD: _etcd(paths),
        APISERVER: [*_apiserver(paths), *apis, *gate_flags, *options.apiserver_args],
        CONTROLLER_MANAGER: [
            f"--kubeconfig={paths.kubeconfig(pki.CONTROLLER_MANAGER)}",
            f"--service-account-private-key-file={paths.pki}/sa.key",
            f"--root-ca-file={paths.pki}/apiserver.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # Each controller fetches its own token first; 20 requests/s would take 4 s for that.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *gate_flags,
            *options.controller_manager_args,
        ],
        SCHEDULER: [
            f"--kubeconfig={paths.kubeconfig(pki.SCHEDULER)}",
            "--leader-elect=false",
            *gate_flags,
            *options.scheduler_args,
        ],
    }


def _gate_flags(gates: Mapping[str, bool]) -> list[str]:
    pairs = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()))
    return [f"--feature-gates={pairs}"] if pairs else []


def _etcd(paths: Paths) -> list[str]:
    return [
        f"--data-dir={paths.state}/etcd",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # nothing here must survive a power cut
        # A lone member waits for one election timeout before it leads.
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--log-level=warn",
    ]


def _apiserver(paths: Paths) -> list[str]:
    return [
        f"--etcd-servers={ETCD_URL}",
        f"--bind-address={network.CONTROL_PLANE}",
        f"--advertise-address={network.CONTROL_PLANE}",
        "--secure-port=6443",
        f"--tls-cert-file={paths.pki}/apiserver.crt",
        f"--tls-private-key-file={paths.pki}/apiserver.key",
        f"--token-auth-file={paths.pki}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--service-account-key-file={paths.pki}/sa.pub",
        f"--service-account-signing-key-file={paths.pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={network.SERVICES}",
        "--kubelet-preferred-address-types=InternalIP",
        # The control plane runs no kube-proxy: webhooks are called at their pods' addresses.
        "--enable-aggregator-routing",
        # How an API that a pod serves knows on whose behalf it is asked.
        f"--requestheader-client-ca-file={paths.pki}/front-proxy.crt",
        f"--requestheader-allowed-names={pki.FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={paths.pki}/front-proxy.crt",
        f"--proxy-client-key-file={paths.pki}/front-proxy.key",
    ]


def kubelet(paths: Paths, options: ClusterOptions, node: NodeOptions, address: str) -> list[str]:
    labels = ",".join(f"{name}={value}" for name, value in sorted(node.labels.items()))
    return [
        f"--config={paths.machine(node.name)}/kubelet.json",
        f"--kubeconfig={paths.kubeconfig(node.name)}",
        f"--hostname-override={node.name}",
        f"--node-ip={address}",
        *([f"--node-labels={labels}"] if labels else []),
        *options.kubelet_args,
    ]


def kubelet_config(cgroup: str, gates: Mapping[str, bool], more: Mapping[str, object]) -> str:
    """KubeletConfiguration, as JSON."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "enforceNodeAllocatable": [],
        # The disk is the host's, and how full it is is not the test's business.
        "evictionHard": {"memory.available": "10Mi"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "featureGates": dict(gates),
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,  # lower needs CAP_SYS_RESOURCE
        "resolvConf": "",  # else pods would ask the host's name server
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",  # the default is below /usr
    }
    return json.dumps(config | dict(more), indent=1)


def proxy_config(paths: Paths, node: str, gates: Mapping[str, bool]) -> str:
    """KubeProxyConfiguration, as JSON."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(paths.kubeconfig(pki.PROXY))},
            "clusterCIDR": network.PODS,
            # Sizes of the connection table are the whole kernel's; leave the host's.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "featureGates": dict(gates),
            "hostnameOverride": node,
        },
        indent=1,
    )


def containerd_config(folder: Path, pause_image: str) -> str:
    """containerd's TOML; every path but the base spec's is the standard one."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause_image}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{_CNI_PROGRAMS}"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{folder}/base-spec.json"
"""


def cni_config(subnet: str) -> str:
    """Pods by veth pairs and routes: on a bridge, replies between two pods of the node would
    pass kube-proxy's address translation by wherever br_netfilter is off.
    """
    routes = [{"dst": "0.0.0.0/0"}]
    address = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": routes}
    plugins = [{"type": "ptp", "ipam": address}]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=1)


def base_runtime_spec(default: Mapping[str, Any], boot_id: Path, mounts: Sequence[str]) -> str:
    """What every container starts from: containerd's default, the node's boot ID, folders.

    runc refuses mounts below /proc, so a hook shows the boot ID: it runs with the container's root
    file system as working directory, before the container is locked into that.
    """
    spec = dict(default)
    bind = ["rbind", "rw", "nosuid", "nodev"]
    spec["mounts"] = [
        *spec["mounts"],
        *({"destination": p, "type": "bind", "source": p, "options": bind} for p in mounts),
    ]
    target = "proc/sys/kernel/random/boot_id"
    arguments = ["busybox", "mount", "-o", "bind", str(boot_id), target]
    spec["hooks"] = {"createContainer": [{"path": "/bin/busybox", "args": arguments}]}
    return json.dumps(spec, indent=1)
