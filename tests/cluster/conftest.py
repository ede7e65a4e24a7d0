"""The cluster tier: one way to skip it, and a cluster for the tests that share one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import Cluster, ClusterOptions, requirements

_HERE = Path(__file__).parent
_TIMEOUT = 180  # seconds for a test; fixtures have limits of their own, and the first builds


def _is_required() -> bool:
    """In CI a tier that can't run is a failure, not a skip."""
    return (
        os.environ.get("CI", "").lower() in {"1", "true"}
        or os.environ.get("APPORTION_REQUIRE_CLUSTER") == "1"
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
            pytest.fail(f"{reason} (CI or APPORTION_REQUIRE_CLUSTER is set: not skipped)")


@pytest.fixture(scope="session")
def spoken(request: pytest.FixtureRequest) -> Callable[[Callable[[], None]], None]:
    """Run something slow with pytest's capture off, so that a person sees how far it is."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def run(action: Callable[[], None]) -> None:
        with capture.global_and_fixture_disabled():
            print(flush=True)
            action()

    return run


@pytest.fixture(scope="session")
def cluster_options() -> ClusterOptions:
    """What the shared cluster is like; a folder's own conftest.py may override it."""
    return ClusterOptions()


@pytest.fixture(scope="session")
def cluster(
    cluster_options: ClusterOptions, spoken: Callable[[Callable[[], None]], None]
) -> Iterator[Cluster]:
    """One cluster for all tests that ask for it, started when the first one does."""
    shared = Cluster(cluster_options)
    spoken(shared.start)
    yield shared
    shared.stop()
