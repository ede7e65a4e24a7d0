"""A node whose disk does not slow the tests down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.node.prepare.world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    return World(tmp_path)
