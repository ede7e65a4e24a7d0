"""Fail where a module that must be covered is not: coverage_gate.py COVERAGE.json.

Each file by itself, since a sum lets a large one hide a small one. The pure modules are those of
the import contract in pyproject.toml, so that no module is called pure without this check; to them
come some that touch files, clock or environment, and that the unit tests can reach whole.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
CONTRACT = "Pure modules"
ALSO = (
    "apportion.cdi.store",
    "apportion.config",
    "apportion.driver",
    "apportion.files",
    "apportion.ledger.store",
    "apportion.locks",
    "apportion.log",
)
LEAST = 95.0
"""Percent of lines and branches."""


def pure_modules(pyproject: Path = PYPROJECT) -> tuple[str, ...]:
    """Return the modules of the contract for pure ones."""
    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = [item for item in contracts if item["name"].startswith(CONTRACT)]
    return tuple(found["source_modules"])


def faults(modules: Iterable[str], report: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, one line for each module; a module that was not measured is wrong."""
    files: Mapping[str, Any] = report["files"]
    found = []
    for module in sorted(modules):
        path = module.replace(".", "/")
        ends = tuple(f"/{path}{ending}" for ending in (".py", "/__init__.py"))
        measured = [data for name, data in files.items() if f"/{name}".endswith(ends)]
        if len(measured) != 1:
            found.append(f"{module}: measured {len(measured)} times")
            continue
        percent = float(measured[0]["summary"]["percent_covered"])
        if percent < LEAST:
            lines = ", ".join(map(str, measured[0]["missing_lines"]))
            found.append(f"{module}: {percent:.1f} %, not covered: {lines or 'branches only'}")
    return found


def main(report: Path) -> int:
    """Print the faults; return the exit status."""
    modules = {*pure_modules(), *ALSO}
    found = faults(modules, json.loads(report.read_text(encoding="utf-8")))
    said = "\n".join(found) or f"each of {len(modules)} modules is covered by {LEAST:g} % or more"
    sys.stdout.write(said + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
