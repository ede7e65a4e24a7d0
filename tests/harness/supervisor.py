"""The process that owns a cluster's namespaces and takes everything down in the end.

    python -m tests.harness.supervisor <cluster file>

Standard input is a pipe from the owner. When that closes (the owner ended, however), on SIGTERM,
SIGINT or a `stop`, the machines are killed and all that they left is removed. After `detach` the
pipe means nothing, and only the signals and `stop` count.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.harness import cgroups, network, registry, rpc, spec
from tests.harness.errors import ComponentError, HarnessError

_MACHINE_START_TIMEOUT = 20.0  # seconds
_MACHINE_END_TIMEOUT = 20.0  # seconds
_REPOSITORY = Path(__file__).resolve().parents[2]
_UNSHARE = [
    "unshare",
    "--net",
    "--mount",
    "--ipc",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


class RunningMachine:
    """A machine's namespaces: `unshare`, and the init below it."""

    def __init__(self, machine: spec.Machine) -> None:
        self.spec = machine
        folder = Path(machine.folder)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        if machine.cgroup:
            cgroups.create(machine.cgroup)
        command = [*_UNSHARE, sys.executable, "-m", "tests.harness.machine", str(folder)]
        self._log = folder.parents[1] / "logs" / f"{machine.name}-init.log"
        with self._log.open("ab") as log:
            self._unshare = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=_REPOSITORY
            )
        self.pid = 0

    def wait_until_up(self) -> None:
        """Returns when init listens; pid is then its PID on the host."""
        deadline = time.monotonic() + _MACHINE_START_TIMEOUT
        while not self.pid:
            try:
                self.pid = rpc.server_pid(self.spec.socket, 1.0)
            except OSError:
                if self._unshare.poll() is not None or time.monotonic() > deadline:
                    what = "could not set up its namespaces"
                    raise ComponentError(self.spec.name, what, self._log) from None
                time.sleep(0.01)

    def kill(self) -> None:
        """End every process of the machine, at once; returns when they are gone."""
        if self._unshare.stdin:
            self._unshare.stdin.close()
        if self.pid and self._unshare.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        try:
            # unshare ends after init, and init after all others of its PID namespace.
            self._unshare.wait(_MACHINE_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._unshare.kill()
            self._unshare.wait()
        self.spec.socket.unlink(missing_ok=True)


class Supervisor:
    """All machines of one cluster."""

    def __init__(self, cluster: spec.ClusterSpec) -> None:
        self._cluster = cluster
        self._machines: dict[str, RunningMachine] = {}
        self._operations: Final[dict[str, Callable[..., dict[str, Any]]]] = {
            "status": self._status,
            "reboot": self._reboot,
            "detach": self._detach,
            "stop": self._stop,
        }
        self.detached = False
        self.ending = False

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._operations[request.pop("op")](**request)

    def start(self) -> None:
        for machine in self._cluster.machines:
            self._machines[machine.name] = RunningMachine(machine)
        for running in self._machines.values():
            running.wait_until_up()
        for index in range(len(self._cluster.machines)):
            self._connect(index)

    def end(self) -> None:
        for running in self._machines.values():
            running.kill()

    def _connect(self, index: int) -> None:
        machine = self._cluster.machines[index]
        pid = self._machines[machine.name].pid
        if index == 0:
            network.connect_control_plane(pid, machine.routes)
            return
        control_plane = self._machines[self._cluster.machines[0].name]
        network.connect_node(control_plane.pid, pid, index, machine.address, machine.routes)

    def _status(self) -> dict[str, Any]:
        return {"pids": {name: running.pid for name, running in self._machines.items()}}

    def _reboot(self, machine: str) -> dict[str, Any]:
        names = [known.name for known in self._cluster.machines]
        if machine not in names[1:]:
            raise HarnessError(f"{machine} is none of the nodes {', '.join(names[1:])}")
        old = self._machines[machine]
        network.disconnect_node(self._machines[names[0]].pid, names.index(machine))
        old.kill()
        if old.spec.cgroup:
            cgroups.remove(old.spec.cgroup)
        new = self._machines[machine] = RunningMachine(old.spec)
        new.wait_until_up()
        self._connect(names.index(machine))
        return self._status()

    def _detach(self) -> dict[str, Any]:
        self.detached = True
        return {}

    def _stop(self) -> dict[str, Any]:
        self.ending = True
        return {}


def _serve(supervisor: Supervisor, cluster: spec.ClusterSpec, wake: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        selector.register(wake, selectors.EVENT_READ, None)
        server = rpc.Server(cluster.control_socket, supervisor.handle, selector)
        while not supervisor.ending:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    selector.unregister(sys.stdin)
                    supervisor.ending = not supervisor.detached
                elif key.fileobj == wake:
                    supervisor.ending = True
                else:
                    key.data()
        server.close()


def _wake_on_signals() -> int:
    """SIGTERM and SIGINT become readable on the file descriptor; handlers do nothing else."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return read


def main() -> int:
    cluster = spec.read_cluster(Path(sys.argv[1]))
    state = Path(cluster.state_dir)
    wake = _wake_on_signals()
    record = registry.add(cluster.name, state, cluster.cgroup, keep_state=cluster.keep_state)
    supervisor = Supervisor(cluster)
    try:
        supervisor.start()
        _serve(supervisor, cluster, wake)
    finally:
        supervisor.end()
        busy = registry.discard(*record)
        if busy:
            print(f"could not remove: {', '.join(busy)}", file=sys.stderr)
    return 1 if busy else 0


if __name__ == "__main__":
    sys.exit(main())
