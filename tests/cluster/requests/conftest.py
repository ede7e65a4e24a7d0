"""One cluster for all forms of requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.requests.site import Site, drivers, install, options
from tests.harness import Cluster


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("requests")
    with Cluster(options(folder)) as cluster:
        made = Site(cluster, drivers(folder))
        install(made)
        yield made
