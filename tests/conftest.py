"""Markers by folder, one way to skip a tier, and a loud word about it at the end."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tests.harness import requirements

_TIERS = ("unit", "shim", "node", "cluster", "gpu")
# They need root, namespaces and what is built from source.
_NEED_THE_MACHINE = ("shim", "node", "cluster")
_HERE = Path(__file__).parent


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(_HERE).parts[0]


@functools.cache
def _missing() -> str | None:
    return requirements.missing()


def _is_required() -> bool:
    """In CI a tier that can't run is a failure, not a skip."""
    return (
        os.environ.get("CI", "").lower() in {"1", "true"}
        or os.environ.get("REQUIRE_TEST_CLUSTER") == "1"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needy = [item for item in items if _tier(item) in _NEED_THE_MACHINE]
    reason = _missing() if needy and not _is_required() else None
    for item in items:
        if _tier(item) in _TIERS:
            item.add_marker(_tier(item))
    for item in needy if reason else ():
        item.add_marker(pytest.mark.skip(reason=f"tier {_tier(item)}: {reason}"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_required() and _tier(item) in _NEED_THE_MACHINE:
        reason = _missing()
        if reason:
            pytest.fail(f"{reason} (CI or REQUIRE_TEST_CLUSTER is set: not skipped)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat every skip by name: a tier that did not run must not look like one that passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = sorted({str(report.longrepr[2]) for report in skipped if report.longrepr})
    if reasons:
        terminalreporter.write_sep("!", f"NOT RUN: {len(skipped)} tests", red=True, bold=True)
        for reason in reasons:
            terminalreporter.write_line(f"  {reason}", red=True)
