"""Shares get their part of a real GPU's time; how exactly: `python3 -m bench.cores --gpu`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.cores.places import Real, one_each
from bench.cores.rates import MS, SECOND, Patience, Work, measure
from tests.shim.cores import PERIOD
from tests.shim.load import Load
from tests.shim.support import memory_folder

PATIENCE = Patience(2 * SECOND, 40)
POINTS = 3


@pytest.fixture(scope="module")
def card() -> Iterator[Real]:
    with memory_folder() as folder, ExitStack() as running:
        yield Real(folder, running)


def percents(card: Real, loads: list[Load], work: Work, shares: list[int]) -> list[float]:
    """Return what each load gets, in percent of a process alone."""
    alone = card.alone(0)
    (whole,) = measure([alone], [work], [100], period=PERIOD, patience=PATIENCE)
    alone.kill()
    works = [work] * len(loads)
    rates = measure(loads, works, shares, period=PERIOD, patience=PATIENCE)
    return [100 * rate / whole for rate in rates]


@pytest.mark.parametrize(
    "work",
    [
        Work(2 * MS // 5, 50),
        Work(2 * MS // 5, 50, "graph"),
        Work(5 * MS, 4),
        Work(5 * MS, 4, "ex"),
        Work(5 * MS, 4, "cooperative"),
        Work(40 * MS, 1),
    ],
    ids=str,
)
def test_a_share_gets_its_part(card: Real, work: Work) -> None:
    loads = one_each(card, 0, [30], PERIOD)
    (got,) = percents(card, loads, work, [30])
    loads[0].kill()
    assert abs(got - 30) <= POINTS


@pytest.mark.parametrize("shares", [[30, 70], [25, 25, 25, 25]], ids=str)
def test_shares_side_by_side(card: Real, shares: list[int]) -> None:
    loads = one_each(card, 0, shares, PERIOD)
    got = percents(card, loads, Work(2 * MS // 5, 50), shares)
    for load in loads:
        load.kill()
    assert all(abs(one - share) <= POINTS for one, share in zip(got, shares, strict=True))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_tenant_that_ends_in_its_slot_costs_the_others_nothing(
    card: Real, how: signal.Signals
) -> None:
    victim, neighbour = one_each(card, 0, [30, 70], PERIOD)
    victim.begin(2 * MS // 5, 50, "plain", 1 << 62)
    victim.signal(how)
    (got,) = percents(card, [neighbour], Work(2 * MS // 5, 50), [70])
    victim.kill()
    neighbour.kill()
    assert abs(got - 70) <= POINTS
