"""A cluster for the tests that share one, built before the first of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Cluster, ClusterOptions, HarnessError, requirements

_HERE = Path(__file__).parent
_TIMEOUT = 180  # seconds for a test; a cluster's start has a limit of its own


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT, func_only=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build everything before the first test, whose time limit it would break, and say so."""
    ours = [item for item in session.items if _HERE in item.path.parents]
    if not ours or session.config.option.collectonly or requirements.missing():
        return
    # What fails here fails again, with its words, in the first test that starts a cluster.
    with _capture_off(session.config), contextlib.suppress(HarnessError):
        Cluster.build()


@contextlib.contextmanager
def _capture_off(config: pytest.Config) -> Iterator[None]:
    """A person who waits sees how far it is."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        yield


@pytest.fixture(scope="session")
def cluster_options() -> ClusterOptions:
    """What the shared cluster is like; a folder's own conftest.py may override it."""
    return ClusterOptions()


@pytest.fixture(scope="session")
def cluster(cluster_options: ClusterOptions) -> Iterator[Cluster]:
    """One cluster for all tests that ask for it, started when the first one does."""
    shared = Cluster(cluster_options)
    shared.start()
    yield shared
    shared.stop()
