"""The inventory through pynvml and a real libnvidia-ml, that of the simulated driver."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from apportion.errors import NvmlDeviceError, NvmlUnavailableError
from apportion.inventory import vitals
from apportion.inventory.nvml import Nvml
from apportion.inventory.patience import Patience
from apportion.inventory.scan import scan
from apportion.model import Gpu, GpuUuid

from tests.fakes import fakegpu
from tests.fakes.fakegpu import DEFAULT_GPUS, MIB, FakeDriver

FIRST, SECOND = DEFAULT_GPUS
SYSFS = Path("/nonexistent")


@pytest.fixture(scope="module")
def build() -> Path:
    return fakegpu.build()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(tmp_path / "state")
    found.write_config()
    monkeypatch.setenv("FAKEGPU_DIR", str(found.state_dir))
    return found


@pytest.fixture
def nvml(build: Path, driver: FakeDriver) -> Iterator[Nvml]:
    assert driver.config.exists()
    with Nvml(build / "rootfs") as opened:
        yield opened


def test_the_compute_mode_is_the_drivers(nvml: Nvml, driver: FakeDriver) -> None:
    nvml.open()
    assert vitals.compute_mode(nvml, GpuUuid(FIRST.uuid)) == 0
    driver.set_option(0, "compute_mode", "3")
    assert vitals.compute_mode(nvml, GpuUuid(FIRST.uuid)) == 3


def test_two_t4s_are_read_as_they_are_configured(nvml: Nvml) -> None:
    found = scan(nvml, SYSFS)
    assert found.excluded == ()
    first = Gpu(
        uuid=GpuUuid(FIRST.uuid),
        index=0,
        minor=0,
        pci_bus_id="0000:3b:00.0",
        pcie_root=None,
        numa_node=None,
        product_name="Tesla T4",
        brand="Tesla",
        architecture="Turing",
        driver_version="580.159.04",
        cuda_driver_version=(13, 0),
        compute_capability=(7, 5),
        memory_total=15360 * MIB,
        memory_reserved=443 * MIB,
        mig_enabled=False,
    )
    second = dataclasses.replace(
        first, uuid=GpuUuid(SECOND.uuid), index=1, minor=1, pci_bus_id="0000:af:00.0"
    )
    assert found.gpus == (first, second)


def test_the_library_comes_from_the_drivers_root(nvml: Nvml, build: Path) -> None:
    assert nvml.count() == 2
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    loaded = {line.split()[-1] for line in maps.splitlines() if "libnvidia-ml" in line}
    assert str(build / "rootfs" / fakegpu.LIBDIR / "libnvidia-ml.so.580.159.04") in loaded


def test_a_lost_gpu_degrades_alone_and_comes_back(nvml: Nvml, driver: FakeDriver) -> None:
    driver.lose(0)
    found = scan(nvml, SYSFS)
    assert [gpu.uuid for gpu in found.gpus] == [SECOND.uuid]
    (excluded,) = found.excluded
    assert excluded.identity == "GPU 0"
    assert "GPU 0: the GPU is lost" in excluded.reason
    driver.clear()
    assert [gpu.uuid for gpu in scan(nvml, SYSFS).gpus] == [FIRST.uuid, SECOND.uuid]


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED, "no memory information"),
        ("nvmlDeviceGetMinorNumber", pynvml.NVML_ERROR_NOT_SUPPORTED, "does not support it"),
        ("nvmlDeviceGetUUID", pynvml.NVML_ERROR_RESET_REQUIRED, "must be reset"),
        ("nvmlDeviceGetName", pynvml.NVML_ERROR_UNKNOWN, "internal error"),
        ("nvmlDeviceGetPciInfo", 777, "does not know (NVML code 777)"),
    ],
)
def test_a_gpu_that_cannot_be_read_degrades_alone(
    nvml: Nvml, driver: FakeDriver, function: str, code: int, words: str
) -> None:
    driver.inject(1, function, code)
    found = scan(nvml, SYSFS)
    assert [gpu.uuid for gpu in found.gpus] == [FIRST.uuid]
    (excluded,) = found.excluded
    assert words in excluded.reason


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2"])
def test_one_timeout_withdraws_no_gpu_and_a_lost_one_goes_at_once(
    nvml: Nvml, driver: FakeDriver, function: str
) -> None:
    patience = Patience(3)
    whole = patience.settle(scan(nvml, SYSFS))
    driver.inject(0, function, pynvml.NVML_ERROR_TIMEOUT)
    assert patience.settle(scan(nvml, SYSFS)) == whole
    driver.clear()
    driver.lose(0)
    assert [gpu.uuid for gpu in patience.settle(scan(nvml, SYSFS)).gpus] == [SECOND.uuid]


def test_a_gpu_in_mig_mode_is_left_out(build: Path, driver: FakeDriver) -> None:
    driver.write_config([FIRST, dataclasses.replace(SECOND, mig="enabled")])
    with Nvml(build / "rootfs") as nvml:
        found = scan(nvml, SYSFS)
    assert [gpu.uuid for gpu in found.gpus] == [FIRST.uuid]
    assert found.excluded[0].identity == f"{SECOND.uuid} (0000:af:00.0)"
    assert "MIG mode is on" in found.excluded[0].reason


def test_a_gpu_with_mig_off_is_a_gpu(build: Path, driver: FakeDriver) -> None:
    driver.write_config([dataclasses.replace(FIRST, mig="disabled")])
    with Nvml(build / "rootfs") as nvml:
        assert len(scan(nvml, SYSFS).gpus) == 1


def test_a_driver_without_the_second_memory_call_reserves_nothing(
    nvml: Nvml, driver: FakeDriver
) -> None:
    driver.inject(0, "nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert scan(nvml, SYSFS).gpus[0].memory_reserved == 0


def test_a_driver_that_is_unloaded_is_noticed_and_found_again(
    nvml: Nvml, driver: FakeDriver
) -> None:
    scan(nvml, SYSFS)
    driver.unload()
    for _ in range(2):
        with pytest.raises(NvmlUnavailableError):
            scan(nvml, SYSFS)
    with pytest.raises(NvmlUnavailableError, match="not open"):
        nvml.used_memory(GpuUuid(FIRST.uuid))
    driver.write_config([SECOND])
    assert [gpu.uuid for gpu in scan(nvml, SYSFS).gpus] == [SECOND.uuid]


def test_an_updated_driver_is_loaded_beside_the_old_one(
    build: Path, driver: FakeDriver, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(build / "rootfs", root, symlinks=True)
    folder = root / fakegpu.LIBDIR
    with Nvml(root) as nvml:
        scan(nvml, SYSFS)
        driver.inject(None, "nvmlDeviceGetCount", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        with pytest.raises(NvmlUnavailableError, match="different driver versions"):
            scan(nvml, SYSFS)
        (folder / "libnvidia-ml.so.580.159.04").rename(folder / "libnvidia-ml.so.590.1")
        shutil.copy(folder / "libnvidia-ml.so.590.1", folder / "new")
        (folder / "new").rename(folder / "libnvidia-ml.so.590.1")
        (folder / "libnvidia-ml.so.1").unlink()
        (folder / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.590.1")
        driver.write_config(version="590.1")
        assert scan(nvml, SYSFS).gpus[0].driver_version == "590.1"
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(folder / "libnvidia-ml.so.590.1") in maps


def test_a_gpu_that_comes_later_is_seen_when_there_was_none(
    build: Path, driver: FakeDriver
) -> None:
    driver.write_config([])
    with Nvml(build / "rootfs") as nvml:
        assert scan(nvml, SYSFS).gpus == ()
        driver.write_config()
        assert len(scan(nvml, SYSFS).gpus) == 2


def test_what_a_process_holds_is_read_from_outside(
    nvml: Nvml, driver: FakeDriver, build: Path
) -> None:
    uuid = GpuUuid(FIRST.uuid)
    assert nvml.used_memory(uuid) == 0
    with subprocess.Popen(
        [str(build / "bin" / "cudamem"), "alloc", "256Mi", "--hold", "60"],
        env=os.environ | driver.environment(build),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while line := process.stdout.readline():  # it says so when it has the memory
            if line.startswith("cuMemAlloc"):
                break
        try:
            held = (256 + FIRST.context_mib) * MIB
            assert nvml.used_memory(uuid) == held
        finally:
            process.kill()
    assert nvml.used_memory(uuid) == 0


def test_an_unknown_uuid_is_a_devices_failure(nvml: Nvml) -> None:
    with pytest.raises(NvmlDeviceError):
        nvml.used_memory(GpuUuid("GPU-00000000-0000-0000-0000-000000000000"))
