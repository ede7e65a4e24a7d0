"""A Kubernetes cluster for tests, as a context manager."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.options import ClusterOptions

DEFAULT_TIMEOUT = 60.0  # seconds


class Cluster:
    """A control plane and its nodes, in namespaces that leave nothing behind.

    Use as a context manager, or start() and stop(). When the process that started it dies, even by
    SIGKILL, a supervisor takes everything down. All methods raise HarnessError; those that run
    programs raise subprocess.CalledProcessError (check=True) and subprocess.TimeoutExpired.
    """

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Build what is missing, start all programs, import images; returns when pods can run.

        On failure everything is taken down again and the error names the component and the last
        lines of its log.
        """

    def stop(self) -> None:
        """End all processes and remove namespaces, mounts, cgroups and the state folder."""

    @property
    def state_dir(self) -> Path:
        """The folder of everything this cluster writes."""

    @property
    def logs_dir(self) -> Path:
        """Folder of `<machine>-<component>.log`; machine is `control-plane` or a node's name."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its address is reachable inside the cluster only."""

    def kubectl(
        self,
        *args: str,
        input: str | None = None,
        check: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; stdout and stderr are captured as text."""

    def kubectl_json(self, *args: str, timeout: float = DEFAULT_TIMEOUT) -> dict[str, object]:
        """Run kubectl with `-o json` and give the object."""

    def apply(self, manifest: str | Sequence[Mapping[str, object]], *, timeout: float = 60) -> None:
        """`kubectl apply -f -` of YAML text or of objects."""

    def wait_for(
        self, condition: str, *what: str, namespace: str = "default", timeout: float = 60
    ) -> None:
        """`kubectl wait --for=<condition> <what…>`; on timeout the error has `describe`'s events."""

    def node_exec(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        input: str | None = None,
        check: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a node's namespaces (default: the first node's), as root.

        It sees the node's /var/lib/kubelet, /run, /dev and network, and the host's other files.
        """

    def node_popen(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        output: int | Path = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """The same for a program that stays, such as the plugin outside a pod.

        SIGTERM or SIGKILL to the Popen reaches nsenter; use node_kill for the program itself.
        """

    def import_image(self, archive: Path, *, node: str | None = None) -> None:
        """Import an OCI or Docker archive into one node, or into all."""

    def restart_kubelet(self, node: str | None = None, *, timeout: float = 60) -> None:
        """SIGTERM to kubelet, start it again, wait until it answers and its node is Ready."""

    def restart_containerd(self, node: str | None = None, *, timeout: float = 60) -> None:
        """The same for containerd; running containers stay, as their shims do."""

    def stop_component(self, component: str, *, machine: str | None = None) -> None:
        """Stop "kubelet", "containerd", "kube-apiserver", …; start_component brings it back."""

    def start_component(self, component: str, *, machine: str | None = None) -> None:
        """Start a component that was stopped. It may not be ready yet on return."""

    def reboot(self, node: str | None = None, *, timeout: float = 90) -> None:
        """Play a node's reboot: waits until the node is Ready again.

        Every process of the node dies at once, /run and /dev start empty, cgroups are gone,
        /proc/sys/kernel/random/boot_id is a new one on the node and in its pods; /var/lib/kubelet
        and containerd's images stay. The control plane runs on.
        """

    def boot_id(self, node: str | None = None) -> str:
        """The node's present boot ID, as its /proc/sys/kernel/random/boot_id shows it."""
