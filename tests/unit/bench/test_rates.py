"""How bench/cores counts steps: the ends of what is looked at do not matter."""

from __future__ import annotations

import pytest

from bench.cores.rates import MS, Patience, Work, rate
from tests.shim.load import Step

SECOND = 1000 * MS
WORK = Work(5 * MS, 1)


def every(apart: int, until: int, first: int = 0) -> list[Step]:
    """One kernel after the other, so far apart."""
    return [Step(0, 1, at) for at in range(first, until, apart)]


@pytest.mark.parametrize("first", [0, 3 * MS, 9 * MS])
def test_steady_work(first: int) -> None:
    steps = every(10 * MS, 3 * SECOND, first)
    assert rate(steps, WORK, SECOND, 2 * SECOND) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("first", range(0, 500 * MS, 50 * MS))
def test_few_steps(first: int) -> None:
    """A kernel of 50 ms each 500 ms is 10 %, wherever in between the look begins."""
    steps = every(500 * MS, 4 * SECOND, first)
    assert rate(steps, Work(50 * MS, 1), SECOND, 3 * SECOND) == pytest.approx(0.1, abs=1e-6)


def test_slots() -> None:
    steps = [Step(0, 1, at) for at in range(0, 3 * SECOND, 5 * MS) if at % (50 * MS) < 15 * MS]
    assert rate(steps, WORK, SECOND, 2 * SECOND) == pytest.approx(0.3, abs=1e-6)


def test_what_is_looked_at_has_some_steps_of_each_and_whole_periods() -> None:
    patience = Patience(SECOND, 20)
    assert patience.window([WORK], [10], 30 * MS) == 1020 * MS
    assert patience.window([Work(50 * MS, 4, "graph")], [10], 50 * MS) == 16 * SECOND
    assert patience.window([Work(200 * MS, 1), WORK], [50, 50], 50 * MS) == 4 * SECOND


def test_a_step_is_what_is_seen_at_once() -> None:
    assert Work(5 * MS, 50).step == 5 * MS
    assert Work(5 * MS, 50, "graph").step == 250 * MS
    assert Work(MS // 25, 4).step == 4 * MS // 25
    assert Work(MS // 25, 1000).step == 2 * MS
