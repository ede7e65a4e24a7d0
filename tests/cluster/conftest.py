"""A cluster for the tests that share one, built before the first of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Cluster, ClusterOptions, HarnessError, kueue, requirements
from tests.harness.versions import DEFAULT_KUBERNETES, KUBERNETES

_HERE = Path(__file__).parent
_TIMEOUT = 180  # seconds for a test; a cluster's start has a limit of its own


_FAULTS = KUBERNETES[DEFAULT_KUBERNETES].faults


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "unless(fault): not on a Kubernetes with this in its table")


def _leave_out_what_is_not_there(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of what this Kubernetes does not do; $TEST_ABSENT_FILE gets why."""
    why = {
        item: _FAULTS[mark.args[0]]
        for item in items
        for mark in item.iter_markers("unless")
        if mark.args[0] in _FAULTS
    }
    if not why:
        return
    config.hook.pytest_deselected(items=list(why))
    items[:] = [item for item in items if item not in why]
    if "TEST_ABSENT_FILE" in os.environ:
        lines = "".join(f"{reason}\n" for reason in why.values())
        Path(os.environ["TEST_ABSENT_FILE"]).write_text(lines)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_out_what_is_not_there(config, items)
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
        if any("kueue_image" in getattr(item, "fixturenames", ()) for item in ours):
            kueue.image()


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


@pytest.fixture(scope="session")
def kueue_image() -> Path:
    """Archive of Kueue's image; a fixture, so that it is built before the first test."""
    return kueue.image()
