"""Where it is measured: on simulated GPUs or on this machine's real one; processes with shares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

from tests.gpu import support as gpu_support
from tests.shim import cores, support
from tests.shim.load import Load

GPUS: Final = 8
PRIORITY: Final = 10
MEMORY: Final = 1 << 30
"""Bytes of a share for each load in it: a context takes half of that (518 MiB on an H200)."""
CONTEXT_MIB: Final = 700
"""What a context takes of a simulated GPU: more than of any real one that was seen."""
CARD_MIB: Final = 143_771
OUT_OF_MEMORY: Final = 2


class Place(Protocol):
    """One kind of GPU."""

    name: str
    gpus: int
    """How many can be measured at once."""
    noisy: bool
    """Whether the processor has much to do with how fast short kernels follow each other."""

    def alone(self, gpu: int) -> Load:
        """Start a load without a share."""
        ...

    def tenants(
        self, gpu: int, percent: int, slot: cores.Slot, period: int, count: int = 1
    ) -> list[Load]:
        """Start so many loads in one share."""
        ...


def started(load: Load, gpu: int, memory: int) -> Load:
    """Let a load make its context; `memory`: bytes of its share, 0 where it has none."""
    code = load.ask("start", gpu)
    if code:
        why = f"bench-cores: a load got no context: CUDA error {code}"
        if memory:
            why += f"; its share has {memory >> 20} MiB for all of its loads"
        if memory and code == OUT_OF_MEMORY:
            why += ", too little for their contexts"
        raise SystemExit(why)
    return load


def raised() -> None:
    """Let this process and its children run before others, so that those spoil less."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))


class Simulated:
    """Simulated GPUs that execute in time, several of them side by side."""

    gpus = GPUS
    noisy = True

    def __init__(self, folder: Path, stack: ExitStack, context_mib: int = CONTEXT_MIB) -> None:
        support.build("load")
        self.name = "simulated GPUs"
        self._folder, self._stack, self._made = folder, stack, 0
        more = f"executes = yes\nmemory_mib = {CARD_MIB}\ncontext_mib"
        text = support.gpus_conf(GPUS, context_mib=context_mib).replace("context_mib", more)
        self.state = support.state_folder(folder / "state", text)

    def _start(self, command: list[str], gpu: int, env: dict[str, str], memory: int = 0) -> Load:
        load = self._stack.enter_context(Load(command, {**os.environ, **env}))
        return started(load, gpu, memory)

    def alone(self, gpu: int) -> Load:
        env = {"FAKEGPU_DIR": str(self.state), "LD_LIBRARY_PATH": str(support.LIBDIR)}
        return self._start([str(support.PROGRAMS / "load")], gpu, env)

    def tenants(
        self, gpu: int, percent: int, slot: cores.Slot, period: int, count: int = 1
    ) -> list[Load]:
        self._made += 1
        container = support.Container(self._folder / str(self._made), self.state)
        memory, uuid = count * MEMORY, support.uuid(gpu)
        cores.share_of(container, percent, [slot], period=period, gpu=uuid, memory=memory)
        command = container.command("/run/bin/load")
        return [self._start(command, gpu, {}, memory) for _ in range(count)]


class Real:
    """The first GPU of this machine."""

    gpus = 1
    noisy = False

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        support.build("load")
        self._folder, self._stack, self._made = folder, stack, 0
        names = gpu_support.smi("--query-gpu=name,driver_version", "--format=csv,noheader")
        self.name = names.splitlines()[0].replace(", ", " with driver ")
        self.program = support.PROGRAMS / "load"
        self.unit = 0.0
        self.unit = self.alone(0).unit(0)

    def _start(self, command: list[str], memory: int = 0) -> Load:
        load = started(self._stack.enter_context(Load(command)), 0, memory)
        if self.unit:
            load.unit(self.unit)
        return load

    def alone(self, gpu: int) -> Load:
        assert gpu == 0
        return self._start([str(self.program)])

    def share(self, percent: int, slot: cores.Slot, period: int, memory: int) -> gpu_support.Share:
        """Make a share of the GPU's time, for whatever program."""
        self._made += 1
        parent = self._folder / str(self._made)
        parent.mkdir()
        share = gpu_support.Share.make(support.SHIM, parent, memory)
        limits = share.folder / "limits"
        gpu = next(line for line in limits.read_text().splitlines() if line.startswith("uuid"))
        text = cores.limits_text(share.folder.name, gpu.split()[1], memory, percent)
        limits.chmod(0o644)
        limits.write_text(text)
        limits.chmod(0o444)
        cores.add_schedule(share.folder, [slot], period)
        return share

    def tenants(
        self, gpu: int, percent: int, slot: cores.Slot, period: int, count: int = 1
    ) -> list[Load]:
        assert gpu == 0
        memory = count * MEMORY
        command = self.share(percent, slot, period, memory).command(str(self.program))
        return [self._start(command, memory) for _ in range(count)]


def one_each(place: Place, gpu: int, percents: Sequence[int], period: int) -> list[Load]:
    """Start one load for each share; their slots lie one behind the other."""
    slots = cores.slots_of(*percents, period=period)
    return [
        place.tenants(gpu, percent, slot, period)[0]
        for percent, slot in zip(percents, slots, strict=True)
    ]
