"""The load program (programs/load.c): kernels of a given length, and how far they have come."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

WAIT_S = 60


@dataclass(frozen=True)
class Step:
    """So many kernels of a context were seen to be done, at a time of CLOCK_MONOTONIC in ns."""

    context: int
    count: int
    at: int


class Load:
    """A process that loads a GPU as it is told; it ends with the block."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def start(self, *devices: int) -> Self:
        """Make the devices' primary contexts."""
        assert [self.ask("start", device) for device in devices] == [0] * len(devices)
        return self

    def send(self, *words: str | float) -> None:
        """Give a command without waiting for the answer."""
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """Return the next line of an answer."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the load ended: {self._process.wait(WAIT_S)}"
        return line.strip()

    def ask(self, *words: str | float) -> int:
        """Give a command whose answer is a number."""
        self.send(*words)
        return int(self.line())

    def unit(self, known: float = 0) -> float:
        """Tell it how long 1000 loops take, or let it measure; return that."""
        self.send("unit", known)
        return float(self.line())

    def begin(self, kernel_ns: int, batch: int, how: str, until: int, threads: int = 1) -> None:
        """Let it work until a time of CLOCK_MONOTONIC in ns; `steps` are the answer."""
        self.send("run", kernel_ns, batch, how, threads, until)

    def steps(self) -> list[Step]:
        """Return how far it came."""
        return [Step(*map(int, line.split())) for line in self._lines()]

    def run(
        self, kernel_ns: int, batch: int, how: str, *, seconds: float, threads: int = 1
    ) -> list[Step]:
        """Let it work for a while; return how far it came."""
        self.begin(kernel_ns, batch, how, time.monotonic_ns() + int(seconds * 1e9), threads)
        return self.steps()

    def latencies(self) -> list[int]:
        """Return each kernel's nanoseconds, after a command `latency`."""
        return [int(line) for line in self._lines()]

    def _lines(self) -> list[str]:
        found = []
        while (line := self.line()) != "end":
            found.append(line)
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL unless it has ended, and wait for the end."""
        self._process.kill()
        self._process.wait(WAIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with suppress(BrokenPipeError):  # what it did not read any more
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
