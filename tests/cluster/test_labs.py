"""Both labs as their readers type them, one after the other, on one real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.requests import forms
from tests.cluster.requests.site import Site
from tests.fakes.fakegpu import FakeDriver
from tests.harness import Cluster
from tests.lab import lab_a, lab_b, testbed
from tests.lab.walk import Walk


def kueue_form(walk: Walk) -> None:
    """The form of docs/requests.md that needs Kueue; there is room in the queue for it."""
    (node,) = walk.cluster.options.nodes
    assert node.fakegpu_dir
    (form,) = forms.needing("Kueue")
    forms.check(Site(walk.cluster, {node.name: FakeDriver(node.fakegpu_dir)}), form)


_LAB_B = (*lab_b.STEPS[:-2], kueue_form, *lab_b.STEPS[-2:])

# They need both cards, or what such a step has made or counts.
_SECOND_CARD = (
    *(lab_a.two_cards, lab_a.status),
    *(lab_b.shares, lab_b.one_quota, lab_b.uncounted, lab_b.not_understood, lab_b.training),
    kueue_form,
)
_STEPS = [
    pytest.param(
        step,
        id=f"{lab}-{step.__name__}",
        marks=[pytest.mark.unless("second-card")] if step in _SECOND_CARD else [],
    )
    for lab, steps in (("a", lab_a.STEPS), ("b", _LAB_B))
    for step in steps
]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, kueue_image: Path) -> Iterator[Walk]:
    folder: Path = tmp_path_factory.mktemp("labs")
    options = testbed.options(folder / "fakegpu", name="labs", images=(kueue_image,))
    with Cluster(options) as cluster:
        yield Walk(cluster)


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("step", _STEPS)
def test_step(walk: Walk, step: lab_a.Step) -> None:
    step(walk)
