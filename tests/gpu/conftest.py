"""What the tests before a real card share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import support
from tests.shim.support import memory_folder

_NODE = Path("/dev/nvidiactl")
_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if not _NODE.exists():
                item.add_marker(pytest.mark.skip(reason="the gpu tier needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def shim() -> Path:
    """The front libraries, built here."""
    return support.build()


@pytest.fixture
def share(shim: Path) -> Iterator[support.Share]:
    """A share of 4096 MiB of the first card."""
    with memory_folder() as folder:
        yield support.Share.make(shim, folder)
