"""Runs the cluster tier on every Kubernetes of the harness's table, and says what came of it.

    python -m tests.matrix [--table FILE] [MINOR …] [-- further arguments of pytest]

Tests of what a version does not do, by the harness's table, are left out and counted with the
reason. The last lines are a table in Markdown, which --table also writes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import HarnessError, golang
from tests.harness.versions import CONTAINERD, KUBERNETES

_REPO = Path(__file__).resolve().parents[1]
_HEAD = """\
| Kubernetes | feature gates switched on | cluster tier | left out |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Outcome:
    """What the tier said on one version."""

    minor: str
    passed: int
    failed: tuple[str, ...]
    absent: tuple[str, ...]  # why a test was left out, for each


def run(minor: str, arguments: Sequence[str]) -> Outcome:
    """Run the tier on one version. Raises HarnessError when it gave no result."""
    golang.kubernetes(minor)  # before pytest's time limits begin
    with tempfile.TemporaryDirectory(prefix="apportion-matrix-") as name:
        report = Path(name) / "junit.xml"
        absent = Path(name) / "absent"
        command = [sys.executable, "-m", "pytest", "tests/cluster", f"--junit-xml={report}"]
        environment = os.environ | {"TEST_KUBERNETES": minor, "TEST_ABSENT_FILE": str(absent)}
        environment["REQUIRE_TEST_CLUSTER"] = "1"
        subprocess.run([*command, *arguments], cwd=_REPO, env=environment, check=False)
        if not report.is_file():
            raise HarnessError("the tier ended without a report; what pytest said is above")
        why = absent.read_text().splitlines() if absent.is_file() else ()
        return read(minor, report.read_text(), why)


def read(minor: str, report: str, absent: Iterable[str]) -> Outcome:
    """Return what a JUnit report says; a skipped test is one that did not pass."""
    cases = list(ET.fromstring(report).iter("testcase"))  # noqa: S314 - pytest's own
    bad = tuple(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
    )
    return Outcome(minor, len(cases) - len(bad), bad, tuple(absent))


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes in Markdown."""
    lines = []
    for outcome in outcomes:
        release = KUBERNETES[outcome.minor]
        gates = (
            ", ".join(sorted(gate for gate, on in release.feature_gates.items() if on)) or "none"
        )
        said = f"{outcome.passed} passed"
        if outcome.failed:
            said += f", {len(outcome.failed)} failed"
        whys = [f"{number}: {why}" for why, number in sorted(Counter(outcome.absent).items())]
        left_out = "; ".join(whys) or "nothing"
        lines.append(f"| {release.version} | {gates} | {said} | {left_out} |\n")
    return _HEAD + "".join(lines)


def main() -> int:
    """Return 0 when every version passed whole."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--table", type=Path, help="file to write the table to")
    parser.add_argument("minors", nargs="*", metavar="MINOR", help=", ".join(sorted(KUBERNETES)))
    own, further = _split(sys.argv[1:])
    options = parser.parse_args(own)
    unknown = sorted(set(options.minors) - set(KUBERNETES))
    if unknown:
        parser.error(f"no such version: {', '.join(unknown)}; there are {', '.join(KUBERNETES)}")
    outcomes: list[Outcome] = []
    broken = False
    for minor in options.minors or sorted(KUBERNETES):
        try:
            outcomes.append(run(minor, further))
        except HarnessError as error:
            # The other versions' results are not lost by it.
            print(f"Kubernetes {minor}: {error}", file=sys.stderr)
            broken = True
    for outcome in outcomes:
        for name in outcome.failed:
            print(f"{outcome.minor}: {name} did not pass", file=sys.stderr)
    text = table(outcomes)
    if options.table:
        options.table.write_text(text)
    print(f"\ncontainerd {CONTAINERD}\n\n{text}", end="")
    return 1 if broken or any(each.failed or not each.passed for each in outcomes) else 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
