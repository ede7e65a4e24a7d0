"""The gate with pynvml's functions replaced: what it asks, and how failures come out of it.

With a real library, of the simulated driver, it is tested in tests/node/inventory.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from apportion import driver
from apportion.errors import NvmlDeviceError, NvmlUnavailableError
from apportion.inventory import nvml
from apportion.inventory.nvml import Memory, Nvml

from tests.unit.inventory.library import UUID, Library

# Finding and loading.


def test_the_library_is_loaded_by_its_real_absolute_path(library: Library, root: Path) -> None:
    with Nvml(root):
        assert library.loaded == [str(root / driver.LIBRARY_DIRS[0] / "libnvidia-ml.so.580.159.04")]
        assert pynvml.nvmlLib is not None


@pytest.mark.parametrize("folder", driver.LIBRARY_DIRS)
def test_each_known_folder_is_looked_in(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / nvml.LIBRARY).touch()
    assert nvml.find_library(tmp_path) == tmp_path / folder / nvml.LIBRARY


def test_an_absolute_link_stays_inside_the_drivers_root(tmp_path: Path) -> None:
    store = tmp_path / "opt/driver"
    store.mkdir(parents=True)
    (store / nvml.LIBRARY).touch()
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/lib64").symlink_to("/usr/../../opt/./driver")
    assert nvml.find_library(tmp_path) == store / nvml.LIBRARY


@pytest.mark.parametrize("target", [nvml.LIBRARY, "gone", "/gone/../.."])
def test_a_link_to_nothing_is_no_library(tmp_path: Path, target: str) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64" / nvml.LIBRARY).symlink_to(target)
    with pytest.raises(NvmlUnavailableError):
        nvml.find_library(tmp_path)


def test_a_missing_library_is_retryable_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NvmlUnavailableError, match=r"set driver_root.*/run/nvidia/driver") as error:
        Nvml(tmp_path).open()
    assert error.value.code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND


def test_a_file_that_is_no_library_is_retryable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    with pytest.raises(NvmlUnavailableError, match=r"cannot load .*580\.159\.04: "):
        Nvml(root).open()


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_NO_PERMISSION, 31]
)
def test_nvml_that_does_not_start_is_tried_again(library: Library, root: Path, code: int) -> None:
    library.fail("nvmlInit", code)
    gate = Nvml(root)
    with pytest.raises(NvmlUnavailableError, match="cannot start NVML: ") as error:
        gate.open()
    assert error.value.code == code
    with pytest.raises(NvmlUnavailableError, match="NVML is not open"):
        gate.count()
    library.answer("nvmlInit", None)
    gate.open()
    gate.close()


def test_a_process_has_one_gate(gate: Nvml, root: Path) -> None:
    with pytest.raises(RuntimeError, match="one gate"):
        Nvml(root).open()
    gate.close()
    with Nvml(root):
        pass


# Opening again.


def test_open_twice_opens_once_and_close_twice_closes_once(gate: Nvml, library: Library) -> None:
    gate.open()
    gate.close()
    gate.close()
    assert library.calls == ["nvmlInit", "nvmlShutdown"]


def test_a_close_that_fails_is_a_close(gate: Nvml, library: Library) -> None:
    library.fail("nvmlShutdown", pynvml.NVML_ERROR_UNINITIALIZED)
    gate.close()
    gate.open()
    assert library.calls == ["nvmlInit", "nvmlShutdown", "nvmlInit"]


def test_after_a_lost_gpu_the_next_open_starts_anew(gate: Nvml, library: Library) -> None:
    gate.uuid(0)
    library.fail("nvmlDeviceGetName", pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(NvmlDeviceError):
        gate.product_name(UUID)
    library.answer("nvmlDeviceGetName", "Tesla T4")
    assert gate.product_name(UUID) == "Tesla T4"
    library.calls.clear()
    gate.open()
    assert gate.product_name(UUID) == "Tesla T4"
    assert library.calls == [
        "nvmlShutdown",
        "nvmlInit",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetName",
    ]


def test_after_a_failure_of_no_weight_it_is_not_started_anew(gate: Nvml, library: Library) -> None:
    library.fail("nvmlDeviceGetName", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(NvmlDeviceError):
        gate.product_name(UUID)
    gate.open()
    assert "nvmlShutdown" not in library.calls


def test_distrust_starts_anew_and_loads_a_new_driver(
    gate: Nvml, library: Library, root: Path
) -> None:
    folder = root / driver.LIBRARY_DIRS[0]
    (folder / "libnvidia-ml.so.590.1").touch()
    (folder / nvml.LIBRARY).unlink()
    (folder / nvml.LIBRARY).symlink_to("libnvidia-ml.so.590.1")
    pynvml._nvmlGetFunctionPointer_cache["nvmlOld"] = object()
    gate.distrust()
    gate.open()
    assert library.loaded[-1].endswith("/libnvidia-ml.so.590.1")
    assert "nvmlOld" not in pynvml._nvmlGetFunctionPointer_cache


def test_a_handle_is_asked_for_once(gate: Nvml, library: Library) -> None:
    library.answer("nvmlDeviceGetMinorNumber", 3)
    assert gate.uuid(0) == UUID
    assert gate.minor(UUID) == gate.minor(UUID) == 3
    assert library.calls.count("nvmlDeviceGetHandleByIndex") == 1
    assert "nvmlDeviceGetHandleByUUID" not in library.calls


def test_no_two_calls_are_in_the_library_at_once(gate: Nvml, library: Library) -> None:
    inside = threading.Semaphore(1)
    overlaps: list[bool] = []

    def answer(*_arguments: Any) -> int:
        overlaps.append(not inside.acquire(blocking=False))
        never.wait(0.001)
        inside.release()
        return 1

    def work() -> None:
        for _ in range(5):
            gate.product_name(UUID)
            gate.count()

    never = threading.Event()
    library.answers("nvmlDeviceGetName", answer)
    library.answers("nvmlDeviceGetCount", answer)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [False] * 40


def test_nvml_is_not_closed_between_a_handle_and_its_use(gate: Nvml, library: Library) -> None:
    closer = threading.Thread(target=gate.close)

    def handle(_uuid: Any) -> str:
        closer.start()
        closer.join(timeout=0.2)  # it must not come to an end before the reading does
        return "handle"

    library.answers("nvmlDeviceGetHandleByUUID", handle)
    library.answer("nvmlDeviceGetName", "Tesla T4")
    assert gate.product_name(UUID) == "Tesla T4"
    closer.join()
    assert library.calls[-1] == "nvmlShutdown"


# Readings.


def test_readings_of_the_driver(gate: Nvml, library: Library) -> None:
    library.answer("nvmlDeviceGetCount", 2)
    library.answer("nvmlSystemGetDriverVersion", "580.159.04")
    library.answer("nvmlSystemGetCudaDriverVersion_v2", 12080)
    assert gate.count() == 2
    assert gate.driver_version() == "580.159.04"
    assert gate.cuda_driver_version() == (12, 8)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT]
)
def test_a_driver_that_does_not_answer_is_no_gpus_fault(
    gate: Nvml, library: Library, code: int
) -> None:
    library.fail("nvmlDeviceGetCount", code)
    with pytest.raises(NvmlUnavailableError, match="counting GPUs: ") as error:
        gate.count()
    assert error.value.code == code


def test_readings_of_a_gpu(gate: Nvml, library: Library) -> None:
    library.answer("nvmlDeviceGetPciInfo_v3", SimpleNamespace(busId="00000000:3B:00.0"))
    library.answer("nvmlDeviceGetCudaComputeCapability", (7, 5))
    assert gate.pci_bus_id(UUID) == "00000000:3B:00.0"
    assert gate.compute_capability(UUID) == (7, 5)


@pytest.mark.parametrize(("code", "text"), [(2, "Tesla"), (14, "NVIDIA"), (99, "unknown")])
def test_a_brand_is_named_as_nvidia_prints_it(
    gate: Nvml, library: Library, code: int, text: str
) -> None:
    library.answer("nvmlDeviceGetBrand", code)
    assert gate.brand(UUID) == text


@pytest.mark.parametrize(("code", "text"), [(6, "Turing"), (8, "Ada Lovelace"), (99, "unknown")])
def test_an_architecture_is_named_as_nvidia_prints_it(
    gate: Nvml, library: Library, code: int, text: str
) -> None:
    library.answer("nvmlDeviceGetArchitecture", code)
    assert gate.architecture(UUID) == text


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND]
)
def test_what_an_old_driver_does_not_tell_is_unknown(
    gate: Nvml, library: Library, code: int
) -> None:
    for function in ("nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetMigMode"):
        library.fail(function, code)
    assert gate.brand(UUID) == gate.architecture(UUID) == "unknown"
    assert gate.mig_enabled(UUID) is False


def test_another_failure_of_these_is_a_failure(gate: Nvml, library: Library) -> None:
    library.fail("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(NvmlDeviceError, match=f"{UUID}: an internal error"):
        gate.mig_enabled(UUID)


@pytest.mark.parametrize(("modes", "on"), [([0, 0], False), ([1, 0], True), ([0, 1], False)])
def test_mig_is_what_it_is_now_not_after_the_next_reset(
    gate: Nvml, library: Library, modes: list[int], *, on: bool
) -> None:
    library.answer("nvmlDeviceGetMigMode", modes)
    assert gate.mig_enabled(UUID) is on


def test_memory_is_read_by_the_second_version(gate: Nvml, library: Library) -> None:
    library.answers(
        "nvmlDeviceGetMemoryInfo",
        lambda _handle, version: SimpleNamespace(
            total=15360, reserved=443, used=7, free=3, version=version
        ),
    )
    assert gate.memory(UUID) == Memory(total=15360, reserved=443, used=7)
    assert gate.used_memory(UUID) == 7


def test_memory_of_an_old_driver_has_nothing_reserved(gate: Nvml, library: Library) -> None:
    def read(_handle: Any, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=15109, used=1, free=2)

    library.answers("nvmlDeviceGetMemoryInfo", read)
    assert gate.memory(UUID) == Memory(total=15109, reserved=0, used=1)


def test_memory_that_is_refused_is_not_asked_for_in_another_way(
    gate: Nvml, library: Library
) -> None:
    library.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(NvmlDeviceError):
        gate.memory(UUID)
    assert library.calls.count("nvmlDeviceGetMemoryInfo") == 1


def test_bytes_that_are_no_text_are_that_gpus_failure(gate: Nvml, library: Library) -> None:
    library.answers("nvmlDeviceGetName", lambda _handle: b"\xff".decode())
    with pytest.raises(NvmlDeviceError, match="infoROM"):
        gate.product_name(UUID)


def test_closing_waits_for_no_call_that_hangs(
    gate: Nvml, library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nvml, "_CLOSE_S", 0.01)
    inside, release = threading.Event(), threading.Event()

    def hang() -> int:
        inside.set()
        return int(release.wait(20))

    library.answers("nvmlDeviceGetCount", hang)
    caller = threading.Thread(target=gate.count)
    caller.start()
    assert inside.wait(20)
    gate.close()
    assert "nvmlShutdown" not in library.calls
    assert "NVML does not answer" in caplog.text
    release.set()
    caller.join()
    gate.close()
    assert library.calls.count("nvmlShutdown") == 1


@pytest.mark.parametrize(
    ("function", "subject"),
    [
        ("nvmlInit", "starting NVML"),
        ("nvmlShutdown", "shutting NVML down"),
        ("nvmlDeviceGetCount", "counting GPUs"),
    ],
)
def test_what_it_is_at_is_seen_while_it_lasts(
    library: Library, root: Path, function: str, subject: str
) -> None:
    gate = Nvml(root)
    seen: list[str] = []
    library.answer("nvmlDeviceGetCount", 1)

    def look() -> int:
        seen.append("" if gate.busy is None else gate.busy.subject)
        return 1

    library.answers(function, look)
    with gate:
        gate.count()
    assert (seen, gate.busy) == ([subject], None)


def test_a_library_that_hangs_while_it_is_loaded_is_seen(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Nvml(root)
    seen: list[str] = []

    def load(_path: str) -> None:
        seen.append("" if gate.busy is None else gate.busy.subject)
        raise OSError("truncated")

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(NvmlUnavailableError):
        gate.open()
    assert (seen, gate.busy) == (["loading NVML"], None)
