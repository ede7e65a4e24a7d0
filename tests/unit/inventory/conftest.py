"""The gate to NVML, open on a library that answers as a test tells it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from apportion import driver
from apportion.inventory import nvml
from apportion.inventory.nvml import Nvml

from tests.unit.inventory.library import Library


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    found = Library(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", found.load)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / driver.LIBRARY_DIRS[0]
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.580.159.04").touch()
    (folder / nvml.LIBRARY).symlink_to("libnvidia-ml.so.580.159.04")
    return tmp_path / "root"


@pytest.fixture
def gate(library: Library, root: Path) -> Iterator[Nvml]:
    assert library.loaded == []
    with Nvml(root) as opened:
        yield opened
