"""What is measured: one share after the other, pairs at once, latencies."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from bench.cores.places import Place, one_each
from bench.cores.rates import MS, SECOND, Patience, Work, measure
from tests.shim.cores import PERIOD
from tests.shim.load import Load

SHARES: Final = (10, 30, 50, 80)
LENGTHS: Final = (MS // 25, 2 * MS // 5, 5 * MS, 50 * MS)
BATCHES: Final = (1, 4, 50, 1000)
LONGEST_GRAPH: Final = 500 * MS  # one launch of more leaves no average over a second
PERIODS: Final = (10 * MS, 20 * MS, 50 * MS, 100 * MS)
LATENCY_SHARE: Final = 30
LATENCY_LOADS: Final = 4  # at once, each with little to do

SOLO: Final = tuple(
    Work(length, batch, how)
    for length in LENGTHS
    for batch in BATCHES
    for how in ("plain", "graph")
    if how == "plain" or length * batch <= LONGEST_GRAPH
)
EXTREMES: Final = (
    *(Work(MS // 200, batch) for batch in (1, 50, 1000)),
    Work(MS // 200, 1000, "graph"),
    *(Work(200 * MS, batch) for batch in (1, 4)),
)
EXTREME_SHARES: Final = (30, 50)
GROUPS: Final = ((30, 70), (50, 50), (10, 90), (25, 25, 25, 25))


Mix = tuple[Work, Work]
"""Work side by side."""

MIXES: Final[tuple[Mix, ...]] = (
    (Work(MS // 25, 50), Work(2 * MS // 5, 4)),
    (Work(2 * MS // 5, 1000), Work(2 * MS // 5, 1000)),
    (Work(5 * MS, 50), Work(MS // 25, 50, "graph")),
    (Work(2 * MS // 5, 50, "graph"), Work(5 * MS, 4)),
)


def recommended(shares: Sequence[int], mix: Mix) -> int:
    """Return the period in ns that docs/cores.md recommends for so many shares with such work."""
    longest = max(work.length * (work.batch if work.how == "graph" else 1) for work in mix)
    return min(len(shares) * max(25 * MS, 10 * longest), 400 * MS)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Solo:
    """One share by itself: percents of what a process alone did of the same work."""

    work: Work
    alone: float
    got: dict[int, float]

    @property
    def error(self) -> float:
        """Points that the worst share is off."""
        return max(abs(got - share) for share, got in self.got.items())


@dataclass(frozen=True)
class Group:
    """Several shares at once: percents as above, in the order of the shares; period in ns."""

    shares: tuple[int, ...]
    works: tuple[Work, ...]
    period: int
    got: tuple[float, ...]

    @property
    def error(self) -> float:
        return max(abs(got - share) for share, got in zip(self.shares, self.got, strict=True))


@dataclass(frozen=True)
class Latency:
    """How long one kernel of 1 ms took in a share that is otherwise idle, milliseconds."""

    period: int
    middle: float
    p99: float
    most: float
    count: int


class Bench:
    """One run."""

    def __init__(self, place: Place, patience: Patience, period: int = PERIOD) -> None:
        self.place, self.patience, self.period = place, patience, period
        self._alone: dict[Work, float] = {}
        self._solos = [self._loads(gpu) for gpu in range(place.gpus)]

    def _loads(self, gpu: int) -> dict[int, Load]:
        """Return one load for each share of a GPU, and one (100) without."""
        shares = sorted({*SHARES, *EXTREME_SHARES})
        loads = {share: one_each(self.place, gpu, [share], self.period)[0] for share in shares}
        return {100: self.place.alone(gpu)} | loads

    def _rate(self, load: Load, work: Work, share: int) -> float:
        return measure([load], [work], [share], period=self.period, patience=self.patience)[0]

    def alone(self, work: Work, loads: dict[int, Load]) -> float:
        """Return what a process alone does of this work, measured once."""
        if work not in self._alone:
            self._alone[work] = self._rate(loads[100], work, 100)
        return self._alone[work]

    def solo(self, work: Work, shares: Sequence[int], gpu: int) -> Solo:
        loads = self._solos[gpu]
        again = self.place.noisy and work.length * work.batch < MS
        alone, got = self.alone(work, loads), {}
        for share in shares:
            # What waits for the processor is compared with its neighbours in time.
            before = self._rate(loads[100], work, 100) if again else alone
            rate = self._rate(loads[share], work, share)
            after = self._rate(loads[100], work, 100) if again else alone
            got[share] = 200 * rate / (before + after)
        done = Solo(work, alone, got)
        seen = ", ".join(f"{share} %: {percent:.1f}" for share, percent in got.items())
        say(f"{work}: {100 * alone:.1f} % busy alone; {seen}")
        return done

    def solos(self, works: Sequence[Work], shares: Sequence[int]) -> list[Solo]:
        """Measure all: long kernels side by side where there are several GPUs, short ones after.

        Short ones need the processor, which long ones leave alone.
        """
        found = {}
        # In ascending order, so that none begins with what a longer step before it owes.
        works = sorted(works, key=lambda work: work.step)
        long = [work for work in works if work.length >= MS]

        def lane(gpu: int) -> None:
            for work in iter(lambda: long.pop(0) if long else None, None):
                found[work] = self.solo(work, shares, gpu)

        self._on_each_gpu(lane)
        for work in works:
            if work.length < MS:
                found[work] = self.solo(work, shares, 0)
        return sorted(found.values(), key=lambda solo: (solo.work.length, solo.work.batch))

    def _on_each_gpu(self, job: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(self.place.gpus) as pool:
            list(pool.map(job, range(self.place.gpus)))

    def group(self, loads: Sequence[Load], shares: tuple[int, ...], mix: Mix, period: int) -> Group:
        works = tuple(mix[i % len(mix)] for i in range(len(shares)))
        alone = [self.alone(work, self._solos[0]) for work in works]
        rates = measure(loads, works, shares, period=period, patience=self.patience)
        got = tuple(100 * rate / one for rate, one in zip(rates, alone, strict=True))
        seen = " + ".join(f"{percent:.1f}" for percent in got)
        names = f"{works[0]} beside {works[1]}, {period // MS} ms"
        say(f"{'/'.join(map(str, shares))}, {names}: {seen}")
        return Group(tuple(shares), works, period, got)

    def groups(self, period_of: Callable[[Sequence[int], Mix], int]) -> list[Group]:
        """Measure shares at once, with the period that `period_of` says."""
        found = []
        for shares in GROUPS:
            periods = [period_of(shares, mix) for mix in MIXES]
            for period in sorted(set(periods)):
                loads = one_each(self.place, 0, shares, period)
                for mix, wanted in zip(MIXES, periods, strict=True):
                    if wanted == period:
                        found.append(self.group(loads, shares, mix, period))
                for load in loads:
                    load.kill()
        return found

    def without_shares(self) -> list[Group]:
        """Measure pairs of processes at once that nothing limits."""
        loads = [self.place.alone(0) for _ in range(2)]
        return [self.group(loads, (50, 50), mix, self.period) for mix in MIXES]

    def latencies(self, seconds: float) -> list[Latency]:
        """One kernel of 1 ms now and then in a share of 30 %, by period."""
        todo, found = list(PERIODS), {}

        def lane(gpu: int) -> None:
            for period in iter(lambda: todo.pop(0) if todo else None, None):
                found[period] = self._latency(period, gpu, seconds)

        self._on_each_gpu(lane)
        return [found[period] for period in PERIODS]

    def _latency(self, period: int, gpu: int, seconds: float) -> Latency:
        slot = (0, period * LATENCY_SHARE // 100)
        loads = self.place.tenants(gpu, LATENCY_SHARE, slot, period, LATENCY_LOADS)
        until = time.monotonic_ns() + int(seconds * SECOND)
        for load in loads:
            load.send("latency", MS, period, until)
        taken = sorted(each / MS for load in loads for each in load.latencies())
        for load in loads:
            load.kill()
        p99 = taken[-1 - len(taken) // 100]
        one = Latency(period, statistics.median(taken), p99, taken[-1], len(taken))
        say(f"latency, period {period // MS} ms: {one.middle:.1f} ms, p99 {p99:.1f} ms")
        return one
