"""`make bench-shim`: native against front, on a driver that does nothing, the simulated one, a GPU.

    python -m bench.shim [--driver FOLDER] [--rounds N]

Progress goes to standard error, the table to standard output, and the last line of that is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.shim import report, scenes
from tests.shim.support import memory_folder


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.shim", description=__doc__)
    parser.add_argument(
        "--driver", type=Path, metavar="FOLDER",
        help="measure on the real driver whose libcuda.so.1 and libnvidia-ml.so.1 lie here",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each figure (40)")
    chosen = parser.parse_args(arguments)
    with memory_folder() as folder:
        bench = scenes.Bench(folder, chosen.driver, chosen.rounds)
        bench.build()
        rows = bench.calls()
        if not chosen.driver:
            bench.count_instructions(rows)
        pairs, storm = bench.starts(), bench.storm()
    print(report.table(rows, pairs, storm, report.machine(bench.driver_name)))
    print(json.dumps(report.line(rows, pairs, storm)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
