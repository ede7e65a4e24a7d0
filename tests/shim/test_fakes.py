"""The simulated libnvidia-ml, nvidia-smi and the layouts that others rely on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.fakes import DEFAULT_GPUS, T4, card, fakegpu
from tests.fakes.__main__ import main
from tests.fakes.machine import Machine, machine
from tests.fakes.process import Buffer, Out

MIB = 1 << 20
GIB = 1 << 30
NO_DEVICE = 100
UUIDS = [gpu.uuid for gpu in DEFAULT_GPUS]


@pytest.fixture
def t4s(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "machine") as two_t4s:
        yield two_t4s


# ---- layouts


def test_the_accounts_layout_is_the_headers(tmp_path: Path) -> None:
    source = '#include "fakegpu.h"\n#include <stdio.h>\n#define O(f) offsetof(struct fg_slot, f)\n'
    source += (
        'int main(void) { printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %d %d", O(pid), O(pidns),'
        " O(start), O(name), O(bytes), O(launches), O(contexts), sizeof(struct fg_slot),"
        " offsetof(struct fg_header, refused), FG_SLOTS, FG_MAX_GPUS); }\n"
    )
    (tmp_path / "layout.c").write_text(source)
    include = f"-I{fakegpu.HERE / 'common'}"
    subprocess.run(["gcc", include, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    gpus = fakegpu.MAX_GPUS
    assert [int(word) for word in printed.stdout.split()] == [
        4, 8, 16, 24, 88, 88 + 8 * gpus, 88 + 16 * gpus, fakegpu.SLOT.size,
        fakegpu.HEADER.size - 8 * gpus, fakegpu.SLOTS, gpus,
    ]  # fmt: skip


def test_the_cards_layout_is_the_headers(tmp_path: Path) -> None:
    source = (
        '#include "card.h"\n#include <stdio.h>\n#define C(f) offsetof(struct fg_card, f)\n'
        "#define Q(f) offsetof(struct fg_queue, f)\n"
        'int main(void) { printf("%zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %zu %ld %d",'
        " C(ready), C(at), C(busy), C(switches), C(queue), Q(percent), Q(pushed), Q(submitted),"
        " Q(served), Q(item), sizeof(struct fg_queue), sizeof(pthread_mutex_t), (long)FG_CARDS,"
        " FG_CARD_SIZE); }\n"
    )
    (tmp_path / "layout.c").write_text(source)
    include = f"-I{fakegpu.HERE / 'common'}"
    subprocess.run(["gcc", include, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    assert [int(word) for word in printed.stdout.split()] == [
        64, 88, 112, 128, card.CARD.size, 8, 16, 32,
        40, card.QUEUE.size, card.QUEUE_SIZE, 40, card.CARDS,
        card.CARD_SIZE,
    ]  # fmt: skip


def test_nvml_structures_have_pynvmls_sizes(tmp_path: Path) -> None:
    pairs = {
        "nvmlMemory": pynvml.c_nvmlMemory_t,
        "nvmlMemory_v2": pynvml.c_nvmlMemory_v2_t,
        "nvmlPciInfo_v2": pynvml.nvmlPciInfo_v2_t,
        "nvmlPciInfo_v3": pynvml.nvmlPciInfo_t,
        "nvmlUtilization": pynvml.c_nvmlUtilization_t,
        "nvmlProcess_v2": pynvml.c_nvmlProcessInfo_v2_t,
        "nvmlProcessDetail": pynvml.c_nvmlProcessDetail_v1_t,
        "nvmlProcessDetailList": pynvml.c_nvmlProcessDetailList_v1_t,
        "nvmlEventData": pynvml.c_nvmlEventData_t,
    }
    sizes = "".join(f'printf("%zu ", sizeof({name}));' for name in pairs)
    code = f'#include "types.h"\n#include <stdio.h>\nint main(void) {{ {sizes} }}\n'
    (tmp_path / "sizes.c").write_text(code)
    include = f"-I{fakegpu.HERE / 'nvml'}"
    subprocess.run(["gcc", include, "-o", tmp_path / "sizes", tmp_path / "sizes.c"], check=True)
    printed = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True)
    assert [int(word) for word in printed.stdout.split()] == [
        ctypes.sizeof(structure) for structure in pairs.values()
    ]


def test_exports_are_the_drivers_and_all_found_by_name(t4s: Machine) -> None:
    library = t4s.libraries / "libcuda.so.1"
    printed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[2] for line in printed.splitlines()}
    table = (fakegpu.HERE / "cuda" / "entries.def").read_text()
    rows = [
        line[len("ENTRY(") : -1].split(", ")
        for line in table.splitlines()
        if line.startswith("ENTRY(")
    ]
    assert {row[1] for row in rows} == exported
    t4s.driver.set_option(None, "cuda", "13.1")
    process = t4s.cuda()
    for name, symbol, version, stream in rows:
        flags = 2 if stream == "PER_THREAD" else 1
        answer = process.call("cuGetProcAddress_v2", name, Out(), int(version), flags, Out())
        assert answer == (0, process.address(symbol), 0), symbol
    assert len({process.address(symbol) for symbol in exported}) == len(exported)


# ---- NVML


def test_pynvml_works_unchanged(t4s: Machine) -> None:
    seen = t4s.pynvml(
        """
nvmlInit()
h = nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(0)))
m = nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2)
old = nvmlDeviceGetMemoryInfo(h)
pci = nvmlDeviceGetPciInfo(nvmlDeviceGetHandleByPciBusId("0000:AF:00.0"))
def code(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return error.value
print(json.dumps([
    nvmlDeviceGetCount(), nvmlSystemGetDriverVersion(), nvmlSystemGetCudaDriverVersion(),
    nvmlDeviceGetName(h), nvmlDeviceGetUUID(h), nvmlDeviceGetMinorNumber(h),
    nvmlDeviceGetBrand(h) == NVML_BRAND_TESLA,
    nvmlDeviceGetArchitecture(h) == NVML_DEVICE_ARCH_TURING,
    nvmlDeviceGetCudaComputeCapability(h), pci.busId, pci.bus,
    [m.total >> 20, m.reserved >> 20, m.used, m.free >> 20],
    [old.total >> 20, old.used >> 20, old.free >> 20],
    code(nvmlDeviceGetMigMode, h), code(nvmlDeviceGetNumaNodeId, h), code(nvmlDeviceGetFanSpeed, h),
    code(nvmlDeviceGetTotalEnergyConsumption, h), nvmlDeviceGetComputeRunningProcesses(h),
    nvmlDeviceGetGraphicsRunningProcesses(h), nvmlDeviceGetEccMode(h),
]))
nvmlShutdown()
""",
    )
    assert seen == [
        2, "580.159.04", 13000, "Tesla T4", UUIDS[0], 0, True, True, [7, 5], "00000000:AF:00.0",
        0xAF, [15360, 443, 0, 14917], [15360, 443, 14917], 3, 3, 3, 13, [], [], [1, 1],
    ]  # fmt: skip


def test_faults_come_and_go_while_a_process_runs(t4s: Machine) -> None:
    assert t4s.nvml.call("nvmlDeviceGetCount_v2", Out()) == (pynvml.NVML_ERROR_UNINITIALIZED, 0)
    t4s.driver.inject(None, "nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert t4s.nvml.call("nvmlInitWithFlags", 0) == (18,)
    t4s.driver.clear()
    assert t4s.nvml.call("nvmlInitWithFlags", 0) == (0,)
    handles = [t4s.nvml.call("nvmlDeviceGetHandleByIndex_v2", i, Out())[1] for i in range(2)]
    t4s.driver.inject(0, "nvmlDeviceGetTemperature", pynvml.NVML_ERROR_UNKNOWN)
    temperatures = [t4s.nvml.call("nvmlDeviceGetTemperature", h, 0, Out())[0] for h in handles]
    assert temperatures == [999, 0]
    t4s.driver.lose(1)
    assert [t4s.nvml.call("nvmlDeviceGetMinorNumber", h, Out()) for h in handles] == [
        (0, 0),
        (15, 0),
    ]
    t4s.driver.clear()
    t4s.driver.remove(1)
    assert t4s.nvml.call("nvmlDeviceGetMinorNumber", handles[1], Out())[0] == 15
    t4s.driver.unload()
    assert t4s.nvml.call("nvmlDeviceGetMinorNumber", handles[0], Out())[0] == 999


def test_hangs_and_cuda_faults(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    t4s.driver.inject(0, "cuMemAlloc", 46)
    t4s.driver.hang(None, "nvmlInit", 300)
    assert process.alloc(MIB)[0] == 46
    before = time.monotonic()
    assert t4s.nvml.call("nvmlInitWithFlags", 0) == (0,)
    assert time.monotonic() - before >= 0.3
    t4s.driver.clear()
    assert process.alloc(MIB)[0] == 0
    t4s.driver.lose(0)
    assert process.alloc(MIB)[0] == 999


def test_cards_may_differ(t4s: Machine) -> None:
    other = T4(uuid=UUIDS[1], pci="00000001:01:00.0", minor=5, mig="enabled", numa_node=1,
               memory_mib=81920, compute_capability="8.0", architecture="Ampere")  # fmt: skip
    t4s.driver.write_config([other, T4(uuid=UUIDS[0], pci="00000000:01:00.0")])
    assert t4s.nvml.call("nvmlInit_v2") == (0,)
    handle = t4s.nvml.handle(1)  # by PCI address, not by section
    answers = [
        t4s.nvml.call(name, handle, Out())
        for name in ("nvmlDeviceGetMinorNumber", "nvmlDeviceGetNumaNodeId")
    ]
    assert answers == [(0, 5), (0, 1)]
    assert t4s.nvml.call("nvmlDeviceGetMigMode", handle, Out(), Out()) == (0, 1, 1)
    assert t4s.nvml.call("nvmlDeviceGetCudaComputeCapability", handle, Out(), Out()) == (0, 8, 0)
    assert t4s.cuda().ready(1).info()[2] == other.usable


def test_the_command_line(t4s: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--dir", str(t4s.driver.state_dir)]
    assert main([*command, "config", "--gpus", "1", "--device-nodes", "ignored"]) == 0
    process = t4s.cuda().ready()
    assert process.call("cuDeviceGetCount", Out()) == (0, 1)
    for words in (["inject", "0", "cuCtxSynchronize", "700"], ["xid", "0", "79"], ["accounts"]):
        assert main([*command, *words]) == 0
    held = capsys.readouterr().out.splitlines()[-1]
    assert held.split()[:4] == ["gpu", "0", "pid", str(process.pid)]
    assert process.call("cuCtxSynchronize") == (700,)
    assert main([*command, "clear"]) == 0
    assert process.call("cuCtxSynchronize") == (0,)


def test_no_driver(t4s: Machine) -> None:
    t4s.driver.unload()
    assert t4s.nvml.call("nvmlInit_v2") == (pynvml.NVML_ERROR_DRIVER_NOT_LOADED,)
    assert t4s.cuda().call("cuInit", 0) == (NO_DEVICE,)


def test_a_broken_configuration_is_no_driver(t4s: Machine) -> None:
    t4s.driver.set_option(0, "memory_mbi", "4096")
    assert t4s.nvml.call("nvmlInit_v2") == (pynvml.NVML_ERROR_DRIVER_NOT_LOADED,)


def test_only_openable_nodes_are_seen(t4s: Machine, tmp_path: Path) -> None:
    nodes = tmp_path / "dev"
    nodes.mkdir()
    t4s.driver.write_config(device_nodes="required", device_dir=nodes)
    assert t4s.nvml.call("nvmlInit_v2") == (9,)
    assert t4s.cuda().call("cuInit", 0) == (NO_DEVICE,)
    for name in ("nvidiactl", "nvidia1"):
        (nodes / name).touch()
    assert t4s.nvml.call("nvmlInit_v2") == (0,)
    assert t4s.nvml.call("nvmlDeviceGetCount_v2", Out()) == (0, 1)
    handle = t4s.nvml.call("nvmlDeviceGetHandleByIndex_v2", 0, Out())[1]
    _, (uuid,) = t4s.nvml.fetch("nvmlDeviceGetUUID", handle, Buffer(bytes(96)), 96)
    assert uuid.rstrip(b"\0").decode() == UUIDS[1]
    assert t4s.cuda().call("cuInit", 0) == (999,)
    (nodes / "nvidia-uvm").touch()
    process = t4s.cuda().ready()
    assert process.call("cuDeviceGetCount", Out()) == (0, 1)


def test_xid_events(t4s: Machine) -> None:
    t4s.driver.set_xid(1, 13)  # before anybody listens
    assert t4s.nvml.call("nvmlInit_v2") == (0,)
    handle = t4s.nvml.call("nvmlDeviceGetHandleByIndex_v2", 1, Out())[1]
    events = t4s.nvml.call("nvmlEventSetCreate", Out())[1]
    assert t4s.nvml.call("nvmlDeviceRegisterEvents", handle, 8, events) == (0,)
    empty = Buffer(bytes(ctypes.sizeof(pynvml.c_nvmlEventData_t)))
    assert t4s.nvml.fetch("nvmlEventSetWait_v2", events, empty, 50)[0] == pynvml.NVML_ERROR_TIMEOUT
    for _ in range(2):
        t4s.driver.set_xid(1, 79)
        result, (raw,) = t4s.nvml.fetch("nvmlEventSetWait_v2", events, empty, 5000)
        event = pynvml.c_nvmlEventData_t.from_buffer_copy(raw)
        assert (result, event.eventType, event.eventData) == (0, 8, 79)
    assert t4s.nvml.fetch("nvmlEventSetWait_v2", events, empty, 0)[0] == pynvml.NVML_ERROR_TIMEOUT


def test_process_lists_follow_pid_namespaces(t4s: Machine) -> None:
    inside = f"{t4s.build / 'bin/cudamem'} alloc 1GiB --hold 60 & sleep 0.1; "
    inside += "for i in $(seq 100); do s=$(nvidia-smi --query-compute-apps=pid,used_memory"
    inside += " --format=csv,noheader); case $s in *1124*) break;; esac; sleep 0.05; done; "
    inside += "echo $! $s; read wait; kill $!"
    environment = {**os.environ, **t4s.environment}
    environment["PATH"] = f"{t4s.build / 'bin'}:{environment['PATH']}"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inside]
    with subprocess.Popen(
        unshare, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        while "MiB" not in (line := child.stdout.readline()):
            assert line, "the container ended"
            assert line.startswith("cuMem")
        own, seen, *rest = line.replace(",", "").split()
        t4s.nvml.call("nvmlInit_v2")
        outside = t4s.nvml.processes(0)
        child.stdin.close()
    assert (own, rest) == (seen, ["1124", "MiB"])
    assert list(outside.values()) == [1124 * MIB]
    assert int(own) not in outside


# ---- programs


def test_nvidia_smi(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    assert process.alloc(GIB)[0] == 0
    status, table = t4s.run("nvidia-smi")
    assert status == 0
    assert " 1124MiB / 15360MiB |" in table
    assert "   0MiB / 15360MiB |" in table
    assert f" {process.pid}      C   " in table
    assert {len(line) for line in table.splitlines()[1:] if line} == {91}
    assert t4s.run("nvidia-smi", "-L")[1].splitlines() == [
        f"GPU {i}: Tesla T4 (UUID: {uuid})" for i, uuid in enumerate(UUIDS)
    ]
    query = "--query-gpu=index,memory.total,memory.used,memory.reserved,compute_cap,fan.speed"
    assert t4s.run("nvidia-smi", query, "--format=csv", "-i", UUIDS[0])[1] == (
        "index, memory.total [MiB], memory.used [MiB], memory.reserved [MiB], compute_cap, "
        "fan.speed [%]\n0, 15360 MiB, 1124 MiB, 443 MiB, 7.5, [N/A]\n"
    )
    plain = ("--query-gpu=uuid,memory.free", "--format=csv,noheader,nounits", "-i", "1")
    assert t4s.run("nvidia-smi", *plain) == (0, f"{UUIDS[1]}, 14917\n")
    apps = "--query-compute-apps=pid,used_memory"
    assert t4s.run("nvidia-smi", apps, "--format=csv,noheader") == (
        0, f"{process.pid}, 1124 MiB\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--query-gpu=junk", "--format=csv"], 2, 'Field "junk" is not a valid field to query.'),
        (["--query-gpu=uuid", "--format=xml"], 2, "Format modifier is not recognized."),
        (["--junk"], 255, "ERROR: Option --junk is not recognized. Please run 'nvidia-smi -h'."),
        (["-i", "7"], 6, "No devices were found"),
        (["-i", "0", "-L"], 2, "ERROR: Option -i is not valid for this command."),
    ],
)
def test_nvidia_smi_refuses(t4s: Machine, arguments: list[str], status: int, message: str) -> None:
    seen, output = t4s.run("nvidia-smi", *arguments)
    assert (seen, output.splitlines()[0][: len(message)]) == (status, message)


def test_nvidia_smi_without_a_driver(t4s: Machine) -> None:
    t4s.driver.unload()
    status, output = t4s.run("nvidia-smi")
    assert (status, output[:36]) == (9, "NVIDIA-SMI has failed because it cou")


@pytest.mark.parametrize("name", ["cudamem", "cudamem-linked"])
def test_cudamem(t4s: Machine, name: str) -> None:
    t4s.driver.write_config([T4(uuid=UUIDS[0], pci="00000000:3B:00.0", memory_mib=4096 + 443)])
    assert t4s.run(name, "alloc", "1GiB") == (
        0,
        """cuMemGetInfo free 3.902 GiB total 4 GiB
cuMemAlloc 1 GiB -> CUDA_SUCCESS (0)
cuMemGetInfo free 2.902 GiB total 4 GiB
""",
    )
    status, output = t4s.run(name, "alloc", "4.1GiB")
    assert (status, output.splitlines()[1]) == (
        2, "cuMemAlloc 4.1 GiB -> CUDA_ERROR_OUT_OF_MEMORY (2)",
    )  # fmt: skip
    assert t4s.run(name, "--device", "7", "alloc", "1GiB")[0] == 1
    assert t4s.run(name, "alloc", "many")[0] == 1
