"""Many calls at once, from one plugin and from two that overlap in a rolling update."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apportion.ledger.schema import State
from apportion.model import ClaimOutcome, ClaimRef
from apportion.prepare import Preparer

from tests.node.prepare.world import GIB, UUIDS, World, result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def at_once(
    calls: Sequence[Callable[[ClaimRef], ClaimOutcome]], refs: Sequence[ClaimRef]
) -> list[ClaimOutcome]:
    """Make each call with its claim, 16 at a time."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda pair: pair[0](pair[1]), zip(calls, refs, strict=True)))


def small(device: int = 0) -> dict[str, Any]:
    return result(device, memory="64Mi", cores="1")


def test_different_claims_at_once_are_all_prepared_and_all_unprepared(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    before = world.state()
    refs = [world.add(f"c{n}", small(n % 2)) for n in range(64)]
    outcomes = at_once([preparer.prepare] * 64, refs)
    assert [outcome.error for outcome in outcomes] == [""] * 64
    assert {record.state for record in world.store.records()} == {State.COMPLETED}
    assert len(world.store.records()) == 64
    assert world.store.held(UUIDS[0]).memory == 32 * 64 << 20
    assert [o.error for o in at_once([preparer.unprepare] * 64, refs)] == [""] * 64
    assert world.state() == before


@pytest.mark.parametrize("plugins", [1, 2])
def test_a_race_for_the_last_of_a_gpu_never_gives_more_than_it_has(
    world: World, plugins: int
) -> None:
    """14917 MiB hold 14 shares of 1 GiB, however many ask at once and through which plugin."""
    preparers = [world.preparer(), world.restarted().preparer()][:plugins]
    refs = [world.add(f"c{n}", result(memory="1Gi", cores="1")) for n in range(40)]
    calls = [preparers[n % plugins].prepare for n in range(40)]
    outcomes = at_once(calls, refs)
    assert sum(bool(outcome.devices) for outcome in outcomes) == 14
    assert all("GiB" not in o.error and "given 1024MiB" in o.error for o in outcomes if o.error)
    assert world.restarted().store.held(UUIDS[0]).memory == 14 * GIB
    assert len(world.enforcer.share_keys()) == len(world.cdi.claims()) == 14


@pytest.mark.parametrize("plugins", [1, 2])
def test_one_claim_asked_for_many_times_at_once_is_prepared_once(
    world: World, plugins: int
) -> None:
    preparers = [world.preparer(), world.restarted().preparer()][:plugins]
    wanted = world.add("c")
    outcomes = at_once([preparers[n % plugins].prepare for n in range(24)], [wanted] * 24)
    assert len(set(outcomes)) == 1
    assert outcomes[0].devices
    assert world.restarted().store.held(UUIDS[0]).memory == 4 * GIB


def test_prepare_and_unprepare_of_one_claim_never_mix(world: World) -> None:
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    calls = [preparer.unprepare if n % 3 == 0 else preparer.prepare for n in range(60)]
    assert [outcome.error for outcome in at_once(calls, [wanted] * 60)] == [""] * 60
    assert preparer.prepare(wanted).devices
    assert preparer.unprepare(wanted).error == ""
    assert world.state() == before


def test_a_slow_claim_holds_no_other_up(world: World) -> None:
    slow = world.add("slow")
    entered, go_on = threading.Event(), threading.Event()

    def fetch(wanted: ClaimRef) -> dict[str, Any]:
        if wanted == slow:
            entered.set()
            assert go_on.wait(30)
        return world.fetch(wanted)

    preparer: Preparer = world.preparer(fetch=fetch)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(preparer.prepare, slow)
        assert entered.wait(30)
        assert preparer.prepare(world.add("quick", small())).devices
        go_on.set()
        assert late.result(30).devices


def test_a_sweep_among_prepares_takes_nothing_that_is_being_made(world: World) -> None:
    preparer, other = world.preparer(), world.restarted().preparer()
    refs = [world.add(f"c{n}", small(n % 2)) for n in range(48)]
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            other.sweep(ask=True)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        outcomes = at_once([preparer.prepare] * 48, refs)
    finally:
        stop.set()
        sweeper.join()
    assert [outcome.error for outcome in outcomes] == [""] * 48
    assert all((world.config.driver_shares_dir / f"{ref.uid}-0/limits").exists() for ref in refs)
    assert world.cdi.claims() == {ref.uid for ref in refs}


@pytest.mark.parametrize("held", [1, 60])
def test_a_prepare_costs_one_get_three_fsyncs_and_four_renames_however_many_are_held(
    world: World, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    gets: list[ClaimRef] = []

    def fetch(ref: ClaimRef) -> dict[str, Any]:
        gets.append(ref)
        return world.fetch(ref)

    preparer = world.preparer(fetch=fetch)
    for n in range(held):
        assert preparer.prepare(world.add(f"h{n}", small(n % 2))).devices
    preparer.ready(UUIDS[0])
    world.store.held(UUIDS[0])
    wanted = world.add("c", small())
    gets.clear()
    calls: dict[str, int] = {"fsync": 0, "rename": 0, "listdir": 0}
    for name in calls:
        real = getattr(os, name)

        def counted(*arguments: Any, real: Any = real, name: str = name) -> Any:
            calls[name] += 1
            return real(*arguments)

        monkeypatch.setattr(os, name, counted)
    assert preparer.prepare(wanted).devices
    assert len(gets) == 1
    # Record, spec, record; no folder, since what a power cut undoes counts for nothing after it.
    assert calls == {"fsync": 3, "rename": 4, "listdir": 0}
