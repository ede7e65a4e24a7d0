"""Fixtures of the shim tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shim import support


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    assert support.is_root(), "the shim tier makes mount namespaces: run it as root"
    support.build()


@pytest.fixture
def context_mib() -> int:
    """What a context takes of a card; a module about contexts has a fixture of its own."""
    return 0


@pytest.fixture
def container(tmp_path: Path, context_mib: int) -> Iterator[support.Container]:
    """A container on a node with two simulated T4s, without any share yet."""
    conf = support.gpus_conf(context_mib=context_mib)
    state = support.state_folder(tmp_path / "state", conf)
    with support.memory_folder() as folder:
        yield support.Container(folder, state)
    # Where support.watched_by lets a sanitizer write.
    assert [path.read_text() for path in state.glob("sanitizer.*")] == []
