"""A node with a guard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.support.apiserver import ApiServer, add_node
from tests.node.watch import node as nodes
from tests.shim import support


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[nodes.Node]:
    with support.memory_folder() as folder:
        monkeypatch.setenv("FAKEGPU_DIR", str(folder / "state"))
        with nodes.node(folder) as made:
            yield made


@pytest.fixture
def node_name(api_server: ApiServer) -> str:
    """A Node at the API server; `node` is another thing here."""
    add_node(api_server, "guarded")
    return "guarded"
