"""Lab A as its reader types it, on the real API server, kubelet and containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Cluster
from tests.lab import lab_a, testbed
from tests.lab.walk import Walk


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder: Path = tmp_path_factory.mktemp("lab-a")
    with Cluster(testbed.options(folder / "fakegpu", name="lab-a")) as cluster:
        yield Walk(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", lab_a.STEPS, ids=lambda step: step.__name__)
def test_step(walk: Walk, step: lab_a.Step) -> None:
    step(walk)
