"""Shares get their part of a GPU's time: by the simulated card's own accounts, in a busy machine.

That a share gets more than its part would be the front's fault alone, so that is held tightly. What
it gets less may be the machine's, which did not run the process in its slot: there the margin is
wide, and how exact it is shows `make bench-cores`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import FakeDriver
from tests.fakes.card import Card, card, stop
from tests.shim import cores, support
from tests.shim.cores import Slot
from tests.shim.load import Load
from tests.shim.schedules import MS, Account, state_bytes, write

GPUS: Final = 9
PERIOD: Final = 100 * MS
SECONDS: Final = 3
FOREVER: Final = 1 << 62
# Of its part, what a load gets at least where it waits for the processor as well, which loads under
# a sanitizer do the more.
LEAST: Final = 0.2 if "SHIM_SANITIZER" in os.environ else 0.5
POINTS: Final = 2.0
HOUR: Final = 3600 * 1000 * MS


@dataclass(frozen=True)
class Times:
    """Two looks at a card."""

    first: Card
    last: Card

    def percent(self, *loads: Load) -> float:
        """Return what loads got of the time between, in percent."""
        got = sum(self.last.served(load.pid) - self.first.served(load.pid) for load in loads)
        return 100 * got / (self.last.at - self.first.at)

    def holds(self, percent: int, *loads: Load, step: int = 0) -> None:
        """Check a share of so many percent, whose work comes in steps of so many nanoseconds."""
        got = self.percent(*loads)
        most = percent + POINTS + 100 * step / (self.last.at - self.first.at)
        assert percent * LEAST <= got <= most


class Node:
    """A node with simulated cards that execute in time, and what runs on it."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        text = support.gpus_conf(GPUS).replace("context_mib", "executes = yes\ncontext_mib")
        self.folder, self._running = folder, running
        self.driver = FakeDriver(support.state_folder(folder / "state", text))
        self._observers: dict[int, Load] = {}
        self._containers = 0

    def container(self) -> support.Container:
        self._containers += 1
        folder = self.folder / f"container-{self._containers}"
        return support.Container(folder, self.driver.state_dir)

    def load(self, container: support.Container, *gpus: int) -> Load:
        """Start a load in a container."""
        command = container.command("/run/bin/load")
        return self._running.enter_context(Load(command)).start(*gpus)

    def tenant(self, percent: int, gpu: int = 0, slot: Slot | None = None) -> Load:
        """Start a load with a share of its own, whose slot is the period's first, unless given."""
        container = self.container()
        slot = slot or cores.slots_of(percent, period=PERIOD)[0]
        cores.share_of(container, percent, [slot], period=PERIOD, gpu=support.uuid(gpu))
        return self.load(container, gpu)

    def look(self, gpu: int = 0) -> Card:
        """Bring a card up to the present and look at it."""
        if gpu not in self._observers:
            env = {
                "FAKEGPU_DIR": str(self.driver.state_dir),
                "LD_LIBRARY_PATH": str(support.LIBDIR),
            }
            load = Load([str(support.PROGRAMS / "load")], {**os.environ, **env})
            self._observers[gpu] = self._running.enter_context(load).start(gpu)
        self._observers[gpu].ask("query")
        return card(self.driver, gpu)

    def watch(self, *gpus: int, seconds: float = SECONDS) -> dict[int, Times]:
        """Look at cards twice, with some time between."""
        first = {gpu: self.look(gpu) for gpu in gpus}
        time.sleep(seconds)
        return {gpu: Times(first[gpu], self.look(gpu)) for gpu in gpus}


@pytest.fixture
def node() -> Iterator[Node]:
    with support.memory_folder() as folder, ExitStack() as running:
        yield Node(folder, running)


@dataclass(frozen=True)
class Case:
    """A load that has a card for itself."""

    percent: int
    length: int
    batch: int
    how: str
    threads: int = 1

    @property
    def step(self) -> int:
        return self.length * (self.batch if self.how == "graph" else 1)


CASES: Final = (
    Case(30, 2 * MS // 5, 50, "plain"),
    Case(50, 2 * MS // 5, 50, "graph"),
    Case(80, 5 * MS, 4, "plain"),
    Case(30, 5 * MS, 10, "graph"),
    Case(10, 40 * MS, 1, "plain"),
    Case(30, 2 * MS, 10, "ex"),
    Case(50, 2 * MS, 10, "cooperative"),
    Case(30, 2 * MS, 10, "plain", threads=4),
    Case(30, 2 * MS // 5, 50, "streams"),
)


@pytest.fixture(scope="module")
def alone() -> Iterator[Mapping[Case, tuple[Times, Load]]]:
    """All cases at once, each on a card of its own."""
    with support.memory_folder() as folder, ExitStack() as running:
        node = Node(folder, running)
        loads = {case: node.tenant(case.percent, gpu) for gpu, case in enumerate(CASES)}
        for case, load in loads.items():
            load.begin(case.length, case.batch, case.how, FOREVER, case.threads)
        time.sleep(0.5)
        times = node.watch(*range(len(CASES)), seconds=2 * SECONDS)
        yield {case: (times[gpu], loads[case]) for gpu, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_share_gets_its_part(alone: Mapping[Case, tuple[Times, Load]], case: Case) -> None:
    times, load = alone[case]
    times.holds(case.percent, load, step=case.step)


def pair(node: Node, percents: Sequence[int], gpu: int = 0) -> list[Load]:
    """Start loads whose slots lie one behind the other, and let them work."""
    slots = cores.slots_of(*percents, period=PERIOD)
    loads = [node.tenant(percent, gpu, slot) for percent, slot in zip(percents, slots, strict=True)]
    for load in loads:
        load.begin(2 * MS, 10, "plain", FOREVER)
    return loads


def test_pairs_take_turns_by_their_slots(node: Node) -> None:
    groups = {0: (30, 70), 1: (50, 50), 2: (10, 90), 3: (25, 25, 25, 25)}
    loads = {gpu: pair(node, percents, gpu) for gpu, percents in groups.items()}
    for gpu, times in node.watch(*groups).items():
        for percent, load in zip(groups[gpu], loads[gpu], strict=True):
            times.holds(percent, load)
        # By the card's own slices it would be 500 changes a second.
        periods = (times.last.at - times.first.at) / PERIOD
        assert times.last.switches - times.first.switches <= 3 * len(groups[gpu]) * periods


def test_processes_of_one_share_have_it_together(node: Node) -> None:
    container = node.container()
    cores.share_of(container, 30, [(0, PERIOD * 30 // 100)], period=PERIOD)
    loads = [node.load(container, 0) for _ in range(4)]
    for load in loads:
        load.begin(2 * MS, 5, "plain", FOREVER)
    node.watch(0)[0].holds(30, *loads)


def test_each_gpu_of_a_process_has_its_own_share(node: Node) -> None:
    container = node.container()
    percents = {0: 20, 1: 60}
    for gpu, percent in percents.items():
        slot = (0, PERIOD * percent // 100)
        cores.share_of(container, percent, [slot], period=PERIOD, gpu=support.uuid(gpu))
    load = node.load(container, *percents)
    load.begin(2 * MS, 5, "plain", FOREVER, threads=2)
    for gpu, times in node.watch(*percents).items():
        times.holds(percents[gpu], load)


def test_two_shares_of_one_gpu_add_up(node: Node) -> None:
    """In the slots of both: by how much was done in each, whatever the machine let it do in all."""
    container = node.container()
    slots = {percent: (PERIOD * start // 100, PERIOD * percent // 100)
             for percent, start in ((20, 0), (30, 50))}  # fmt: skip
    for percent, slot in slots.items():
        cores.share_of(container, percent, [slot], period=PERIOD)
    load = node.load(container, 0)
    load.begin(2 * MS, 5, "plain", time.monotonic_ns() + (SECONDS + 1) * 1000 * MS)
    node.watch(0)[0].holds(50, load)
    steps = load.steps()
    done = {
        percent: sum(step.count for step in steps if 0 <= step.at % PERIOD - start < length)
        for percent, (start, length) in slots.items()
    }
    for percent, count in done.items():
        assert count >= sum(done.values()) * percent / 50 * LEAST / 2


def test_slots_that_are_moved_are_used_as_they_are_now(node: Node) -> None:
    container = node.container()
    share = cores.share_of(container, 20, [(0, PERIOD // 5)], period=PERIOD)
    load = node.load(container, 0)
    load.begin(2 * MS, 5, "plain", FOREVER)
    node.watch(0)[0].holds(20, load)
    parts = [(PERIOD // 10, PERIOD * 3 // 10), (PERIOD // 2, PERIOD * 4 // 10)]
    write(share, state_bytes(parts, period=PERIOD))
    node.watch(0, seconds=0.5)
    node.watch(0)[0].holds(70, load)


def test_guest_slots_end_by_themselves(node: Node) -> None:
    container = node.container()
    share = cores.share_of(container, 20, [(0, PERIOD // 5)], period=PERIOD, policy="burst")
    load = node.load(container, 0)
    load.begin(2 * MS, 5, "plain", FOREVER)
    guests = [(PERIOD // 5, PERIOD * 7 // 10)]
    until = time.monotonic_ns() + SECONDS * 1000 * MS
    own = [(0, PERIOD // 5)]
    write(share, state_bytes(own, period=PERIOD, guest=guests, guest_until=until))
    assert node.watch(0, seconds=SECONDS - 0.5)[0].percent(load) >= 90 * LEAST
    node.watch(0, seconds=1)
    node.watch(0)[0].holds(20, load)


def test_what_was_lent_is_its_owners_again_a_period_after_it_was_taken_back(node: Node) -> None:
    """As the plugin takes it back: by a schedule without the guest's slots, at any moment."""
    container = node.container()
    own, lent = cores.slots_of(30, 70, period=PERIOD)
    share = cores.share_of(container, 30, [own], period=PERIOD, policy="burst")
    guest, owner = node.load(container, 0), node.tenant(70, 0, lent)
    write(share, state_bytes([own], period=PERIOD, guest=[lent], guest_until=FOREVER))
    guest.begin(2 * MS, 10, "plain", FOREVER)
    assert node.watch(0)[0].percent(guest) >= 90 * LEAST
    owner.begin(2 * MS, 10, "plain", FOREVER)
    write(share, state_bytes([own], period=PERIOD))
    time.sleep(PERIOD / 1e9)
    times = node.watch(0)[0]
    for percent, load in ((30, guest), (70, owner)):
        times.holds(percent, load, step=PERIOD)  # which it may be owed from before


@pytest.mark.parametrize("how", ["kill", "stop", "kill-sibling", "stop-sibling"])
def test_what_happens_to_a_tenant_costs_its_neighbour_nothing(node: Node, how: str) -> None:
    """Also not one of its own share, which then has all of that."""
    victim, neighbour = pair(node, (30, 70))
    if how.endswith("sibling"):
        container = node.container()
        cores.share_of(container, 30, [(0, PERIOD * 30 // 100)], period=PERIOD, gpu=support.uuid(1))
        victim, sibling = (node.load(container, 1) for _ in range(2))
        for load in (victim, sibling):
            load.begin(2 * MS, 10, "plain", FOREVER)
    node.watch(0, seconds=0.5)
    if how.startswith("kill"):
        victim.kill()
    else:
        stop(node.driver, victim.pid)
    node.watch(0, 1, seconds=0.5)
    times = node.watch(0, 1)
    times[0].holds(70, neighbour)
    if how.endswith("sibling"):
        times[1].holds(30, sibling)


def test_a_kernel_without_end_takes_slices_and_its_end_gives_them_back(node: Node) -> None:
    """No library can stop it: the card's own slices keep half of the neighbour's slot, no more."""
    hung = node.tenant(30)
    neighbour = node.tenant(70, 0, (PERIOD * 30 // 100, PERIOD * 70 // 100))
    hung.send("queue", HOUR, 1, "plain")
    neighbour.begin(2 * MS, 10, "plain", FOREVER)
    assert 35 * LEAST <= node.watch(0)[0].percent(neighbour) <= 35 + POINTS
    hung.kill()
    node.watch(0, seconds=0.5)
    node.watch(0)[0].holds(70, neighbour)


def test_all_cores_are_not_held(node: Node) -> None:
    container = node.container()
    cores.share_of(container, 100, [(0, PERIOD // 10)], period=PERIOD)
    load = node.load(container, 0)
    load.begin(2 * MS, 10, "plain", FOREVER)
    assert node.watch(0)[0].percent(load) >= 100 * LEAST


def test_the_ledger_has_what_the_card_has(node: Node) -> None:
    container = node.container()
    share = cores.share_of(container, 30, [(0, PERIOD * 30 // 100)], period=PERIOD)
    load = node.load(container, 0)
    load.run(2 * MS, 10, "plain", seconds=1)
    assert load.ask("sync") == 0
    served = node.look().served(load.pid)
    times = Account.of(share)
    assert times.used == pytest.approx(served, rel=0.2)
    assert times.waited > 0
    assert times.overrun <= times.used


def test_what_runs_on_after_the_slot_is_counted(node: Node) -> None:
    container = node.container()
    share = cores.share_of(container, 30, [(0, PERIOD * 30 // 100)], period=PERIOD)
    load = node.load(container, 0)
    load.run(60 * MS, 1, "plain", seconds=1)
    assert load.ask("sync") == 0
    times = Account.of(share)
    # Each is twice as long as the slot.
    assert times.used / 4 < times.overrun <= times.used


def test_sparse_work_is_charged_what_it_takes(node: Node) -> None:
    """Not the time until somebody looks, which is at the next launch."""
    container = node.container()
    share = cores.share_of(container, 30, [(0, PERIOD * 30 // 100)], period=PERIOD)
    load = node.load(container, 0)
    load.send("latency", MS, 30 * MS, time.monotonic_ns() + SECONDS * 1000 * MS)
    assert load.latencies()
    assert load.ask("sync") == 0
    assert Account.of(share).used <= 3 * node.look().served(load.pid)


def test_a_kernel_that_takes_longer_than_it_used_to_pays_all_of_it(node: Node) -> None:
    load = node.tenant(30)
    load.run(5 * MS, 50, "same", seconds=1)
    load.begin(50 * MS, 50, "same", FOREVER)
    node.watch(0, seconds=1.5)
    node.watch(0, seconds=2 * SECONDS)[0].holds(30, load, step=50 * MS)
