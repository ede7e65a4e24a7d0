"""Ten thousand random operations on a node, beside a model that says what must be there.

The model is what a person would write on paper: which claims the API server has, which are
prepared, what each may take. Whatever happens to plugin, files and node in between, no GPU's limits
ever add up to more than it has, each claim that is prepared has exactly its own, and no two slots
of a GPU's time overlap.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apportion.cores import slots
from apportion.cores.slots import Slot
from apportion.model import ClaimOutcome, ClaimRef, ClaimUid, GpuUuid
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.node.prepare.world import T4_MEMORY, UUIDS, Faulty, World, claim, result

GIB = 1 << 30
STEPS, EXAMPLES = 100, 100
_NAMES = [f"c{number}" for number in range(6)]
_FAILING = [
    ("store", "begin"),
    ("store", "commit"),
    ("cdi", "write_claim"),
    ("enforcer", "prepare"),
    ("enforcer", "share_edits"),
]
_parts = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 10), st.integers(5, 60)), min_size=1, max_size=3
)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


def _without(state: dict[str, str], part: str) -> dict[str, str]:
    return {path: text for path, text in state.items() if part not in path}


@dataclass
class Claim:
    """What the paper says of one claim."""

    ref: ClaimRef
    parts: list[tuple[int, int, int]]
    exists: bool = True
    prepared: bool = False
    spec_lost: bool = False
    damaged: bool = False
    unreadable: bool = False

    def of(self, gpu: int) -> tuple[int, int]:
        mine = [part for part in self.parts if part[0] == gpu]
        return sum(part[1] for part in mine) * GIB, sum(part[2] for part in mine)


class Node(RuleBasedStateMachine):
    """One node with two T4s and up to six claims at a time."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.folder)
        self.claims: dict[str, Claim] = {}
        self.gone: list[Claim] = []
        self.boots = self.made = 0
        self.world.preparer().ready(UUIDS[0])

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def _all(self) -> list[Claim]:
        return [*self.claims.values(), *self.gone]

    def _state(self, wanted: Claim) -> dict[str, str]:
        """Return all on the disk but the claim's record where it may be damaged: it moves aside."""
        found = self.world.state()
        return _without(found, f"{wanted.ref.uid}.json") if wanted.damaged else found

    def _fits(self, wanted: Claim) -> bool:
        others = [one for one in self._all() if one.prepared and one is not wanted]
        for gpu in (0, 1):
            memory, cores = (
                sum(each) for each in zip(*(o.of(gpu) for o in [*others, wanted]), strict=True)
            )
            if wanted.of(gpu) != (0, 0) and (memory > T4_MEMORY or cores > 100):
                return False
        return True

    @rule(name=st.sampled_from(_NAMES), parts=_parts)
    def create(self, name: str, parts: list[tuple[int, int, int]]) -> None:
        """A claim is made and allocated, perhaps under the name of one that went."""
        if name in self.claims:
            return
        self.made += 1
        ref = ClaimRef(ClaimUid(f"uid-{self.made:05}"), "default", name)
        results = [
            result(gpu, request=f"r{n}", memory=f"{memory}Gi", cores=str(cores))
            for n, (gpu, memory, cores) in enumerate(parts)
        ]
        self.world.claims[name] = claim(ref, *results)
        self.claims[name] = Claim(ref, parts)

    @rule(name=st.sampled_from(_NAMES))
    def prepare(self, name: str) -> None:
        wanted = self.claims.get(name)
        if wanted is None:
            return
        outcome = self.world.preparer().prepare(wanted.ref)
        if wanted.prepared or self._fits(wanted):
            assert outcome.error == ""
            assert len(outcome.devices) == len(wanted.parts)
            wanted.prepared, wanted.spec_lost, wanted.unreadable = True, False, False
        else:
            assert "left" in outcome.error, outcome.error
            assert not outcome.devices

    @rule(name=st.sampled_from(_NAMES), failing=st.sampled_from(_FAILING))
    def fail_to_prepare(self, name: str, failing: tuple[str, str]) -> None:
        """Some step fails: nothing of this call stays, nothing of an earlier one goes."""
        wanted = self.claims.get(name)
        if wanted is None:
            return
        part, call = failing
        faulty: dict[str, Any] = {part: Faulty(getattr(self.world, part), call)}
        before = self._state(wanted)
        outcome = self.world.preparer(**faulty).prepare(wanted.ref)
        if outcome.error:
            # What was of no use any more, of another boot or damaged, may go.
            expected = before if wanted.prepared else _without(before, wanted.ref.uid)
            assert self._state(wanted) == expected
        else:
            assert wanted.prepared, "a repeat need not take the step that fails"
            wanted.spec_lost = False

    @rule(name=st.sampled_from(_NAMES))
    def unprepare(self, name: str) -> None:
        wanted = self.claims.get(name)
        if wanted is not None:
            assert self.world.preparer().unprepare(wanted.ref) == ClaimOutcome()
            wanted.prepared = False

    @rule(name=st.sampled_from(_NAMES))
    def delete(self, name: str) -> None:
        """The API server has the claim no more; kubelet was not there to unprepare it."""
        wanted = self.claims.pop(name, None)
        if wanted is not None:
            del self.world.claims[name]
            wanted.exists = False
            self.gone.append(wanted)

    @rule()
    def sweep(self) -> None:
        for one in self.gone:
            if one.unreadable:
                # Whose its folders are the sweep may not know any more; kubelet does.
                assert self.world.preparer().unprepare(one.ref) == ClaimOutcome()
        self.world.preparer().sweep(ask=True)
        self.gone.clear()

    @rule()
    def late_unprepare(self) -> None:
        """Kubelet remembers a claim that was deleted; its name may be another's by now."""
        if self.gone:
            wanted = self.gone.pop()
            assert self.world.preparer().unprepare(wanted.ref) == ClaimOutcome()

    @rule()
    def restart(self) -> None:
        self.world = self.world.restarted()
        self.world.preparer().sweep(ask=False)

    @rule()
    def reboot(self) -> None:
        self.boots += 1
        shutil.rmtree(self.world.config.driver_shares_dir, ignore_errors=True)
        self.world = self.world.restarted(f"boot-{self.boots + 1}")
        for one in self._all():
            one.prepared = False

    @rule(name=st.sampled_from(_NAMES), keep=st.integers(0, 200))
    def damage(self, name: str, keep: int) -> None:
        """A record is cut short; the next plugin reads it so."""
        wanted = self.claims.get(name)
        if wanted is None or not wanted.prepared:
            return
        path = self.world.config.plugin_dir / "claims" / f"{wanted.ref.uid}.json"
        if path.exists():
            path.write_bytes(path.read_bytes()[:keep])
            wanted.damaged = wanted.unreadable = True
            self.world = self.world.restarted()

    @rule(name=st.sampled_from(_NAMES))
    def lose_spec(self, name: str) -> None:
        wanted = self.claims.get(name)
        if wanted is not None and wanted.prepared:
            self.world.cdi.claim_path(wanted.ref.uid).unlink(missing_ok=True)
            wanted.spec_lost = True

    @precondition(lambda self: self.boots < 3)
    @rule()
    def leave_a_temporary_file(self) -> None:
        folder = self.world.config.plugin_dir / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".uid-1.json.0badcafe.tmp").write_bytes(b"{")
        self.world.preparer().sweep(ask=False)
        assert not list(folder.glob(".*.tmp"))

    @invariant()
    def no_gpu_is_given_more_than_it_has(self) -> None:
        if not hasattr(self, "world"):
            return
        for gpu, uuid in enumerate(UUIDS[:2]):
            limits = [
                allowed.capacity
                for allowed in self.world.enforcer.allowances()
                if allowed.uuid == uuid
            ]
            assert sum(limit.memory for limit in limits) <= T4_MEMORY
            assert sum(limit.cores for limit in limits) <= 100
            held = self.world.store.held(uuid)
            paper = [one.of(gpu) for one in self._all() if one.prepared]
            assert held.memory == sum(memory for memory, _ in paper)
            assert held.cores == sum(cores for _, cores in paper)

    @invariant()
    def what_is_prepared_has_its_own_limits_and_no_other(self) -> None:
        if not hasattr(self, "world"):
            return
        enforced = {
            allowed.key: (allowed.uuid, allowed.capacity.memory, allowed.capacity.cores)
            for allowed in self.world.enforcer.allowances()
        }
        paper = {
            f"{one.ref.uid}-{n}": (UUIDS[gpu], memory * GIB, cores)
            for one in self._all()
            if one.prepared
            for n, (gpu, memory, cores) in enumerate(one.parts)
        }
        assert enforced == paper
        found: dict[GpuUuid, dict[str, Slot]] = {}
        for key, (uuid, _memory, cores) in enforced.items():
            slot = self.world.enforcer.slot(key)
            assert slot is not None
            assert slot.cells == cores
            assert slots.fits(found.setdefault(uuid, {}), slot)
            found[uuid][key] = slot
        for one in self._all():
            if one.prepared and not one.spec_lost:
                assert self.world.cdi.claim_path(one.ref.uid).exists()


TestNode = pytest.mark.timeout(900)(Node.TestCase)  # seconds alone, minutes on a busy machine
TestNode.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
