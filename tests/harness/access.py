"""Talking to a cluster that runs, whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness import components, pki, rpc, spec
from tests.harness.errors import ComponentError, HarnessError

DEFAULT_TIMEOUT = 60.0  # seconds
_RPC_TIMEOUT = 30.0  # seconds
_POLL = 0.05  # seconds
_NODE_NAMESPACES = ("--mount", "--net", "--ipc", "--uts", "--pid")
_NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Access:
    """The programs and machines of a cluster, found by its state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.spec = spec.read_cluster(spec.cluster_file(state_dir))
        self._token: str | None = None

    @property
    def kubeconfig(self) -> Path:
        return self.state_dir / "pki" / f"{pki.ADMIN}.kubeconfig"

    @property
    def nodes(self) -> list[str]:
        return [machine.name for machine in self.spec.machines[1:]]

    def node(self, name: str | None) -> str:
        """The name itself, or the first node's."""
        return name or self.nodes[0]

    def machine(self, name: str) -> spec.Machine:
        for machine in self.spec.machines:
            if machine.name == name:
                return machine
        raise HarnessError(f"no machine {name!r} in cluster {self.spec.name}")

    # Through the supervisor and the machines' inits

    def supervisor(self, *, timeout: float = _RPC_TIMEOUT, **request: Any) -> dict[str, Any]:
        try:
            return rpc.call(self.spec.control_socket, timeout, **request)
        except OSError as error:
            raise HarnessError(f"cluster {self.spec.name} does not run: {error}") from error

    def ask(
        self, machine: str, /, *, timeout: float = _RPC_TIMEOUT, **request: Any
    ) -> dict[str, Any]:
        try:
            return rpc.call(self.machine(machine).socket, timeout, **request)
        except OSError as error:
            raise HarnessError(f"machine {machine} does not answer: {error}") from error

    def pid(self, machine: str) -> int:
        """PID on the host of the machine's init."""
        pids: dict[str, int] = self.supervisor(op="status")["pids"]
        if machine not in pids:
            raise HarnessError(f"no machine {machine!r} in cluster {self.spec.name}")
        return pids[machine]

    def api_get(self, path: str) -> dict[str, Any] | None:
        """GET from the API server as administrator; None unless it answers 200."""
        answer = self._api(path)
        if answer["status"] != 200:
            return None
        found: dict[str, Any] = json.loads(answer["text"])
        return found

    def api_status(self, path: str) -> int | None:
        """HTTP status of a GET from the API server; None when it does not answer."""
        status: int | None = self._api(path)["status"]
        return status

    def _api(self, path: str) -> dict[str, Any]:
        if self._token is None:
            users = json.loads(self.kubeconfig.read_text())["users"]
            self._token = users[0]["user"]["token"]
        url = f"{components.API_URL}{path}"
        return self.ask(spec.CONTROL_PLANE, op="get", url=url, token=self._token)

    def wait(
        self, machine: str, component: str, ready: Callable[[], bool], deadline: float
    ) -> None:
        """Poll ready; the error, early when a program ended, names the component and its log."""
        while not ready():
            self.check_programs()
            if time.monotonic() > deadline:
                raise self.component_error(machine, component, "was not ready in time")
            time.sleep(_POLL)

    def check_programs(self) -> None:
        """Raise ComponentError when a program of any machine ended by itself."""
        for machine in self.spec.machines:
            ended = self.ask(machine.name, op="status")["ended"]
            for component, code in sorted(ended.items()):
                what = f"ended with {'signal' if code < 0 else 'exit status'} {abs(code)}"
                raise self.component_error(machine.name, component, what)

    def component_error(self, machine: str, component: str, what: str) -> ComponentError:
        log = Path(self.machine(machine).programs[component].log)
        return ComponentError(f"{component} of {machine}", what, log)

    # Programs

    def kubectl_argv(self, *args: str) -> list[str]:
        """What to run on the host to reach kubectl inside the cluster's network."""
        config = f"--kubeconfig={self.kubeconfig}"
        return self.network_argv(self.spec.kubectl, config, *args)

    def network_argv(self, *argv: str) -> list[str]:
        """What to run on the host for a program of the host inside the cluster's network."""
        pid = self.pid(spec.CONTROL_PLANE)
        return ["nsenter", f"--net=/proc/{pid}/ns/net", *argv]

    def node_argv(self, node: str | None, argv: Sequence[str]) -> list[str]:
        pid = self.pid(self.node(node))
        return ["nsenter", f"--target={pid}", *_NODE_NAMESPACES, "--", *argv]

    @staticmethod
    def node_environment(more: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": _NODE_PATH, "HOME": "/root", "LANG": "C.UTF-8"} | dict(more or {})


def run(
    argv: Sequence[str],
    *,
    input: str | None = None,  # noqa: A002 as subprocess.run has it
    check: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """subprocess.run for programs behind nsenter: a timeout ends the program too, not only that."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    result = subprocess.CompletedProcess(argv, process.returncode, out, err)
    if check and result.returncode:
        raise CommandError(result)
    return result


class CommandError(HarnessError, subprocess.CalledProcessError):
    """A CalledProcessError that shows what the program said."""

    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        subprocess.CalledProcessError.__init__(
            self, result.returncode, result.args, result.stdout, result.stderr
        )

    def __str__(self) -> str:
        said = f"{self.stderr}{self.stdout}".strip()
        return f"{subprocess.CalledProcessError.__str__(self)}\n{said}"
