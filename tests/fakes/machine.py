"""A machine with simulated Tesla T4s, and processes that use it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import pynvml

from tests.fakes.fakegpu import LIBDIR, FakeDriver, build
from tests.fakes.process import Buffer, Out, Process

SENTINEL: Final = 0x5EED
"""What an output holds before a call that must not touch it."""


class Cuda(Process):
    """A process with libcuda."""

    def ready(self, device: int = 0) -> Self:
        """Initialises, and makes the device's primary context current."""
        assert self.call("cuInit", 0) == (0,)
        result, context = self.call("cuDevicePrimaryCtxRetain", Out(), device)
        assert result == 0
        assert self.call("cuCtxSetCurrent", context) == (0,)
        return self

    def alloc(self, size: int) -> tuple[int, ...]:
        """Result and address of cuMemAlloc."""
        return self.call("cuMemAlloc_v2", Out(SENTINEL), size)

    def info(self) -> tuple[int, ...]:
        """Result, free and total bytes of cuMemGetInfo."""
        return self.call("cuMemGetInfo_v2", Out(), Out())


class Nvml(Process):
    """A process with libnvidia-ml."""

    def handle(self, index: int) -> int:
        """The handle of a card, by its index."""
        result, handle = self.call("nvmlDeviceGetHandleByIndex_v2", index, Out())
        assert result == 0
        return handle

    def processes(self, index: int) -> dict[int, int]:
        """Bytes by PID, as the library lists them for a card."""
        entry = pynvml.c_nvmlProcessInfo_v2_t
        result, (count, raw) = self.fetch(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            self.handle(index),
            Buffer((8).to_bytes(4, "little")),
            Buffer(bytes(8 * ctypes.sizeof(entry))),
        )
        assert result == 0
        found = (entry * 8).from_buffer_copy(raw)[: int.from_bytes(count, "little")]
        return {item.pid: item.usedGpuMemory for item in found}


class Machine:
    """A machine with its driver, and the processes that a test starts on it."""

    def __init__(self, build_dir: Path, state_dir: Path, processes: ExitStack) -> None:
        self.build = build_dir
        self.driver = FakeDriver(state_dir)
        self.driver.write_config()
        self.libraries = build_dir / "rootfs" / LIBDIR
        self.environment = self.driver.environment(build_dir)
        self._processes = processes
        self.nvml = processes.enter_context(
            Nvml(self.libraries / "libnvidia-ml.so.1", self.environment)
        )

    def cuda(self, **environment: str) -> Cuda:
        """Starts a process with libcuda, not yet initialised."""
        library = self.libraries / "libcuda.so.1"
        return self._processes.enter_context(Cuda(library, self.environment | environment))

    def run(self, program: str, *arguments: str) -> tuple[int, str]:
        """Runs one of the build's programs; returns its status and output."""
        done = subprocess.run(
            [self.build / "bin" / program, *arguments],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def pynvml(self, code: str) -> object:
        """Runs code with pynvml on the simulated library; returns what it prints as JSON."""
        library = str(self.libraries / "libnvidia-ml.so.1")
        preload = f"import ctypes, json; ctypes.CDLL({library!r})\nfrom pynvml import *\n"
        done = subprocess.run(
            [sys.executable, "-c", preload + code],
            env={**os.environ, "FAKEGPU_DIR": str(self.driver.state_dir)},
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(done.stdout)


@contextmanager
def machine(state_dir: Path) -> Iterator[Machine]:
    """A machine with two Tesla T4s that nobody uses yet; its processes end with the block."""
    with ExitStack() as processes:
        yield Machine(build(), state_dir, processes)
