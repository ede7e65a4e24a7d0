"""The places of bench/cores: shares have room for the contexts of all their loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.cores.places import CONTEXT_MIB, Simulated
from bench.cores.scenes import LATENCY_LOADS
from tests.fakes import FakeDriver
from tests.shim import support
from tests.shim.schedules import MS

PERIOD = 100 * MS


@pytest.fixture
def room() -> Iterator[tuple[Path, ExitStack]]:
    with support.memory_folder() as folder, ExitStack() as stack:
        yield folder, stack


def test_a_share_has_room_for_all_of_its_loads(room: tuple[Path, ExitStack]) -> None:
    place = Simulated(*room)
    loads = place.tenants(0, 30, (0, 30 * MS), PERIOD, LATENCY_LOADS)
    assert FakeDriver(place.state).used(0) == LATENCY_LOADS * CONTEXT_MIB * support.MIB
    # What they are told to do is done, too.
    assert [load.ask("sync") for load in loads] == [0] * LATENCY_LOADS


def test_a_load_without_room_for_its_context_says_so(room: tuple[Path, ExitStack]) -> None:
    place = Simulated(*room, context_mib=1500)
    with pytest.raises(SystemExit, match=r"CUDA error 2; its share has 1024 MiB .* too little"):
        place.tenants(0, 30, (0, 30 * MS), PERIOD)
