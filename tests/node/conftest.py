"""What the tests of this tier share: a real API server, and folders with short paths."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import golang
from tests.harness.versions import DEFAULT_KUBERNETES
from tests.node.support.apiserver import ApiServer, add_node
from tests.node.support.proxy import Proxy
from tests.node.support.site import Site, site_of
from tests.shim import support

_NUMBER = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    support.build()


@pytest.fixture(scope="session")
def kubernetes_programs() -> Path:
    """Folder with etcd and kube-apiserver; $KUBERNETES_PROGRAMS names one that is there."""
    own = os.environ.get("KUBERNETES_PROGRAMS")
    return Path(own) if own else golang.kubernetes(DEFAULT_KUBERNETES)


@pytest.fixture(scope="session")
def api_server(
    kubernetes_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    with ApiServer(kubernetes_programs, tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture(scope="session")
def gateless_server(
    kubernetes_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """One that drops the fields of consumable capacity."""
    gates = {"DRAConsumableCapacity": False}
    with ApiServer(kubernetes_programs, tmp_path_factory.mktemp("gateless"), gates) as server:
        yield server


@pytest.fixture(scope="session")
def taintless_server(
    kubernetes_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """One that drops device taints, as those of 1.34 and 1.35 do by default."""
    gates = {"DRADeviceTaints": False}
    with ApiServer(kubernetes_programs, tmp_path_factory.mktemp("taintless"), gates) as server:
        yield server


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[Proxy]:
    with Proxy(api_server) as running:
        yield running


@pytest.fixture
def node(api_server: ApiServer) -> str:
    """A new Node at the API server."""
    name = f"node-{next(_NUMBER)}"
    add_node(api_server, name)
    return name


@pytest.fixture
def site(api_server: ApiServer, node: str, short: Path) -> Iterator[Site]:
    """A node for the whole plugin."""
    with site_of(api_server, node, short) as made:
        yield made


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the names of unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="ap-"))
    yield path
    shutil.rmtree(path)
