"""A node of stand-ins, for what the guard does with what it sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apportion.errors import StorageError
from apportion.inventory.nvml import GpuProcess
from apportion.ledger.schema import Record, State
from apportion.model import (
    Allowance,
    Capacity,
    Charge,
    ClaimRef,
    ClaimUid,
    DeviceName,
    GpuUuid,
    Own,
    Share,
    ShareKey,
)
from apportion.watch.guard import Guard, Policy
from apportion.watch.processes import Seen
from apportion.watch.report import Report
from apportion.watch.verdict import Margin

MIB = 1 << 20
GPU, OTHER_GPU = GpuUuid("GPU-1"), GpuUuid("GPU-2")
A, B = ShareKey("uid-a-0"), ShareKey("uid-b-0")


class Node:
    """A node of stand-ins: processes by PID, what NVML lists, what ledgers say, who heard what."""

    def __init__(self, **policy: Any) -> None:
        self.listed: dict[GpuUuid, list[GpuProcess] | Exception] = {GPU: []}
        self.processes: dict[int, Seen] = {}
        self.own: set[int] = set()
        self.servers: set[tuple[int, int]] = set()
        self.blind = ""
        self.stubborn = False
        self.unkillable: set[int] = set()
        self.killed: list[int] = []
        self.limits: Any = {A: (GPU, 100), B: (GPU, 50)}
        self.ledger: dict[ShareKey, tuple[Charge, ...] | Exception] = {}
        self.pods: dict[str, frozenset[ShareKey] | None] = {}
        self.told: list[tuple[str, str, str]] = []
        self.counted: list[tuple[str, str]] = []
        self.now = 0.0
        standard = Policy(
            kill=True, kill_strangers=False, margin=Margin(2 * MIB, 20 * MIB, 40 * MIB)
        )
        standing_in: Any = self
        self.guard = Guard(
            policy=replace(standard, **policy),
            cards=lambda: [GPU],
            listing=self.listing,
            enforcer=standing_in,
            processes=standing_in,
            reserved=lambda pod: self.pods.get(pod, frozenset()),
            report=Report(self.records, self, self),
            servers=lambda: self.servers,
            clock=lambda: self.now,
        )

    def process(
        self, pid: int, mib: int | None, *keys: ShareKey, pod: str | None = None, gpu: GpuUuid = GPU
    ) -> None:
        """A process that holds so much, with these shares mounted."""
        self.processes[pid] = Seen(
            pid=pid,
            start=pid,
            own=Own(1, pid),
            shares=frozenset(keys),
            privileged=False,
            pod=pod,
            name=f"program-{pid}",
        )
        listed = self.listed.setdefault(gpu, [])
        assert isinstance(listed, list)
        listed[:] = [one for one in listed if one.pid != pid]
        listed.append(GpuProcess(pid, None if mib is None else mib * MIB))

    def charged(self, key: ShareKey, *charges: tuple[int, int]) -> None:
        self.ledger[key] = tuple(Charge(Own(1, pid), mib * MIB) for pid, mib in charges)

    def scan(self, times: int = 1) -> list[int]:
        for _ in range(times):
            self.guard.scan()
        return self.killed

    # What the guard asks.

    def listing(self, uuid: GpuUuid) -> tuple[GpuProcess, ...]:
        listed = self.listed.get(uuid, [])
        if isinstance(listed, Exception):
            raise listed
        return tuple(listed)

    def allowances(self) -> tuple[Allowance, ...]:
        if isinstance(self.limits, Exception):
            raise self.limits
        return tuple(
            Allowance(key, uuid, Capacity(10, mib * MIB))
            for key, (uuid, mib) in self.limits.items()
        )

    def charges(self, key: ShareKey) -> tuple[Charge, ...]:
        found = self.ledger.get(key, ())
        if isinstance(found, Exception):
            raise found
        return found

    def blindness(self) -> str:
        return self.blind

    def place(self) -> None:
        return None

    def look(self, pid: int, _place: None, known: dict[ShareKey, int]) -> Seen | None:
        found = self.processes.get(pid)
        if found is None:
            return None
        return replace(found, shares=found.shares.intersection(known))

    def is_own(self, seen: Seen) -> bool:
        return seen.pid in self.own

    def kill(self, seen: Seen) -> bool:
        if seen.pid in self.unkillable:
            raise StorageError("not permitted")
        self.killed.append(seen.pid)
        if not self.stubborn:
            del self.processes[seen.pid]
            for listed in self.listed.values():
                assert isinstance(listed, list)
                listed[:] = [one for one in listed if one.pid != seen.pid]
        return True

    # Who is told.

    def records(self) -> list[Record]:
        return [
            Record(
                "boot",
                State.COMPLETED,
                ClaimRef(ClaimUid(f"uid-{name}"), "default", name),
                (f"pod-of-{name}",),
                "build",
                (Share(key, "r", "n", DeviceName("gpu-0"), None, GPU, Capacity(10, 1)),),
            )
            for name, key in (("a", A), ("b", B))
        ]

    def on_node(self, reason: str, message: str, *, warning: bool = True) -> None:
        self.told.append(("node" if warning else "node, by the way", reason, message))

    def on_pods(self, ref: ClaimRef, reason: str, message: str, *, warning: bool = True) -> None:
        assert warning
        self.told.append((ref.name, reason, message))

    def guard_found(self, device: str, uuid: str, ref: ClaimRef) -> None:
        self.counted.append((f"found {device} {uuid}", ref.name))

    def guard_killed(self, device: str, uuid: str, ref: ClaimRef) -> None:
        self.counted.append((f"killed {device} {uuid}", ref.name))

    def guard_stranger_killed(self, uuid: str) -> None:
        self.counted.append(("killed a stranger", uuid))

    def heard(self) -> list[tuple[str, str]]:
        return [(whom, reason) for whom, reason, _message in self.told]
