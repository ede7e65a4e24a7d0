"""What the tests before a real card share."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import support
from tests.shim.support import memory_folder

_NODE = Path("/dev/nvidiactl")
_HERE = Path(__file__).parent


def _find_plugin() -> None:
    """Let the plugin be imported from the work tree where it is not installed, children included.

    The parts that are used here need nothing but Python, so a machine without a network has them.
    """
    try:
        importlib.metadata.version("apportion")
    except importlib.metadata.PackageNotFoundError:
        told = _HERE.parents[1] / "build" / "gpu-plugin"
        about = told / "apportion-0.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: apportion\nVersion: 0\n")
        folders = [str(_HERE.parents[1] / "plugin"), str(told)]
        sys.path[:0] = folders
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [before])])


_find_plugin()


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
