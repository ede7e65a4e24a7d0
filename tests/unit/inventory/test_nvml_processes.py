"""The processes on a GPU, out of the lists that NVML has of them."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from apportion.errors import NvmlDeviceError, NvmlUnavailableError
from apportion.inventory import nvml
from apportion.inventory.nvml import GpuProcess, Nvml

from tests.unit.inventory.library import UUID, Library

NOT_SUPPORTED, NO_FUNCTION, LOST = 3, 13, 15


def _list(*processes: tuple[int, int | None]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in processes]


@pytest.fixture
def lists(library: Library) -> Library:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for version in ("_v3", "_v2"):
            library.answer(f"nvmlDeviceGet{kind}RunningProcesses{version}", _list())
    return library


def test_one_that_computes_and_draws_is_one(gate: Nvml, lists: Library) -> None:
    lists.answer("nvmlDeviceGetComputeRunningProcesses_v3", _list((9, 50), (7, 100)))
    lists.answer("nvmlDeviceGetGraphicsRunningProcesses_v3", _list((9, 50), (8, 20)))
    lists.answer("nvmlDeviceGetMPSComputeRunningProcesses_v3", _list((7, 100)))
    assert gate.processes(UUID) == (GpuProcess(7, 100), GpuProcess(8, 20), GpuProcess(9, 50))


def test_what_is_not_said_is_not_nothing(gate: Nvml, lists: Library) -> None:
    lists.answer("nvmlDeviceGetComputeRunningProcesses_v3", _list((7, None), (8, None), (9, 0)))
    lists.answer("nvmlDeviceGetGraphicsRunningProcesses_v3", _list((8, 20)))
    assert gate.processes(UUID) == (GpuProcess(7, None), GpuProcess(8, 20), GpuProcess(9, 0))


def test_a_driver_with_the_second_version_only(gate: Nvml, lists: Library) -> None:
    for kind in ("Compute", "Graphics", "MPSCompute"):
        lists.fail(f"nvmlDeviceGet{kind}RunningProcesses_v3", NO_FUNCTION)
    lists.answer("nvmlDeviceGetComputeRunningProcesses_v2", _list((7, 100)))
    assert gate.processes(UUID) == (GpuProcess(7, 100),)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_FUNCTION])
def test_a_driver_without_a_list_of_clients_of_mps(gate: Nvml, lists: Library, code: int) -> None:
    for version in ("_v3", "_v2"):
        lists.fail(f"nvmlDeviceGetMPSComputeRunningProcesses{version}", code)
    assert gate.processes(UUID) == ()


def test_without_the_first_list_nothing_is_known(gate: Nvml, lists: Library) -> None:
    for version in ("_v3", "_v2"):
        lists.fail(f"nvmlDeviceGetComputeRunningProcesses{version}", NOT_SUPPORTED)
    with pytest.raises(NvmlDeviceError):
        gate.processes(UUID)


def test_a_list_that_fails_is_no_empty_one(gate: Nvml, lists: Library) -> None:
    lists.fail("nvmlDeviceGetGraphicsRunningProcesses_v3", LOST)
    with pytest.raises(NvmlDeviceError):
        gate.processes(UUID)


def test_a_call_that_hangs_is_not_waited_for(
    gate: Nvml,
    lists: Library,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvml, "_BUSY_S", 0.01)
    hangs, over = threading.Event(), threading.Event()

    def hang(*_arguments: object) -> int:
        hangs.set()
        over.wait(20)
        return 1

    lists.answers("nvmlDeviceGetCount", hang)
    other = threading.Thread(target=gate.count)
    other.start()
    hangs.wait(20)
    with pytest.raises(NvmlUnavailableError, match="did not answer in time"):
        gate.processes(UUID)
    over.set()
    other.join()
