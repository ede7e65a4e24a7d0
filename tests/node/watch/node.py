"""A node with simulated GPUs, containers with shares, pods' cgroups, and the guard over it all."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apportion.config import Config
from apportion.enforce import registry
from apportion.inventory.nvml import Nvml
from apportion.ledger.schema import Record, State
from apportion.model import (
    Capacity,
    ClaimRef,
    ClaimUid,
    DeviceName,
    GpuUuid,
    Share,
    ShareKey,
)
from apportion.watch.guard import Guard, Policy
from apportion.watch.processes import Processes
from apportion.watch.report import Report
from apportion.watch.verdict import Margin

from tests.harness import cgroups
from tests.shim import support
from tests.shim.support import MIB

GPU = GpuUuid(support.uuid())
CUDAMEM = support.FAKES / "bin/cudamem"
STATIC = support.FAKES / "bin/cudamem-static"
REAL = ("--library", f"{support.DRIVER_DIR}/libcuda.so.1")
PODS = "apportion-guard-test/kubepods"


@dataclass
class Heard:
    """What was told and counted."""

    events: list[tuple[str, str]] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)

    def on_node(self, reason: str, _message: str, *, warning: bool = True) -> None:
        self.events.append(("node" if warning else "node, by the way", reason))

    def on_pods(self, ref: ClaimRef, reason: str, _message: str, *, warning: bool = True) -> None:
        assert warning
        self.events.append((ref.name, reason))

    def guard_found(self, _device: str, _uuid: str, ref: ClaimRef) -> None:
        self.counts.append(f"found {ref.name}")

    def guard_stranger_killed(self, _uuid: str) -> None:
        self.counts.append("killed a stranger")

    def guard_killed(self, _device: str, _uuid: str, ref: ClaimRef) -> None:
        self.counts.append(f"killed {ref.name}")


class Node:
    """A node; `scan` is one reading of its guard."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.state = support.state_folder(folder / "state", support.gpus_conf())
        self.pods: dict[str, frozenset[ShareKey]] = {}
        self.heard = Heard()
        self.shares: dict[str, support.Share] = {}
        self._stack = stack
        # <shares_dir>/<driver_name>/<key>, as support.Container lays them out.
        self.config = Config(
            driver_name="shares", shares_dir=folder, driver_root_mount=support.FAKES / "rootfs"
        )
        # Another process stands for the plugin: the tests' programs are children of this one.
        plugin = subprocess.Popen(["sleep", "infinity"])
        stack.callback(end, plugin)
        self.processes = Processes(self.config.proc, self.config.driver_shares_dir, plugin.pid)
        self.nvml = stack.enter_context(Nvml(self.config.driver_root_mount))
        self.guard = self.make_guard()

    def make_guard(
        self, *, kill: bool = True, kill_strangers: bool = False, recorded: int = 4 * MIB
    ) -> Guard:
        return Guard(
            policy=Policy(
                kill, kill_strangers, Margin(slack=2 * MIB, overhead=4 * MIB, recorded=recorded)
            ),
            cards=lambda: [GPU],
            listing=self.nvml.processes,
            enforcer=registry.make(self.config),
            processes=self.processes,
            reserved=lambda pod: self.pods.get(pod, frozenset()),
            report=Report(self.records, self.heard, self.heard),
        )

    def records(self) -> list[Record]:
        return [
            Record(
                "boot",
                State.COMPLETED,
                ClaimRef(ClaimUid(name), "default", name),
                (f"pod-of-{name}",),
                "build",
                (
                    Share(
                        key=ShareKey(share.key),
                        request="gpu",
                        pool="node",
                        device=DeviceName("gpu-0"),
                        share_id=None,
                        uuid=GPU,
                        capacity=Capacity(10, 1),
                    ),
                ),
            )
            for name, share in sorted(self.shares.items())
        ]

    def container(self, *names: str, memory: int = 64 * MIB) -> support.Container:
        """A container with a share of each of these claims; one that is there already is shared."""
        made = support.Container(self.folder, self.state)
        for name in names:
            if name in self.shares:
                made.shares.append(self.shares[name])
            else:
                self.shares[name] = made.share(memory, key=f"{name}-0")
        return made

    def start(self, command: list[str], pod: str = "") -> subprocess.Popen[str]:
        """Run a program that takes memory, in a pod's cgroup if a UID is given."""
        if pod:
            command = [*in_cgroup(f"{PODS}/pod{pod}/container"), *command]
        return start(command, self.state, self._stack)

    def scan(self, times: int = 1) -> None:
        for _ in range(times):
            self.guard.scan()


def start(command: list[str], state: Path, stack: ExitStack) -> subprocess.Popen[str]:
    """Run a program on a simulated driver until it says what came of its first allocation."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"FAKEGPU_DIR": str(state)}
    )
    stack.callback(end, process)
    assert process.stdout is not None
    while "cuMemAlloc" not in (line := process.stdout.readline()):
        assert line, f"{command} ended with {process.wait(10)}"
    return process


def taking(mib: int, *options: str, program: Path = CUDAMEM) -> list[str]:
    """Return the command of a program that takes so much and keeps it."""
    return [str(program), *options, "alloc", f"{mib}MiB", "--hold", "600"]


def elsewhere(mib: int, state: Path) -> list[str]:
    """Return the command of a program that takes so much in a root of its own, without shares."""
    script = (
        "set -e; mount -t tmpfs none /run; mkdir -p /run/proc /run/run/fakegpu; "
        'mount --bind "$0" /run/run/fakegpu; mount -t proc none /run/proc; '
        'cp "$1" /run/; cd /run; export FAKEGPU_DIR=/run/fakegpu; '
        'exec chroot . "/${1##*/}" alloc "$2MiB" --hold 600'
    )
    entry = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return [*entry, str(state), str(STATIC), str(mib)]


def in_cgroup(path: str) -> list[str]:
    """Return a command prefix that runs a program in a cgroup, in all hierarchies."""
    cgroups.create(path)
    files = " ".join(str(one.root / path / "cgroup.procs") for one in cgroups.hierarchies())
    return ["sh", "-c", f'for f in {files}; do echo $$ >$f; done; exec "$@"', "sh"]


def ended(process: subprocess.Popen[str]) -> bool:
    """Return whether it was ended by SIGKILL; False: it lives."""
    try:
        return process.wait(5) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        return False


def lives(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    """A node whose processes end with the block."""
    with ExitStack() as stack:
        stack.callback(cgroups.remove, PODS.split("/", maxsplit=1)[0])
        yield Node(folder, stack)
