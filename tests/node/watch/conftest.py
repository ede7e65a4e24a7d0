"""A node with a guard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.support.apiserver import ApiServer, add_node
from tests.node.watch import node as nodes
from tests.shim import support


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    support.build()
    support.make_cache()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nodes.Node]:
    monkeypatch.setenv("FAKEGPU_DIR", str(tmp_path / "state"))
    with nodes.node(tmp_path) as made:
        yield made


@pytest.fixture
def node_name(api_server: ApiServer) -> str:
    """A Node at the API server; `node` is another thing here."""
    add_node(api_server, "guarded")
    return "guarded"
