"""How exact time division is: the gate's own code on a simulated GPU, in simulated time.

`programs/gatesim.c` has the costs of launches, sleeps and switches between contexts, as they were
measured. Here nothing depends on how busy this machine is; test_cores.py has the real thing.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.shim.support import PROGRAMS

PERIOD_US = 100_000


def simulated(*tenants: str, seconds: int = 20, program: str = "gatesim") -> list[list[str]]:
    """Return what it prints for each tenant, word by word."""
    done = subprocess.run(
        [PROGRAMS / program, str(seconds), str(PERIOD_US), *tenants],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    return [line.split() for line in done.stdout.splitlines()]


def shares(*tenants: str, seconds: int = 20, program: str = "gatesim") -> list[float]:
    """Return the percentage of the GPU that each tenant's work got."""
    return [float(words[1]) for words in simulated(*tenants, seconds=seconds, program=program)]


def slot(start: int, cores: int) -> str:
    """Return a share's slot, in percent of the period."""
    return f"{start * 1000},{cores * 1000}"


def work(
    kernel_ns: int | str, batch: int, *, graph: bool = False, threads: int = 1, processes: int = 1
) -> str:
    """Return what each thread of each process of a share does."""
    return f"{kernel_ns}:{batch}:{int(graph)}:{threads}:{processes}"


@pytest.mark.parametrize("cores", [10, 30, 50, 80])
@pytest.mark.parametrize("how", ["plain", "graph"])
@pytest.mark.parametrize(
    ("kernel_ns", "batch"),
    [
        (5_000, 50), (40_000, 1), (40_000, 50), (40_000, 1000), (400_000, 1), (400_000, 50),
        (5_000_000, 1), (5_000_000, 4), (50_000_000, 1), (200_000_000, 1),
    ],
)  # fmt: skip
def test_one_share_gets_its_part_of_what_it_gets_alone(
    kernel_ns: int, batch: int, how: str, cores: int
) -> None:
    seconds = 10 + kernel_ns // 1_000_000  # at the end a whole kernel is counted that has begun
    what = work(kernel_ns, batch, graph=how == "graph")
    alone, *_ = shares("none:" + what, seconds=seconds)
    part, *_ = shares(f"{slot(0, cores)}:{what}", seconds=seconds)
    assert abs(100 * part / alone - cores) < 1


@pytest.mark.parametrize("first", [10, 30, 50])
@pytest.mark.parametrize("kernels", [(400_000, 400_000), (5_000_000, 400_000), (40_000, 5_000_000)])
def test_two_shares_get_their_parts(first: int, kernels: tuple[int, int]) -> None:
    alone = [shares("none:" + work(kernel, 10))[0] for kernel in kernels]
    pair = shares(
        f"{slot(0, first)}:{work(kernels[0], 10)}",
        f"{slot(first, 100 - first)}:{work(kernels[1], 10)}",
    )
    parts = [100 * part / whole for part, whole in zip(pair, alone, strict=True)]
    assert abs(parts[0] - first) < 2
    assert abs(parts[1] - (100 - first)) < 2
    assert sum(parts) > 97


def test_the_end_of_a_neighbours_kernel_in_the_slot_is_not_taken_for_ones_own_work() -> None:
    works = (work(40_000, 50), work(400_000, 4))
    alone = [shares("none:" + each)[0] for each in works]
    four = shares(*(f"{slot(25 * i, 25)}:{works[i % 2]}" for i in range(4)))
    parts = [100 * part / alone[i % 2] for i, part in enumerate(four)]
    assert all(abs(part - 25) < 1 for part in parts)
    assert sum(parts) > 97.5


@pytest.mark.parametrize("kernels", [(400_000, 400_000), (5_000_000, 400_000)])
def test_time_is_counted_beside_a_neighbour_as_well(kernels: tuple[int, int]) -> None:
    """Of which the last kernel may have the GPU when the slot begins."""
    found = simulated(
        f"{slot(0, 30)}:{work(kernels[0], 4)}", f"{slot(30, 70)}:{work(kernels[1], 4)}", seconds=10
    )
    for words in found:
        assert float(words[3]) == pytest.approx(100 * float(words[1]), rel=0.06)


def test_a_long_kernel_pays_for_all_that_it_overran() -> None:
    """Two of 5 ms fill its slot to the point, so that each slot ends with a little too much."""
    pair = shares(f"{slot(0, 10)}:{work(5_000_000, 4)}", f"{slot(10, 90)}:{work(5_000_000, 4)}")
    assert 8 < pair[0] < 11
    assert 88 < pair[1] < 91


def test_kernels_of_different_lengths_in_one_stream() -> None:
    part, *_ = shares(f"{slot(0, 30)}:{work('40000/5000000/400000', 10)}")
    assert abs(part - 30) < 1


def test_threads_of_a_share_have_its_part_together() -> None:
    part, *_ = shares(f"{slot(0, 30)}:{work(400_000, 10, threads=4)}")
    assert abs(part - 30) < 1


@pytest.mark.parametrize(
    ("kernel_ns", "batch"), [(40_000, 50), (400_000, 10), (5_000_000, 2), (50_000_000, 1)]
)
def test_processes_of_a_share_have_its_part_together(kernel_ns: int, batch: int) -> None:
    """More than that of what three alone do: within a share they change turns less often."""
    alone, *_ = shares("none:" + work(kernel_ns, batch, processes=3))
    part, *_ = shares(f"{slot(0, 30)}:{work(kernel_ns, batch, processes=3)}")
    assert 0.3 * alone - 2.5 < part < 31


def test_slots_in_pieces_and_around_the_periods_end() -> None:
    part, *_ = shares(f"0,10000+40000,10000+90000,10000:{work(400_000, 10)}")
    assert abs(part - 30) < 1


def test_it_runs_under_the_address_sanitizer() -> None:
    parts = shares(
        f"{slot(0, 30)}:400000/5000000:10:0:3:2", f"{slot(30, 70)}:{work(40_000, 50, graph=True)}",
        seconds=3, program="gatesim-address",
    )  # fmt: skip
    assert len(parts) == 2
