"""While one thread is in the driver, another concludes nothing from the driver's word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.fakegpu import FakeDriver
from tests.shim.overhead import CONTEXT, CONTEXT_MIB, LIMIT, agree
from tests.shim.support import MIB, OK, OOM, Client, Container

SIZE = 100 * MIB
HANG_MS = 2000
SCRIPT = Path(__file__).parent / "inside_driver.py"


@pytest.fixture
def context_mib() -> int:
    return CONTEXT_MIB


@pytest.mark.parametrize(("call", "hung"), [("linear", "cuMemAlloc_v2"), ("create", "cuMemCreate")])
def test_an_allocation_in_the_driver_lowers_no_overhead(
    container: Container, call: str, hung: str
) -> None:
    share, driver = container.share(LIMIT), FakeDriver(container.state)
    with Client(container.command(sys.executable, str(SCRIPT), call, str(SIZE)), None) as app:
        assert app.read() == [OK]
        assert agree(container, share) == CONTEXT
        driver.hang(None, hung, HANG_MS)
        assert app.ask("go") == [OK, CONTEXT + SIZE], "told by the other thread meanwhile"
        assert app.read() == [OK]
        driver.clear()
        assert agree(container, share) == CONTEXT + SIZE
        with container.client() as other:
            assert other.ask("start", 0) == [OK]
            assert other.alloc(LIMIT - 2 * CONTEXT - SIZE + 2 * MIB) == OOM
        assert share.peak <= LIMIT
