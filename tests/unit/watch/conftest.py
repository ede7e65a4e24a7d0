from __future__ import annotations

from pathlib import Path

import pytest
from apportion.watch.health import Health

from tests.unit.watch.played import BOTH, Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "plugin")


@pytest.fixture
def health(site: Site) -> Health:
    found = site.start()
    found.settle(BOTH)
    return found
