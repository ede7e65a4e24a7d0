"""What the guard does with what it sees; on real processes it is tested in tests/node/watch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from apportion.errors import NvmlDeviceError, StateError, StorageError
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
        self.blind = ""
        self.stubborn = False
        self.unkillable: set[int] = set()
        self.killed: list[int] = []
        self.limits = {A: (GPU, 100), B: (GPU, 50)}
        self.ledger: dict[ShareKey, tuple[Charge, ...] | Exception] = {}
        self.pods: dict[str, frozenset[ShareKey]] = {}
        self.told: list[tuple[str, str, str]] = []
        self.counted: list[tuple[str, str]] = []
        self.now = 0.0
        standard = Policy(kill=True, kill_strangers=False, margin=Margin(2 * MIB, 20 * MIB))
        standing_in: Any = self
        self.guard = Guard(
            policy=replace(standard, **policy),
            cards=lambda: [GPU],
            listing=self.listing,
            enforcer=standing_in,
            processes=standing_in,
            reserved=lambda pod: self.pods.get(pod, frozenset()),
            report=Report(self.records, self, self),
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

    def heard(self) -> list[tuple[str, str]]:
        return [(whom, reason) for whom, reason, _message in self.told]


def test_the_second_reading_in_a_row_kills() -> None:
    node = Node()
    node.process(7, 150, A)
    assert node.scan() == []
    assert node.told == []
    assert node.scan() == [7]
    assert node.heard() == [
        ("a", "ShareExceeded"),
        ("node", "ShareExceeded"),
        ("a", "ShareProcessKilled"),
        ("node", "ShareProcessKilled"),
    ]
    assert node.counted == [("found gpu-0 GPU-1", "a"), ("killed gpu-0 GPU-1", "a")]
    said = node.told[-1][2]
    assert all(
        word in said
        for word in ("process 7", "program-7", "default/a", "150MiB", "GPU-1", "100MiB", "past the")
    )


def test_a_reading_within_the_limit_starts_anew() -> None:
    node = Node()
    for mib in (150, 100, 150, 90, 150):
        node.process(7, mib, A)
        assert node.scan() == []


def test_not_the_same_process_twice_but_the_same_share() -> None:
    node = Node()
    node.process(7, 150, A)
    node.scan()
    del node.processes[7]
    node.process(8, 150, A)
    assert node.scan() == [8]


def test_neighbours_are_left_alone() -> None:
    node = Node()
    node.process(6, 50, B)
    node.process(7, 150, A)
    node.process(8, 100)
    assert node.scan(5) == [7]


def test_the_honest_of_the_same_share_are_left_alone() -> None:
    node = Node()
    node.process(6, 90, A)
    node.process(7, 80, A)
    node.charged(A, (6, 90))
    assert node.scan(5) == [7]


def test_observing_kills_nobody_and_says_it_once() -> None:
    node = Node(kill=False)
    node.process(7, 150, A)
    assert node.scan(5) == []
    assert node.heard() == [("a", "ShareExceeded"), ("node", "ShareExceeded")]
    node.process(7, 50, A)
    node.scan()
    node.process(7, 150, A)
    node.scan(3)
    assert node.heard().count(("a", "ShareExceeded")) == 2


def test_a_killed_process_that_lingers_is_not_counted_and_not_killed_again() -> None:
    node = Node()
    node.stubborn = True
    node.process(6, 90, A)
    node.process(7, 120, A)
    node.charged(A, (6, 90))
    assert node.scan(6) == [7]
    assert node.guard.view.strangers[GPU, "unknown"] == 120 * MIB


def test_a_process_that_shows_only_its_pod_has_the_pods_shares() -> None:
    node = Node()
    node.pods["pod-1"] = frozenset({A, ShareKey("elsewhere-0")})
    node.process(7, 150, pod="pod-1")
    assert node.scan(2) == [7]


def test_a_share_of_another_gpu_is_none_of_this_one() -> None:
    node = Node()
    node.limits[B] = (OTHER_GPU, 50)
    node.process(7, 500, B)
    assert node.scan(3) == []
    assert node.heard() == [("node, by the way", "ProcessWithoutShare")]


def test_a_ledger_that_cannot_be_read_excuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.ledger[A] = StateError("damaged")
    node.process(7, 130, A)
    assert node.scan(2) == [7]
    assert "damaged" in caplog.text


def test_what_the_ledger_has_is_borne_up_to_the_overhead() -> None:
    node = Node()
    node.process(7, 115, A)
    node.charged(A, (7, 115))
    assert node.scan(3) == []
    node.process(7, 130, A)
    node.charged(A, (7, 130))
    assert node.scan(2) == [7]


def test_what_is_past_the_front_and_within_the_overhead_is_told_and_borne() -> None:
    node = Node()
    node.process(7, 115, A)
    node.charged(A, (7, 100))
    assert node.scan() == []
    assert node.told == []
    assert node.scan(3) == []
    assert node.heard() == [("a", "ShareExceeded"), ("node", "ShareExceeded")]
    # More than may be borne at one reading is not that at two.
    node.process(7, 150, A)
    assert node.scan() == []
    assert node.scan() == [7]
    assert node.heard().count(("a", "ShareExceeded")) == 1


def test_the_blind_kill_nobody_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.process(7, 150, A)
    node.scan()
    node.blind = "no hostPID"
    assert node.scan(5) == []
    assert node.heard() == [("node", "GuardBlind")]
    assert caplog.text.count("no hostPID") == 1
    assert node.guard.view.blind == "no hostPID"
    assert node.guard.view.at is None


def test_a_gpu_that_does_not_answer_is_alone_in_that(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.limits[B] = (OTHER_GPU, 50)
    node.listed[GPU] = NvmlDeviceError("it is lost", 15)
    node.process(7, 80, B, gpu=OTHER_GPU)
    node.scan()
    node.listed[GPU] = []
    assert node.scan() == [7]
    assert caplog.text.count("it is lost") == 1


def test_what_nvml_does_not_say_is_not_taken_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.process(6, None, A)
    node.process(7, 150, A)
    assert node.scan(2) == [7]
    assert "not guarded: 6" in caplog.text


def test_strangers_are_reported_once_and_live(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node()
    node.process(6, 10)
    node.process(7, 20, pod="pod-9")
    node.process(8, 30)
    node.own.add(8)
    assert node.scan() == []
    assert node.told == []
    assert node.scan(3) == []
    assert node.heard() == [
        ("node, by the way", "ProcessWithoutShare"),
        ("node", "ProcessWithoutShare"),
    ]
    assert "pod-9" in node.told[1][2]
    assert dict(node.guard.view.strangers) == {
        (GPU, "host"): 10 * MIB,
        (GPU, "pod"): 20 * MIB,
        (GPU, "unknown"): 0,
    }


def test_strangers_in_pods_are_killed_if_the_setting_says_so() -> None:
    node = Node(kill_strangers=True)
    node.process(6, 10)
    node.process(7, 20, pod="pod-9")
    node.process(8, 20, pod="pod-of-another-plugin")
    node.processes[8] = replace(node.processes[8], privileged=True)
    assert node.scan() == []
    assert node.scan(3) == [7]


@pytest.mark.parametrize("shared", [False, True])
def test_strangers_are_not_killed_where_nothing_is_shared_or_only_observed(shared: bool) -> None:  # noqa: FBT001 - a case
    node = Node(kill_strangers=True, kill=not shared)
    if not shared:
        node.limits.clear()
    node.process(7, 20, pod="pod-9")
    assert node.scan(3) == []


def test_what_is_seen_is_shown() -> None:
    node = Node()
    node.process(7, 60, A)
    node.process(8, 30, A, B)
    node.scan()
    assert node.guard.view.shares == {A: 90 * MIB, B: 0}
    assert node.guard.view.at == 0.0


def test_a_process_that_ended_meanwhile_is_nobodys() -> None:
    node = Node()
    node.process(7, 150, A)
    del node.processes[7]
    assert node.scan(3) == []
    assert node.guard.view.strangers[GPU, "unknown"] == 150 * MIB


def test_who_was_ended_for_one_set_of_shares_is_not_counted_in_another() -> None:
    node = Node()
    node.process(1, 100, A, B)
    node.process(2, 120, B)
    assert node.scan(3) == [2]
    assert {whom for whom, _reason in node.heard()} == {"b", "node"}


def test_one_that_cannot_be_ended_keeps_nobody_from_it(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.unkillable = {7}
    node.process(7, 300, A)
    node.process(8, 200, A)
    node.process(9, 80, B)
    assert node.scan(2) == [8, 9]
    assert "cannot end a process: not permitted" in caplog.text


def test_a_share_without_a_record_is_named_by_its_key(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    lost = ShareKey("lost-0")
    node.limits[lost] = (GPU, 10)
    node.process(7, 40, lost)
    assert node.scan(2) == [7]
    assert node.heard() == [("node", "ShareExceeded"), ("node", "ShareProcessKilled")]
    assert "share lost-0, of which no record is left," in node.told[-1][2]
    assert "killed a process" in caplog.text
