"""A Kubernetes cluster for tests, as a context manager."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.harness import golang, layout, mounts, registry, requirements, startup, store
from tests.harness.access import DEFAULT_TIMEOUT, Access, run
from tests.harness.components import CONTAINERD, KUBELET, Paths
from tests.harness.errors import HarnessError
from tests.harness.options import ClusterOptions
from tests.harness.spec import CONTROL_PLANE, cluster_file
from tests.harness.versions import DEFAULT_KUBERNETES

_STOP_TIMEOUT = 60.0  # seconds
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL to a component
_REPOSITORY = Path(__file__).resolve().parents[2]


class Cluster:
    """A control plane and its nodes, in namespaces that leave nothing behind.

    Use as a context manager, or start() and stop(). When the process that started it dies, even by
    SIGKILL, a supervisor takes everything down. All methods raise HarnessError; where a program
    that was run failed (check=True), it is a subprocess.CalledProcessError too. A program that
    takes too long ends in subprocess.TimeoutExpired.
    """

    def __init__(self, options: ClusterOptions | None = None) -> None:
        self.options = options or ClusterOptions()
        self._access: Access | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None  # what the supervisor says

    @classmethod
    def attach(cls, state_dir: Path) -> Self:
        """A cluster that another process started; stop() stops it, start() is refused."""
        cluster = cls()
        cluster._access = Access(state_dir)
        return cluster

    @staticmethod
    def build(kubernetes_version: str = DEFAULT_KUBERNETES) -> tuple[Path, Path, Path]:
        """Install and build what is missing: minutes once, then a fraction of a second.

        Gives the folders of Kubernetes' programs, of containerd's, and of the unpacked base images.
        """
        requirements.ensure()
        kubernetes = golang.kubernetes(kubernetes_version)
        containerd = golang.containerd()
        return kubernetes, containerd, store.base_store(containerd)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Build what is missing, start all programs, import images; returns when pods can run.

        On failure everything is taken down again and the error names the component and the last
        lines of its log.
        """
        if self._access:
            raise HarnessError(f"cluster {self.options.name} is started already")
        kubernetes, containerd, _ = self.build(self.options.kubernetes_version)
        images = store.store_with(containerd, self.options.images)
        registry.sweep()
        deadline = time.monotonic() + self.options.start_timeout
        state = self._make_state_dir()
        try:
            cgroup = f"apportion-{self.options.name}-{secrets.token_hex(4)}"
            layout.write(Paths(kubernetes, containerd, state), self.options, cgroup)
            for node in self.options.nodes:
                store.copy(images, layout.containerd_root(state, node.name))
            self._access = Access(state)
            self._start_supervisor(deadline)
            startup.start_programs(self._access, self.options, deadline)
        except BaseException:
            self.stop()
            shutil.rmtree(state, ignore_errors=True)  # where there was no supervisor yet
            raise

    def _make_state_dir(self) -> Path:
        given = self.options.state_dir
        place = given or Path(tempfile.gettempdir())
        if mounts.is_overlay(place):
            raise HarnessError(
                f"{place} is on an overlay file system, and containers need one of their own on it:"
                " set TMPDIR to a folder on another, such as /dev/shm"
            )
        if given is None:
            return Path(tempfile.mkdtemp(prefix=f"apportion-{self.options.name}-"))
        given.mkdir(parents=True, exist_ok=True)
        if any(given.iterdir()):
            raise HarnessError(f"{given} is not empty; a cluster starts from an empty state folder")
        return given.absolute()

    def _start_supervisor(self, deadline: float) -> None:
        errors = self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed by stop()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.supervisor", str(cluster_file(self.state_dir))],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            cwd=_REPOSITORY,
            start_new_session=True,  # the terminal's Ctrl-C is for the owner
        )
        while not self._supervisor_answers():
            if self._supervisor.poll() is not None or time.monotonic() > deadline:
                errors.seek(0)
                words = errors.read().decode(errors="replace").strip()
                raise HarnessError(f"the namespaces could not be set up:\n{words}")
            time.sleep(0.01)

    def _supervisor_answers(self) -> bool:
        with contextlib.suppress(HarnessError):
            return bool(self.access.supervisor(op="status"))
        return False

    def detach(self) -> None:
        """Let the cluster outlive this process; `python -m tests.harness down` stops it."""
        self.access.supervisor(op="detach")

    def stop(self) -> None:
        """End all processes and remove namespaces, mounts, cgroups and the state folder."""
        access, self._access = self._access, None
        if access is None:
            return
        record = [r for _, r in registry.records() if r.state_dir == str(access.state_dir)]
        with contextlib.suppress(HarnessError):
            access.supervisor(op="stop")
        if self._supervisor:
            self._wait_for_supervisor(self._supervisor)
            return
        deadline = time.monotonic() + _STOP_TIMEOUT
        while any(known.alive for known in record):
            if time.monotonic() > deadline:
                raise HarnessError(f"the supervisor (PID {record[0].pid}) does not end")
            time.sleep(0.05)

    def _wait_for_supervisor(self, supervisor: subprocess.Popen[bytes]) -> None:
        if supervisor.stdin:
            supervisor.stdin.close()
        code = supervisor.wait(_STOP_TIMEOUT)
        self._supervisor = None
        if self._errors:
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace")
            self._errors.close()
            if code:
                raise HarnessError(f"the cluster was not taken down cleanly:\n{words}")

    @property
    def access(self) -> Access:
        if self._access is None:
            raise HarnessError("the cluster is not started")
        return self._access

    @property
    def state_dir(self) -> Path:
        """The folder of everything this cluster writes."""
        return self.access.state_dir

    @property
    def logs_dir(self) -> Path:
        """Folder of `<machine>-<component>.log`; machine is `control-plane` or a node's name."""
        return self.state_dir / "logs"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; its address is reachable inside the cluster only."""
        return self.access.kubeconfig

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 as subprocess.run has it
        check: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; stdout and stderr are captured as text."""
        argv = self.access.kubectl_argv(*args)
        return run(argv, input=input, check=check, timeout=timeout)

    def in_network(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the host where `kubeconfig` works: in the control plane's network."""
        full = self.access.network_argv(*argv)
        return run(full, check=check, timeout=timeout, env=env)

    def kubectl_json(self, *args: str, timeout: float = DEFAULT_TIMEOUT) -> dict[str, Any]:
        """Run kubectl with `-o json` and give the object."""
        found: dict[str, Any] = json.loads(
            self.kubectl(*args, "-o", "json", timeout=timeout).stdout
        )
        return found

    def apply(
        self, manifest: str | Sequence[Mapping[str, object]], *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """`kubectl apply -f -` of YAML text or of objects."""
        if not isinstance(manifest, str):
            manifest = "\n---\n".join(json.dumps(item) for item in manifest)
        self.kubectl("apply", "-f", "-", input=manifest, timeout=timeout)

    def wait_for(
        self,
        condition: str,
        *what: str,
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """`kubectl wait --for=<condition> <what…>`; the error of a timeout has `describe`'s words.

        condition is kubectl's: "condition=Ready", "delete", "jsonpath={.status.phase}=Succeeded".
        """
        arguments = [f"--for={condition}", f"--timeout={timeout:.0f}s", f"--namespace={namespace}"]
        result = self.kubectl("wait", *arguments, *what, check=False, timeout=timeout + 10)
        if result.returncode:
            described = self.kubectl("describe", f"--namespace={namespace}", *what, check=False)
            raise HarnessError(f"{result.stderr.strip()}\n{described.stdout}{described.stderr}")

    def node_exec(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        input: str | None = None,  # noqa: A002 as subprocess.run has it
        check: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a node's namespaces (default: the first node's), as root.

        It sees the node's /var/lib/kubelet, /run, /dev and network, and the host's other files.
        """
        full = self.access.node_argv(node, argv)
        environment = self.access.node_environment(env)
        return run(full, input=input, check=check, timeout=timeout, env=environment)

    def node_popen(
        self,
        argv: Sequence[str],
        *,
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        output: int | IO[bytes] = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """The same for a program that stays, such as the plugin outside a pod.

        The Popen is nsenter in a process group of its own, with the program in the same group:
        os.killpg(popen.pid, …) reaches both.
        """
        return subprocess.Popen(
            self.access.node_argv(node, argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.access.node_environment(env),
            start_new_session=True,
        )

    def import_image(self, archive: Path, *, node: str | None = None) -> None:
        """Import an OCI or Docker archive into one node, or into all."""
        for name in [node] if node else self.access.nodes:
            startup.import_image(self.access, name, archive)

    def restart_kubelet(self, node: str | None = None, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """SIGTERM to kubelet, start it again, wait until it answers and its node is Ready."""
        name = self.access.node(node)
        self.stop_component(KUBELET, machine=name)
        self.start_component(KUBELET, machine=name)
        startup.wait_for_node(self.access, name, time.monotonic() + timeout)

    def restart_containerd(
        self, node: str | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """The same for containerd; running containers stay, as their shims do."""
        name = self.access.node(node)
        self.stop_component(CONTAINERD, machine=name)
        self.start_component(CONTAINERD, machine=name)
        deadline = time.monotonic() + timeout
        startup.wait_for_containerd(self.access, name, deadline)
        startup.wait_for_node(self.access, name, deadline)

    def stop_component(
        self, component: str, *, machine: str | None = None, grace: float = _GRACE
    ) -> None:
        """SIGTERM to "kubelet", "containerd", "kube-apiserver", …, SIGKILL after grace seconds.

        machine: the node's name, or "control-plane"; default: where the component is first found.
        grace 0 is SIGKILL at once.
        """
        name = machine or self._machine_of(component)
        self.access.ask(name, timeout=grace + _GRACE, op="stop", component=component, grace=grace)

    def start_component(self, component: str, *, machine: str | None = None) -> None:
        """Start a component that was stopped. It may not be ready yet on return."""
        self.access.ask(machine or self._machine_of(component), op="start", component=component)

    def _machine_of(self, component: str) -> str:
        for machine in self.access.spec.machines:
            if component in machine.programs:
                return machine.name
        raise HarnessError(f"no machine has a component {component!r}")

    def reboot(self, node: str | None = None, *, timeout: float = 90) -> None:
        """Play a node's reboot: waits until the node is Ready again and its pods' status is true.

        Every process of the node dies at once, /run and /dev start empty, cgroups are gone,
        /proc/sys/kernel/random/boot_id is a new one on the node and in its pods; /var/lib/kubelet
        and containerd's images stay, and so does /run/fakegpu, which is the node's hardware. The
        control plane runs on.
        """
        name = self.access.node(node)
        deadline = time.monotonic() + timeout
        before = startup.running_containers(self.access, name)
        self.access.supervisor(timeout=timeout, op="reboot", machine=name)
        startup.start_node(self.access, name, deadline)
        startup.wait_for_node(self.access, name, deadline)
        startup.wait_until_gone(self.access, name, before, deadline)

    def boot_id(self, node: str | None = None) -> str:
        """The node's present boot ID, as its /proc/sys/kernel/random/boot_id shows it."""
        return startup.boot_id(self.access, self.access.node(node))

    @property
    def control_plane(self) -> str:
        """The machine of etcd, API server, controller manager and scheduler."""
        return CONTROL_PLANE


def running_clusters() -> list[registry.Record]:
    """All clusters of this user's cache whose supervisors live."""
    return [record for _, record in registry.records() if record.alive]
