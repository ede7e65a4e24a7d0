"""How much work loads do in a second, from the steps that they saw done."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.shim.load import Load, Step

MS: Final = 1_000_000
SECOND: Final = 1000 * MS
STEP: Final = 2 * MS
"""At least so often plain kernels are looked at (load_run.c)."""
WARM: Final = 300 * MS
CYCLES: Final = 8
"""Of a step and the wait for the next one, at least, in what is looked at."""


@dataclass(frozen=True)
class Work:
    """Kernels of `length` nanoseconds, launched `batch` at a time before a wait: plain or graph."""

    length: int
    batch: int
    how: str = "plain"

    @property
    def step(self) -> int:
        """Nanoseconds of work between two looks at how far it is."""
        if self.how == "graph":
            return self.length * self.batch
        return max(self.length, min(self.length * self.batch, STEP))

    def __str__(self) -> str:
        return f"{self.length / MS:g} ms x {self.batch}, {self.how}"


@dataclass(frozen=True)
class Patience:
    """For how long to look: at least `shortest` nanoseconds, and the work of so many kernels."""

    shortest: int
    kernels: int

    def window(self, works: Sequence[Work], percents: Sequence[int], period: int) -> int:
        """Return that for loads side by side: whole periods, and some steps of each."""
        slowest = max(
            CYCLES * work.step * 100 // percent
            for work, percent in zip(works, percents, strict=True)
        )
        longest = max(work.length for work in works)
        return -(-max(self.shortest, self.kernels * longest, slowest) // period) * period


def warm(works: Sequence[Work], percents: Sequence[int]) -> int:
    """Return how long to let them run before that: until what an earlier step owed is paid."""
    return max(
        WARM,
        *(work.step * 100 // percent for work, percent in zip(works, percents, strict=True)),
    )


def rate(steps: Sequence[Step], work: Work, begin: int, end: int) -> float:
    """Return nanoseconds of work in a nanosecond, from `begin` to `end`.

    A step counts the less the nearer it is to one of the ends (by a Hann window), so that it does
    not matter where among the steps those fall.
    """
    length = end - begin
    done = sum(
        step.count * (1 - math.cos(2 * math.pi * (step.at - begin) / length))
        for step in steps
        if begin < step.at <= end
    )
    return done * work.length / length


def measure(
    loads: Sequence[Load],
    works: Sequence[Work],
    percents: Sequence[int],
    *,
    period: int,
    patience: Patience,
) -> list[float]:
    """Let all loads work at the same time; return each one's rate as `rate` does."""
    begin = -(-(time.monotonic_ns() + warm(works, percents)) // period) * period
    end = begin + patience.window(works, percents, period)
    for load, work in zip(loads, works, strict=True):
        load.begin(work.length, work.batch, work.how, end)
    return [rate(load.steps(), work, begin, end) for load, work in zip(loads, works, strict=True)]
