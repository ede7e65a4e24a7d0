"""What a running cluster has on this machine, and what of that is still there later."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.harness import cgroups, registry
from tests.harness.access import Access

_NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")


@dataclass(frozen=True)
class Traces:
    """Taken while the cluster runs, by what the kernel calls things: other clusters don't count."""

    state_dir: Path
    cgroup: str
    processes: frozenset[tuple[int, int]]  # PID, start time
    namespaces: frozenset[str]  # such as "net:[4026532281]"
    mounts: str  # the host's mount table before the cluster was started
    taken: float  # in clock ticks since boot

    @classmethod
    def of(cls, access: Access, mounts_before: str) -> Traces:
        pids = access.supervisor(op="status")["pids"].values()
        own = frozenset(name for pid in pids for name in _namespaces(pid))
        processes = {pid for pid in _all_pids() if own & set(_namespaces(pid))}
        processes |= {
            record.pid
            for _, record in registry.records()
            if record.state_dir == str(access.state_dir)
        }
        return cls(
            state_dir=access.state_dir,
            cgroup=access.spec.cgroup,
            processes=frozenset((pid, registry.start_time(pid) or 0) for pid in processes),
            namespaces=own,
            mounts=mounts_before,
            taken=time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"),
        )

    def left(self) -> list[str]:
        """One line for each thing that is still there, sorted; empty when the cluster is gone."""
        found = [
            f"process {pid}: {_command(pid)}"
            for pid, started in self.processes
            if registry.start_time(pid) == started
        ]
        found += [
            f"namespace {name} of process {pid}"
            for pid in _all_pids()
            for name in _namespaces(pid)
            # The kernel gives numbers again: a later process may be in a later namespace.
            if name in self.namespaces and (registry.start_time(pid) or 0) <= self.taken
        ]
        found += [
            f"cgroup {hierarchy.root / self.cgroup}"
            for hierarchy in cgroups.hierarchies()
            if (hierarchy.root / self.cgroup).exists()
        ]
        if self.state_dir.exists():
            found.append(f"folder {self.state_dir}")
        new_mounts = set(host_mounts().splitlines()) - set(self.mounts.splitlines())
        found += [f"mount {line}" for line in new_mounts]
        found += [
            f"record {path}"
            for path, record in registry.records()
            if record.state_dir == str(self.state_dir)
        ]
        return sorted(found)

    def left_after(self, seconds: float) -> list[str]:
        """Wait up to this long for everything to be gone; gives what is still there then."""
        deadline = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found


def host_mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def _all_pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _namespaces(pid: int) -> list[str]:
    """The process's namespaces that are not this process's own."""
    found = []
    for kind in _NAMESPACES:
        try:
            name = Path(f"/proc/{pid}/ns/{kind}").readlink()
        except OSError:  # it ended, or is a zombie
            continue
        if name != Path(f"/proc/self/ns/{kind}").readlink():
            found.append(str(name))
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "?"
