"""Markers by folder, one way to skip a tier, and a loud word about it at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

_TIERS = ("unit", "shim", "node", "cluster", "gpu")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(_HERE).parts[0]
        if tier in _TIERS:
            item.add_marker(tier)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat every skip by name: a tier that did not run must not look like one that passed."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = sorted({str(report.longrepr[2]) for report in skipped if report.longrepr})
    if reasons:
        terminalreporter.write_sep("!", f"NOT RUN: {len(skipped)} tests", red=True, bold=True)
        for reason in reasons:
            terminalreporter.write_line(f"  {reason}", red=True)
