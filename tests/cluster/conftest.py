"""The cluster tier: one way to skip it, and a cluster for the tests that share one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Cluster, ClusterOptions, HarnessError, requirements

_HERE = Path(__file__).parent
_TIMEOUT = 180  # seconds for a test; a cluster's start has a limit of its own


def _is_required() -> bool:
    """In CI a tier that can't run is a failure, not a skip."""
    return (
        os.environ.get("CI", "").lower() in {"1", "true"}
        or os.environ.get("REQUIRE_TEST_CLUSTER") == "1"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if _HERE in item.path.parents]
    reason = requirements.missing() if ours else None
    for item in ours:
        item.add_marker(pytest.mark.cluster)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT, func_only=True))
        if reason and not _is_required():
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if _is_required() and _HERE in item.path.parents:
        reason = requirements.missing()
        if reason:
            pytest.fail(f"{reason} (CI or REQUIRE_TEST_CLUSTER is set: not skipped)")


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
