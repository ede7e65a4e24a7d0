"""A node with the simulated driver, for the tests of its MPS daemons."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from apportion.model import GpuUuid
from apportion.mps import places
from apportion.mps.control import Control, Driver
from apportion.mps.daemon import Daemon, Kind

from tests.fakes.fakegpu import DEFAULT_GPUS, build

UUID, OTHER = (GpuUuid(gpu.uuid) for gpu in DEFAULT_GPUS[:2])
LIBDIR = "/usr/lib/x86_64-linux-gnu"
WAIT_S = 60.0
CLIENT = """
import socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(f"{sys.argv[1]}/control")
line.sendall(b"client\\n")
print(line.recv(9), flush=True)
for word in sys.stdin:
    line.sendall(word.encode())
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Node:
    """A driver root, and the folders of daemons, with short paths."""

    def __init__(self, folder: Path) -> None:
        self.root = build() / "rootfs"
        self.folder = folder
        self.told: list[tuple[Kind, str]] = []
        self.place = places.place(folder, "apportion.gpu", UUID)
        self.control = Control(self.place, self.driver())
        self.second = Control(places.place(folder, "apportion.gpu", OTHER), self.driver())

    def driver(self) -> Driver:
        return Driver(self.root, self.root, LIBDIR, leave=False)

    def daemon(self, clock: Callable[[], float] = time.monotonic) -> Daemon:
        return Daemon(
            self.place,
            self.control,
            lambda kind, text: self.told.append((kind, text)),
            clock=clock,
        )

    def end(self) -> None:
        """End the daemons that run."""
        for control in (self.control, self.second):
            if control.find() is not None:
                control.quit()

    def client(self) -> subprocess.Popen[str]:
        """Start something that holds a connection as a program on the GPU does."""
        child = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(self.place.clients)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout
        assert "ok" in child.stdout.readline()
        return child
