"""`make bench-shim`: native against front, on a driver that does nothing, the simulated one, a GPU.

    python -m bench.shim [--gpu] [--rounds N]

Progress goes to standard error, the table to standard output, and the last line of that is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.shim import report, scenes
from tests.gpu.support import real
from tests.shim.support import memory_folder


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.shim", description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="measure on this machine's real GPU")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each figure (40)")
    chosen = parser.parse_args(arguments)
    driver = real("libcuda.so.1").parent if chosen.gpu else None
    with memory_folder() as folder:
        bench = scenes.Bench(folder, driver, chosen.rounds)
        bench.build()
        rows = bench.calls()
        if not driver:
            bench.count_instructions(rows)
        pairs, storm = bench.starts(), bench.storm()
    print(report.table(rows, pairs, storm, report.machine(bench.driver_name)))
    print(json.dumps(report.line(rows, pairs, storm)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
