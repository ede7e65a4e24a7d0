"""Xids and readings of the simulated driver, through the gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from apportion.errors import NvmlDeviceError
from apportion.inventory import vitals
from apportion.inventory.nvml import Nvml
from apportion.inventory.scan import scan
from apportion.inventory.xids import Event
from apportion.model import GpuUuid, Vitals

from tests.fakes import fakegpu
from tests.fakes.fakegpu import DEFAULT_GPUS, FakeDriver
from tests.node.support.kubelet import until

FIRST, SECOND = (GpuUuid(gpu.uuid) for gpu in DEFAULT_GPUS)
GOOD = Vitals(uncorrected=0, remap_pending=False, recovery=0, thermal=False)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(tmp_path / "state")
    found.write_config()
    monkeypatch.setenv("FAKEGPU_DIR", str(found.state_dir))
    return found


@pytest.fixture
def nvml(driver: FakeDriver) -> Iterator[Nvml]:
    assert driver.config.exists()
    with Nvml(fakegpu.build() / "rootfs") as opened:
        assert opened.watch([FIRST, SECOND]) == ()
        yield opened


def test_xids_come_once_with_their_gpu(nvml: Nvml, driver: FakeDriver) -> None:
    assert nvml.events() == []
    driver.set_xid(0, 13)
    driver.set_xid(1, 79)
    assert nvml.events() == [Event(FIRST, 13), Event(SECOND, 79)]
    assert nvml.events() == []
    driver.set_xid(1, 79)
    assert nvml.events() == [Event(SECOND, 79)]


def test_a_lost_gpus_xid_is_still_known_to_be_its(nvml: Nvml, driver: FakeDriver) -> None:
    driver.lose(1)
    driver.set_xid(1, 79)
    assert nvml.events() == [Event(SECOND, 79)]


def test_a_new_start_of_nvml_loses_no_xid_and_watches_on(nvml: Nvml, driver: FakeDriver) -> None:
    driver.set_xid(0, 62)
    nvml.distrust()
    nvml.open()
    driver.set_xid(0, 79)
    assert nvml.events() == [Event(FIRST, 62), Event(FIRST, 79)]


def test_a_gpu_without_events_is_told_and_the_others_are_watched(
    nvml: Nvml, driver: FakeDriver
) -> None:
    driver.set_option(0, "events", "no")
    nvml.distrust()
    nvml.open()
    assert nvml.watch([FIRST, SECOND]) == (FIRST,)
    driver.set_xid(1, 48)
    assert nvml.events() == [Event(SECOND, 48)]
    driver.set_option(0, "events", "yes")
    assert nvml.watch([FIRST, SECOND]) == ()


def test_a_driver_without_event_sets_is_tolerated(driver: FakeDriver) -> None:
    driver.inject(None, "nvmlEventSetCreate", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with Nvml(fakegpu.build() / "rootfs") as nvml:
        assert nvml.watch([FIRST, SECOND]) == (FIRST, SECOND)
        assert nvml.events() == []


def test_a_t4_that_is_well(nvml: Nvml) -> None:
    assert vitals.read(nvml, FIRST) == GOOD


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"ecc_uncorrected": "3"}, {"uncorrected": 3}),
        ({"remap_pending": "1"}, {"remap_pending": True}),
        ({"recovery_action": "2"}, {"recovery": 2}),
        ({"clock_reasons": "32"}, {"thermal": True}),
        ({"clock_reasons": "64"}, {"thermal": True}),
        # The power limit, idleness and synchronised clocks.
        ({"clock_reasons": str(0x1 | 0x4 | 0x10 | 0x80)}, {}),
        ({"remap": "1"}, {"remap_failed": False}),
        ({"remap": "1", "remap_failed": "1"}, {"remap_failed": True}),
        ({"compute_capability": "9.0"}, {"contains": True}),
    ],
)
def test_each_reading(
    nvml: Nvml, driver: FakeDriver, options: dict[str, str], wanted: dict[str, object]
) -> None:
    for name, value in options.items():
        driver.set_option(0, name, value)
    found = vitals.read(nvml, FIRST)
    names = ("uncorrected", "remap_failed", "remap_pending", "recovery", "thermal", "contains")
    there = {name: getattr(found, name) for name in names}
    assert there == {name: getattr(GOOD, name) for name in names} | wanted


def test_i18_what_a_driver_does_not_have_is_not_known(nvml: Nvml, driver: FakeDriver) -> None:
    for function in (
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        driver.inject(0, function, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert vitals.read(nvml, FIRST) == Vitals()


def test_the_old_name_of_the_clocks_reasons_does(nvml: Nvml, driver: FakeDriver) -> None:
    missing = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    driver.inject(0, "nvmlDeviceGetCurrentClocksEventReasons", missing)
    driver.set_option(0, "clock_reasons", "64")
    assert vitals.read(nvml, FIRST).thermal


def test_a_lost_gpu_cannot_be_read(nvml: Nvml, driver: FakeDriver) -> None:
    driver.lose(0)
    with pytest.raises(NvmlDeviceError) as raised:
        vitals.read(nvml, FIRST)
    assert raised.value.code == pynvml.NVML_ERROR_GPU_IS_LOST


def test_who_waits_in_the_driver_is_seen_without_waiting(nvml: Nvml, driver: FakeDriver) -> None:
    assert nvml.busy is None
    before = time.monotonic()
    driver.hang(1, "nvmlDeviceGetMemoryInfo", 500)
    thread = threading.Thread(target=lambda: scan(nvml, Path("/nonexistent")))
    thread.start()
    until(lambda: nvml.busy is not None and nvml.busy.subject == SECOND)
    busy = nvml.busy
    assert busy is None or busy.since >= before
    thread.join()
    assert nvml.busy is None
