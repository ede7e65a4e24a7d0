from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from apportion.errors import NvmlUnavailableError
from apportion.inventory import nvml as gate
from apportion.inventory import scan
from apportion.inventory.nvml import Memory
from apportion.model import Excluded, Gpu, GpuUuid, Inventory

from tests.fakes import samples
from tests.fakes.samples import MIB
from tests.fakes.sysfs import add_device

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_DRIVER = pynvml.NVML_ERROR_DRIVER_NOT_LOADED


class Cards:
    """NVML with the GPUs that a test gives it, and failures by (GPU's UUID, reading)."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.failures: dict[tuple[str, str], int] = {}
        self.opened = 0
        self.distrusted = False

    def __getattr__(self, reading: str) -> Callable[[GpuUuid], Any]:
        def read(uuid: GpuUuid) -> Any:
            self._fail(uuid, reading)
            (gpu,) = (gpu for gpu in self.gpus if gpu.uuid == uuid)
            return getattr(gpu, reading)

        return read

    def _fail(self, uuid: str, reading: str) -> None:
        if (uuid, reading) in self.failures:
            raise gate.failure(self.failures[uuid, reading], uuid)

    def open(self) -> None:
        self._fail("", "open")
        self.opened += 1

    def distrust(self) -> None:
        self.distrusted = True

    def count(self) -> int:
        return len(self.gpus)

    def driver_version(self) -> str:
        self._fail("", "driver_version")
        return "580.159.04"

    def cuda_driver_version(self) -> tuple[int, int]:
        return (13, 0)

    def uuid(self, index: int) -> GpuUuid:
        self._fail(self.gpus[index].uuid, "uuid")
        return self.gpus[index].uuid

    def pci_bus_id(self, uuid: GpuUuid) -> str:
        (gpu,) = (gpu for gpu in self.gpus if gpu.uuid == uuid)
        self._fail(uuid, "pci_bus_id")
        return "0000" + gpu.pci_bus_id.upper()

    def memory(self, uuid: GpuUuid) -> Memory:
        self._fail(uuid, "memory")
        (gpu,) = (gpu for gpu in self.gpus if gpu.uuid == uuid)
        return Memory(gpu.memory_total, gpu.memory_reserved, 0)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    for index in range(3):
        add_device(tmp_path, samples.gpu(index).pci_bus_id)
    return tmp_path


def test_a_gpu_is_read_whole(sysfs: Path) -> None:
    cards = Cards(samples.gpu(0))
    found = scan.scan(cards, sysfs)
    assert found.gpus == (samples.gpu(0),)
    assert found.excluded == ()
    assert cards.opened == 1
    assert not cards.distrusted


def test_gpus_come_by_pci_address_whatever_their_index(tmp_path: Path) -> None:
    addresses = ["10000:01:00.0", "0000:af:00.0", "0000:3b:00.0", "2000:00:00.0"]
    gpus = [samples.gpu(n, pci_bus_id=address) for n, address in enumerate(addresses)]
    cards = Cards(*gpus)
    cards.pci_bus_id = lambda uuid: next(  # type: ignore[method-assign]
        f"{gpu.pci_bus_id:0>13}" for gpu in gpus if gpu.uuid == uuid
    )
    found = scan.scan(cards, tmp_path)
    assert [gpu.pci_bus_id for gpu in found.gpus] == sorted(addresses, key=lambda a: a.zfill(13))
    assert [gpu.index for gpu in found.gpus] == [2, 1, 3, 0]


@pytest.mark.parametrize(
    "reading",
    ["memory", "minor", "product_name", "compute_capability", "mig_enabled", "pci_bus_id", "uuid"],
)
def test_a_bad_gpu_harms_no_other(sysfs: Path, reading: str) -> None:
    cards = Cards(*(samples.gpu(n) for n in range(3)))
    cards.failures[cards.gpus[1].uuid, reading] = LOST
    found = scan.scan(cards, sysfs)
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    (excluded,) = found.excluded
    assert "the GPU is lost" in excluded.reason


@pytest.mark.parametrize(("reading", "which"), [("uuid", 1), ("pci_bus_id", samples.gpu(1).uuid)])
@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (pynvml.NVML_ERROR_TIMEOUT, True),
        (pynvml.NVML_ERROR_NOT_READY, True),
        (LOST, False),
        (pynvml.NVML_ERROR_UNKNOWN, False),
    ],
)
def test_it_is_told_whether_a_gpu_may_answer_again_by_itself(
    sysfs: Path, reading: str, which: GpuUuid | int, code: int, *, passes: bool
) -> None:
    cards = Cards(samples.gpu(0), samples.gpu(1))
    cards.failures[cards.gpus[1].uuid, reading] = code
    (excluded,) = scan.scan(cards, sysfs).excluded
    assert excluded.passing == (which if passes else None)


@pytest.mark.parametrize(
    ("reading", "identity"),
    [
        ("uuid", "GPU 1"),
        ("pci_bus_id", samples.gpu(1).uuid),
        ("memory", f"{samples.gpu(1).uuid} (0000:3c:00.0)"),
    ],
)
def test_what_is_left_out_is_named_as_well_as_it_can_be(
    sysfs: Path, reading: str, identity: str
) -> None:
    cards = Cards(samples.gpu(0), samples.gpu(1))
    cards.failures[cards.gpus[1].uuid, reading] = LOST
    assert [gpu.identity for gpu in scan.scan(cards, sysfs).excluded] == [identity]


def test_a_gpu_in_mig_mode_is_left_out_with_what_to_do(sysfs: Path) -> None:
    mig = samples.gpu(1, mig_enabled=True)
    found = scan.scan(Cards(samples.gpu(0), mig), sysfs)
    assert [gpu.index for gpu in found.gpus] == [0]
    (excluded,) = found.excluded
    assert "MIG mode is on" in excluded.reason
    assert f"nvidia-smi -i {mig.uuid} -mig 0" in excluded.reason


def test_a_gpu_without_memory_of_its_own_is_left_out(sysfs: Path) -> None:
    cards = Cards(samples.gpu(0))
    cards.failures[cards.gpus[0].uuid, "memory"] = NOT_SUPPORTED
    (excluded,) = scan.scan(cards, sysfs).excluded
    assert excluded.reason.startswith("no memory information")


@pytest.mark.parametrize(("total", "reserved"), [(0, 0), (MIB, 1), (MIB, 2 * MIB)])
def test_a_gpu_with_less_than_a_mebibyte_is_left_out(
    sysfs: Path, total: int, reserved: int
) -> None:
    gpu = samples.gpu(0, memory_total=total, memory_reserved=reserved)
    (excluded,) = scan.scan(Cards(gpu), sysfs).excluded
    assert excluded.reason.startswith(f"memory is {total} bytes, {reserved} of them reserved")


def test_an_address_that_is_none_leaves_the_gpu_out(sysfs: Path) -> None:
    cards = Cards(samples.gpu(0))
    cards.pci_bus_id = lambda uuid: "??"  # type: ignore[method-assign] # noqa: ARG005
    assert scan.scan(cards, sysfs).excluded == (
        Excluded(
            samples.gpu(0).uuid,
            "'??' is not a PCI address such as 0000:3b:00.0",
            uuid=samples.gpu(0).uuid,
        ),
    )


@pytest.mark.parametrize("reading", ["uuid", "memory"])
def test_a_failure_of_nvml_as_a_whole_is_no_gpus_fault(sysfs: Path, reading: str) -> None:
    cards = Cards(samples.gpu(0), samples.gpu(1))
    cards.failures[cards.gpus[1].uuid, reading] = NO_DRIVER
    with pytest.raises(NvmlUnavailableError, match="kernel module is not loaded"):
        scan.scan(cards, sysfs)


@pytest.mark.parametrize("reading", ["open", "driver_version"])
def test_nothing_can_be_said_of_gpus_without_a_driver(sysfs: Path, reading: str) -> None:
    cards = Cards(samples.gpu(0))
    cards.failures["", reading] = NO_DRIVER
    with pytest.raises(NvmlUnavailableError):
        scan.scan(cards, sysfs)


def test_no_gpu_is_an_answer_and_nvml_is_asked_anew_next_time(sysfs: Path) -> None:
    cards = Cards()
    found = scan.scan(cards, sysfs)
    assert found == Inventory(gpus=())
    assert cards.distrusted


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:01:1F.7", "10000:01:1f.7"),
        ("FFFF:FF:1F.0", "ffff:ff:1f.0"),
    ],
)
def test_an_address_is_written_as_in_sysfs(text: str, address: str) -> None:
    assert scan.pci_address(text) == address


@pytest.mark.parametrize("text", ["", "3b:00.0", "0000:3b:00.8", "0000:3b:00.0\n", "0000:3g:00.0"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a PCI address"):
        scan.pci_address(text)


@pytest.mark.parametrize(
    ("target", "root"),
    [
        ("../../../devices/pci0000:00/0000:00:01.0/0000:3b:00.0", "pci0000:00"),
        ("../../../devices/pci10000:e0/10000:e0:01.0/0000:3b:00.0", "pci10000:e0"),
        ("../../../devices/platform/x/pci0001:00/0000:3b:00.0", "pci0001:00"),
        ("../../../devices/virtual/0000:3b:00.0", None),
        ("../../../devices/pci0000:00/0000:00:02.0", None),
    ],
)
def test_the_pcie_root_is_read_from_the_link(tmp_path: Path, target: str, root: str | None) -> None:
    gpu = samples.gpu(0)
    add_device(tmp_path, gpu.pci_bus_id, target=target)
    assert scan.pcie_root(tmp_path, gpu.pci_bus_id) == root


@pytest.mark.parametrize(
    ("text", "node"), [("0", 0), ("1", 1), ("-1", None), ("", None), ("x", None)]
)
def test_the_numa_node_is_none_where_the_kernel_does_not_know(
    tmp_path: Path, text: str, node: int | None
) -> None:
    gpu = samples.gpu(0)
    add_device(tmp_path, gpu.pci_bus_id, numa=text)
    assert scan.numa_node(tmp_path, gpu.pci_bus_id) == node


def test_without_sysfs_a_gpu_is_published_all_the_same(tmp_path: Path) -> None:
    (gpu,) = scan.scan(Cards(samples.gpu(0)), tmp_path / "none").gpus
    assert gpu.pcie_root is None
    assert gpu.numa_node is None
