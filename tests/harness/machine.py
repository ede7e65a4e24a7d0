"""The init of a machine: PID 1 of its namespaces. Starts and stops programs when told to.

    python -m tests.harness.machine <machine folder>

Its standard input is a pipe from the supervisor. When that closes, init ends, and the kernel ends
everything in the PID namespace with it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import selectors
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.harness import filesystem, rpc, spec
from tests.harness.errors import HarnessError

_REAP_INTERVAL = 0.1  # seconds
_GET_TIMEOUT = 5.0  # seconds


class Init:
    """Runs the programs of one machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, int] = {}  # component -> PID here
        self._ended: dict[str, int] = {}  # component -> exit code, negative for a signal
        self._operations: Final[dict[str, Callable[..., dict[str, Any]]]] = {
            "start": self._start,
            "stop": self._stop,
            "status": self._status,
            "get": self._get,
            "connect": self._connect,
        }

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = request.pop("op")
        self.reap()
        return self._operations[operation](**request)

    def reap(self) -> None:
        """Collect every child that ended: our programs, and orphans that were handed to PID 1."""
        names = {pid: name for name, pid in self._running.items()}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in names:
                    self._ended[names[pid]] = os.waitstatus_to_exitcode(status)
                    del self._running[names[pid]]

    def _start(self, component: str) -> dict[str, Any]:
        if component in self._running:
            raise HarnessError(f"{component} runs already")
        # Read anew: the owner may have changed a flag since.
        program = spec.read_machine(spec.machine_file(self._folder)).programs[component]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, program.log, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._ended.pop(component, None)
        self._running[component] = os.posix_spawn(
            program.argv[0],
            program.argv,
            program.env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGPIPE),
        )
        return {"pid": self._running[component]}

    def _stop(self, component: str, grace: float) -> dict[str, Any]:
        if component not in self._running:
            raise HarnessError(f"{component} does not run")
        pid = self._running[component]
        deadline = time.monotonic() + grace
        number = signal.SIGTERM if grace > 0 else signal.SIGKILL
        os.kill(pid, number)
        while component in self._running:
            time.sleep(0.01)
            self.reap()
            if number == signal.SIGTERM and time.monotonic() > deadline:
                number = signal.SIGKILL
                os.kill(pid, number)
        return {"exit": self._ended.pop(component)}  # asked for: no reason to worry anybody

    def _status(self) -> dict[str, Any]:
        return {"running": self._running, "ended": self._ended}

    def _get(self, url: str, token: str | None = None) -> dict[str, Any]:
        """HTTP status (None: no answer) and text of url as seen from inside the machine."""
        context = ssl.create_default_context()
        context.check_hostname = False  # asked is whether it answers, not who
        context.verify_mode = ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 the harness's own URLs
        try:
            with self._opener(context).open(request, timeout=_GET_TIMEOUT) as answer:
                return {"status": answer.status, "text": answer.read().decode()}
        except urllib.error.HTTPError as error:
            with error:
                return {"status": error.code, "text": ""}
        except (OSError, http.client.HTTPException):
            return {"status": None, "text": ""}

    def _connect(self, path: str) -> dict[str, Any]:
        """Whether somebody listens at a Unix socket of the machine."""
        with socket.socket(socket.AF_UNIX) as link:
            return {"connected": link.connect_ex(path) == 0}

    @staticmethod
    def _opener(context: ssl.SSLContext) -> urllib.request.OpenerDirector:
        # No proxy of the environment is meant for, or reached from, this network.
        handlers = urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
        return urllib.request.build_opener(*handlers)


def _prepare(machine: spec.Machine) -> None:
    """Make the namespaces what the machine's programs expect."""
    socket.sethostname(machine.name)
    filesystem.set_up(machine)
    for name, value in sorted(machine.sysctls.items()):
        path = Path("/proc/sys") / name
        if path.exists():
            path.write_text(value)


def main() -> None:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prepare(spec.read_machine(spec.machine_file(folder)))
    init = Init(folder)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        server = rpc.Server(folder / "socket", init.handle, selector)
        while True:
            for key, _ in selector.select(_REAP_INTERVAL):
                if key.fileobj is sys.stdin:
                    server.close()
                    return
                key.data()
            init.reap()


if __name__ == "__main__":
    main()
