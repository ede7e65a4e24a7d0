"""`make bench-cores`: how exactly shares get their cores, on simulated GPUs or on a real one.

    python -m bench.cores [--gpu] [part ...]

Parts: launches, solo, groups, extremes, latency, torch (on a real GPU only); all without any.
Progress goes to standard error, tables to standard output, and the last line of that is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.cores import launches, torch_pairs
from bench.cores.places import Place, Real, Simulated, raised
from bench.cores.rates import SECOND, Patience
from bench.cores.report import Results
from bench.cores.scenes import EXTREME_SHARES, EXTREMES, SHARES, SOLO, Bench, recommended
from bench.shim.report import machine
from tests.gpu.support import real
from tests.shim.cores import PERIOD
from tests.shim.support import memory_folder

PARTS: Final = ("launches", "solo", "groups", "extremes", "latency", "torch")


def measure(place: Place, folder: Path, parts: list[str]) -> Results:
    """Measure these parts."""
    results, gpu = Results(), isinstance(place, Real)
    if "launches" in parts:
        results.figures |= launches.measure(folder, real("libcuda.so.1").parent if gpu else None)
    if "torch" in parts and isinstance(place, Real):
        results.figures |= torch_pairs.measure(place)
    if not {"solo", "groups", "extremes", "latency"} & set(parts):
        return results
    bench = Bench(place, Patience(SECOND, 25) if gpu else Patience(3 * SECOND // 2, 50))
    if "solo" in parts:
        results.solo = bench.solos(SOLO, SHARES)
    if "groups" in parts:
        results.plain, results.groups = bench.without_shares(), bench.groups(recommended)
        results.by_default = bench.groups(lambda *_: PERIOD)
    if "extremes" in parts:
        results.extremes = bench.solos(EXTREMES, EXTREME_SHARES)
    if "latency" in parts:
        results.latencies = bench.latencies(5 if gpu else 20)
    return results


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cores", description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="measure on this machine's real GPU")
    parser.add_argument("part", nargs="*", help="what to measure (all)")
    chosen = parser.parse_args(arguments)
    if not set(chosen.part) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    if "torch" in chosen.part and not chosen.gpu:
        parser.error("torch is measured on a real GPU only: add --gpu")
    raised()
    with memory_folder() as folder, ExitStack() as stack:
        place: Place = Real(folder, stack) if chosen.gpu else Simulated(folder, stack)
        results = measure(place, folder, chosen.part or list(PARTS))
    print(f"Measured on {machine(place.name)}.\n\n{results.tables()}")
    print(json.dumps(results.line()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
