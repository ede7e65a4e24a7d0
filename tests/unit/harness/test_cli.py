"""Which cluster a command means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import cli, registry
from tests.harness.errors import HarnessError
from tests.lab import __main__ as demo


@dataclass
class Running:
    name: str
    alive: bool = True


def running(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    records = [(Path(name), Running(name)) for name in names]
    monkeypatch.setattr(registry, "records", lambda: records)


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        (("a", "b"), None, "say which cluster by --name; running: a, b"),
        (("a",), "b", "no cluster 'b' runs; running: a"),
        (("a", "a"), "a", "more than one cluster has that name; running: a, a"),
        ((), None, "running: none"),
    ],
)
def test_the_error_says_what_runs(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], wanted: str | None, message: str
) -> None:
    running(monkeypatch, *names)
    with pytest.raises(HarnessError, match=message):
        cli._running(wanted)


@pytest.mark.parametrize("lab", sorted(demo.LABS))
def test_a_second_demo_is_refused(monkeypatch: pytest.MonkeyPatch, lab: str) -> None:
    running(monkeypatch, "demo")
    checked, error = demo._demo(demo.LABS[lab], keep=False)
    assert checked == {}
    assert "down --name demo" in error
