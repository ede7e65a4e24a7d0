"""Writes all files of a new cluster, and the specification that the supervisor works from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness import cache, components, network, pki, spec
from tests.harness.components import Paths
from tests.harness.images import PAUSE_IMAGE
from tests.harness.options import ClusterOptions, NodeOptions
from tests.harness.versions import KUBERNETES

_REPOSITORY = Path(__file__).resolve().parents[2]
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PERSISTENT = [
    "/etc/cdi",
    "/etc/cni",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
]
# kubelet insists on these values and would set them for the whole machine. It finds them set.
_KUBELET_SYSCTLS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_FAKEGPU = "/run/fakegpu"
_DRIVER_ROOT = "/run/nvidia/driver"
_TIMEOUT = 30.0  # seconds


def write(paths: Paths, options: ClusterOptions, cgroup: str) -> spec.ClusterSpec:
    """Fill the state folder; gives what is in its cluster.json too."""
    gates = dict(KUBERNETES[options.kubernetes_version].feature_gates) | dict(options.feature_gates)
    for folder in (paths.pki, paths.logs, paths.state / "etcd"):
        folder.mkdir(mode=0o700)
    paths.pki.chmod(0o700)
    pki.make(paths.pki, [network.CONTROL_PLANE, network.API_SERVICE, "127.0.0.1"])
    people = pki.users(node.name for node in options.nodes)
    pki.write_tokens(paths.pki, people, components.API_URL)
    default_spec = _default_runtime_spec(paths)
    machines = [_control_plane(paths, options, gates)]
    for index, node in enumerate(options.nodes):
        machine = _node(paths, options, node, index, f"{cgroup}/{node.name}")
        _write_node_files(paths, options, machine, index, gates)
        mounts = [_FAKEGPU] if node.fakegpu_dir else []
        text = components.base_runtime_spec(default_spec, Path(machine.folder) / "boot_id", mounts)
        (Path(machine.folder) / "base-spec.json").write_text(text)
        machines.append(machine)
    cluster = spec.ClusterSpec(
        name=options.name,
        state_dir=str(paths.state),
        keep_state=options.keep_state,
        cgroup=cgroup,
        kubectl=str(paths.kubernetes / "kubectl"),
        ctr=str(paths.containerd / "ctr"),
        machines=machines,
    )
    spec.write(spec.cluster_file(paths.state), cluster)
    for machine in machines:
        spec.write(spec.machine_file(Path(machine.folder)), machine)
    return cluster


def containerd_root(state: Path, node: str) -> Path:
    """The folder that the node has as /var/lib/containerd; made when missing."""
    folder = spec.persistent_folder(state / "machines" / node, "/var/lib/containerd")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _default_runtime_spec(paths: Paths) -> dict[str, object]:
    command = [str(paths.containerd / "ctr"), "oci", "spec"]
    result = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT)
    default: dict[str, object] = json.loads(result.stdout)
    return default


def _programs(
    paths: Paths, machine: str, folder: Path, arguments: Mapping[str, Sequence[str]]
) -> dict[str, spec.Program]:
    environment = {"PATH": f"{paths.containerd}:{_SYSTEM_PATH}", "HOME": "/root"}
    return {
        name: spec.Program(
            argv=[str(folder / name), *flags],
            env=environment,
            log=str(paths.logs / f"{machine}-{name}.log"),
        )
        for name, flags in arguments.items()
    }


def _visible(paths: Paths) -> list[str]:
    """Folders that a machine's programs need and that may lie where it has its own: /run, …"""
    folders = {paths.state, cache.folder(), _REPOSITORY, Path.cwd()}
    folders |= {Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(str(folder) for folder in folders)


def _control_plane(
    paths: Paths, options: ClusterOptions, gates: Mapping[str, bool]
) -> spec.Machine:
    folder = paths.machine(spec.CONTROL_PLANE)
    folder.mkdir(parents=True)
    flags = components.control_plane(paths, options, gates)
    return spec.Machine(
        name=spec.CONTROL_PLANE,
        folder=str(folder),
        address=network.CONTROL_PLANE,
        cgroup=None,
        sysctls={},
        routes=network.control_plane_routes(len(options.nodes)),
        file_system=spec.FileSystem(visible=_visible(paths)),
        programs=_programs(paths, spec.CONTROL_PLANE, paths.kubernetes, flags),
    )


def _node(
    paths: Paths, options: ClusterOptions, node: NodeOptions, index: int, cgroup: str
) -> spec.Machine:
    folder = paths.machine(node.name)
    folder.mkdir(parents=True)
    address = network.node_address(index)
    kubernetes = {
        components.KUBELET: components.kubelet(paths, options, node, address),
        components.PROXY: [f"--config={folder}/kube-proxy.json"],
    }
    containerd = {components.CONTAINERD: [f"--config={folder}/containerd.toml"]}
    return spec.Machine(
        name=node.name,
        folder=str(folder),
        address=address,
        cgroup=cgroup,
        sysctls={"net/ipv4/ip_forward": "1"},
        routes=network.node_routes(index, len(options.nodes)),
        file_system=_file_system(paths, node),
        programs=_programs(paths, node.name, paths.kubernetes, kubernetes)
        | _programs(paths, node.name, paths.containerd, containerd),
    )


def _file_system(paths: Paths, node: NodeOptions) -> spec.FileSystem:
    folder = paths.machine(node.name)
    binds: dict[str, tuple[str, bool]] = {}
    if node.driver_root and not node.driver_on_host:
        binds[_DRIVER_ROOT] = (str(node.driver_root.absolute()), True)
    if node.fakegpu_dir:
        binds[_FAKEGPU] = (str(node.fakegpu_dir.absolute()), False)
    masks = {f"/proc/sys/{name}": str(folder / "sysctl" / name) for name in _KUBELET_SYSCTLS}
    minors = [f"/dev/nvidia{minor}" for minor in node.gpu_minors]
    common = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"] if minors else []
    return spec.FileSystem(
        persistent=_PERSISTENT,
        binds=binds,
        masks=masks | {_BOOT_ID: str(folder / "boot_id")},
        null_devices=[*minors, *common],
        host_devices=[str(path) for path in node.host_devices],
        usr_layer=str(node.driver_root.absolute())
        if node.driver_root and node.driver_on_host
        else None,
        visible=_visible(paths),
    )


def _write_node_files(
    paths: Paths,
    options: ClusterOptions,
    machine: spec.Machine,
    index: int,
    gates: Mapping[str, bool],
) -> None:
    folder = Path(machine.folder)
    for name, value in _KUBELET_SYSCTLS.items():
        path = folder / "sysctl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    cni = spec.persistent_folder(folder, "/etc/cni") / "net.d"
    cni.mkdir(parents=True)
    (cni / "10-pods.conflist").write_text(components.cni_config(network.pod_subnet(index)))
    cgroup = machine.cgroup or ""
    kubelet = components.kubelet_config(cgroup, gates, options.kubelet_config)
    (folder / "kubelet.json").write_text(kubelet)
    (folder / "kube-proxy.json").write_text(components.proxy_config(paths, machine.name, gates))
    (folder / "containerd.toml").write_text(components.containerd_config(folder, PAUSE_IMAGE))
