from __future__ import annotations

import pytest

from tests.harness import ClusterOptions, HarnessError, NodeOptions


def test_the_default_is_one_node() -> None:
    assert [node.name for node in ClusterOptions().nodes] == ["node-a"]


@pytest.mark.parametrize("name", ["", "Node", "a_b", "-a", "a" * 60, "a/b"])
def test_names_that_kubernetes_or_paths_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(HarnessError, match="label"):
        NodeOptions(name)
    with pytest.raises(HarnessError, match="label"):
        ClusterOptions(name=name)


@pytest.mark.parametrize("names", [[], ["a", "a"], list("abcdefghi")])
def test_no_nodes_twins_and_too_many_are_refused(names: list[str]) -> None:
    with pytest.raises(HarnessError, match="different names"):
        ClusterOptions(nodes=tuple(NodeOptions(name) for name in names))


def test_a_node_may_not_be_called_as_the_control_plane() -> None:
    with pytest.raises(HarnessError, match="control-plane"):
        NodeOptions("control-plane")
