"""What the tests of MPS daemons have in common."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.mps.support import Node


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    made = Node(folder)
    yield made
    made.end()
    shutil.rmtree(folder)
