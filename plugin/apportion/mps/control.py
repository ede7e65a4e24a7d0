"""Speaking with the control daemon of one GPU, by the driver's own program for it.

Source: the manual of nvidia-cuda-mps-control; what it does was recorded from driver 580.159.04
(docs/mps.md).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from apportion import files
from apportion.errors import EnforcementError
from apportion.mps import launch, places
from apportion.mps.places import Place

PROGRAM = "nvidia-cuda-mps-control"

_TIME_LIMIT_S = 10.0
_MAX_SAID = 4096
_GPU, _PIPE = "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Driver:
    """Where the driver is.

    Attributes:
        root: its root on the node.
        mount: where this process sees that.
        libdir: folder of its libraries below its root.
        leave: whether the daemon leaves the plugin's container.
    """

    root: Path
    mount: Path
    libdir: str
    leave: bool = True


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the node: its PID, and when it started, in clock ticks after boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Running:
    """A control daemon that runs: its PID, and what it was started for and with."""

    pid: int
    gpu: str
    pipe: str


class Control:
    """One daemon's door.

    Args:
        place: its folders.
        driver: where its program is.
        proc: procfs of the node.
        environ: what its programs get besides MPS's own variables.
        alien: whether by its /proc/<pid>/cgroup a process is no daemon of ours, whatever it calls
            itself.
    """

    def __init__(
        self,
        place: Place,
        driver: Driver,
        proc: Path = Path("/proc"),
        environ: Mapping[str, str] | None = None,
        alien: Callable[[str], bool] = lambda _cgroup: False,
    ) -> None:
        self._place, self._driver, self._proc, self._alien = place, driver, proc, alien
        self._environ = dict(environ or {})

    def start(self) -> None:
        """Start the daemon in the background.

        Raises:
            EnforcementError: it could not be started; the message has what it said.
        """
        # Without that, programs of a second user would wait until all of the first have ended.
        ended = self._launched(["-d", "-multiuser-server"])
        if ended.returncode:
            raise self._failed("start", ended)

    def ask(self, command: str) -> str:
        """Return what the daemon answers. Raises EnforcementError: it does not, or an error."""
        try:
            path = launch.find(self._driver.mount, PROGRAM)
        except launch.LaunchError as error:
            raise EnforcementError(str(error)) from error
        # It needs the C library alone, so it runs in here as well as on the node.
        ended = self._run([str(path)], command + "\n", self._variables())
        if ended.returncode:
            raise self._failed(command, ended)
        return ended.stdout

    def status(self, server: Process) -> str:
        """Return a server's state: INITIALIZING, ACTIVE or FAULT. Raises EnforcementError."""
        return self.ask(f"get_server_status {server.pid}").strip()

    def open_door(self) -> None:
        """Let the programs in containers find the daemon that runs now. Raises StorageError.

        By a link: they see a folder of its own, where the daemon's other socket, by which its
        settings are changed, is not.
        """
        door = self._place.pipe / places.DOOR
        link = self._place.clients / places.DOOR
        try:
            if link.exists() and link.samefile(door):
                return
            new = link.with_name(f".{places.DOOR}")
            new.unlink(missing_ok=True)
            new.hardlink_to(door)
            new.rename(link)
        except OSError as error:
            raise files.storage_error("link", link, error) from error

    def servers(self) -> tuple[int, ...]:
        """Return the PIDs of its servers. Raises EnforcementError."""
        said = self.ask("get_server_list").split()
        return tuple(int(word) for word in said if word.isdecimal())

    def quit(self) -> None:
        """End the daemon, and its server as soon as no program uses it. Raises EnforcementError."""
        self.ask("quit")

    def find(self) -> Process | None:
        """Return the daemon that runs, whoever started it; None where there is none."""
        for found in running(self._proc, self._alien):
            if found.pipe == str(self._place.pipe):
                return self.process(found.pid)
        return None

    def children(self, daemon: Process) -> tuple[Process, ...]:
        """Return the servers of a daemon, by the kernel's word."""
        path = self._proc / str(daemon.pid) / "task" / str(daemon.pid) / "children"
        found = (self.process(int(pid)) for pid in _read(path).split())
        return tuple(process for process in found if process is not None)

    def process(self, pid: int) -> Process | None:
        """Return the process of this PID, None where it has ended."""
        fields = _read(self._proc / str(pid) / "stat").rpartition(")")[2].split()
        with contextlib.suppress(IndexError, ValueError):
            return None if fields[0] in "ZX" else Process(pid, int(fields[19]))
        return None

    def _variables(self) -> dict[str, str]:
        return self._environ | {
            _GPU: self._place.uuid,
            _PIPE: str(self._place.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self._place.log),
        }

    def _launched(self, args: list[str]) -> subprocess.CompletedProcess[str]:
        order = {
            "root": str(self._driver.root),
            "root_mount": str(self._driver.mount),
            "libdir": self._driver.libdir,
            "leave": self._driver.leave,
            "folder": str(self._place.folder),
            "program": PROGRAM,
            "args": args,
            "env": self._variables(),
        }
        return self._run([sys.executable, "-m", "apportion.mps.launch", json.dumps(order)], "")

    def _run(
        self, command: list[str], said: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        # Not pipes: what goes on in the background would keep them open.
        fd = os.memfd_create("said")
        try:
            ended = subprocess.run(
                command, input=said, stdout=fd, stderr=fd, env=environ, text=True,
                timeout=_TIME_LIMIT_S, check=False,
            )  # fmt: skip
            text = os.pread(fd, _MAX_SAID, 0).decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            raise EnforcementError(
                f"{PROGRAM} of GPU {self._place.uuid} has not answered for {_TIME_LIMIT_S:g} s; "
                f"see {self._place.log} on the node"
            ) from error
        except OSError as error:
            raise EnforcementError(f"{command[0]} cannot be run: {error.strerror}") from error
        finally:
            os.close(fd)
        return subprocess.CompletedProcess(command, ended.returncode, text, "")

    def _failed(self, what: str, ended: subprocess.CompletedProcess[str]) -> EnforcementError:
        said = " ".join(ended.stdout.split()) or f"exit status {ended.returncode}"
        return EnforcementError(
            f"MPS of GPU {self._place.uuid}: {what} failed: {said}; see {self._place.log} on the "
            "node"
        )


def running(proc: Path, alien: Callable[[str], bool]) -> Iterator[Running]:
    """Yield the control daemons of this node, by PID; arguments as Control has them."""
    for pid in sorted(os.listdir(proc)):  # noqa: PTH208 - names are all that is wanted
        words = _read(proc / pid / "cmdline").split("\0") if pid.isdecimal() else [""]
        if Path(words[0]).name != PROGRAM or "-d" not in words:
            continue
        pairs = (line.partition("=") for line in _read(proc / pid / "environ").split("\0"))
        variables = {name: value for name, _, value in pairs}
        # Name and variables are any process's own to choose, and the guard lets the daemon be.
        if not alien(_read(proc / pid / "cgroup")):
            yield Running(int(pid), variables.get(_GPU, ""), variables.get(_PIPE, ""))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
