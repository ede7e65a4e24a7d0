"""The simulated libcuda behaves as the real one where the project depends on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import DEFAULT_GPUS
from tests.fakes.machine import SENTINEL, Machine, machine
from tests.fakes.process import Buffer, Out

MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY, NOT_INITIALIZED, NO_CONTEXT, NO_DEVICE, DESTROYED = 2, 3, 201, 100, 709
UUIDS = [gpu.uuid for gpu in DEFAULT_GPUS]


@pytest.fixture
def t4s(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "machine") as two_t4s:
        yield two_t4s


# ---- CUDA: errors as the real driver gives them


def test_errors_before_and_without_a_context(t4s: Machine) -> None:
    process = t4s.cuda()
    assert process.call("cuDriverGetVersion", Out()) == (0, 13000)
    assert process.alloc(MIB) == (NOT_INITIALIZED, SENTINEL)
    assert process.call("cuInit", 1) == (1,)
    assert process.call("cuInit", 0) == (0,)
    assert process.alloc(MIB) == (NO_CONTEXT, SENTINEL)
    assert process.call("cuMemFree_v2", 0) == (0,)
    assert process.call("cuMemFree_v2", 0x1234) == (1,)
    assert process.call("cuDeviceGet", Out(SENTINEL), 2) == (101, SENTINEL)
    assert process.call("cuDevicePrimaryCtxRelease_v2", 0) == (NO_CONTEXT,)
    process.ready()
    assert process.alloc(0) == (1, SENTINEL)
    for size in (15 * GIB, 1 << 45, (1 << 63) - 1):
        assert process.alloc(size) == (OUT_OF_MEMORY, SENTINEL)
    assert process.call_in_fork("cuInit", 0) == NOT_INITIALIZED
    assert process.call_in_fork("cuMemFree_v2", 0) == NOT_INITIALIZED


def test_get_proc_address_versions(t4s: Machine) -> None:
    process = t4s.cuda()
    ask = "cuGetProcAddress_v2"
    assert process.call(ask, "cuMemAlloc", Out(), 2000, 0, Out())[1] == process.address(
        "cuMemAlloc"
    )
    assert process.call(ask, "cuCtxCreate", Out(), 12000, 0, Out())[1] == process.address(
        "cuCtxCreate_v3"
    )
    assert process.call(ask, "cuMemAllocAsync", Out(7), 11010, 0, Out(7)) == (0, 0, 2)
    assert process.call(ask, "cuMemAlloc_v2", Out(7), 12000, 0, Out(7))[:2] == (0, 0)
    assert process.call(ask, "cuMemAlloc", Out(7), 13010, 0, Out(9)) == (1, 7, 9)
    assert process.call("cuGetProcAddress", "cuNone", Out(7), 12000, 0) == (500, 7)


def test_primary_context_counts_its_users_and_dies_at_reset(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    assert process.call("cuDevicePrimaryCtxRetain", Out(), 0)[0] == 0
    assert t4s.driver.used(0) == 100 * MIB
    assert process.call("cuDevicePrimaryCtxRelease_v2", 0) == (0,)
    assert process.alloc(GIB)[0] == 0
    assert t4s.driver.used(0) == 100 * MIB + GIB
    assert process.call("cuDevicePrimaryCtxReset_v2", 0) == (0,)
    assert t4s.driver.used(0) == 0
    assert process.alloc(MIB) == (DESTROYED, SENTINEL)
    assert process.call("cuDevicePrimaryCtxRetain", Out(), 0)[0] == 0
    assert process.alloc(MIB)[0] == 0


# ---- CUDA: accounts


def test_granules(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    base = t4s.driver.used(0)
    sizes = [1, 1000, *[512 << 10] * 4, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1]
    after = [2, 2, 2, 2, 2, 4, 4, 6, 8, 10, 14]
    addresses = []
    for size, expected in zip(sizes, after, strict=True):
        result, address = process.alloc(size)
        addresses.append(address)
        assert (result, t4s.driver.used(0) - base) == (0, expected * MIB), size
    assert process.call("cuMemGetAddressRange_v2", Out(), Out(), addresses[1] + 5) == (
        0, addresses[1], 1000,
    )  # fmt: skip
    assert process.call("cuMemFree_v2", addresses[-1] + 512) == (1,)
    assert [process.call("cuMemFree_v2", address) for address in addresses] == [(0,)] * len(sizes)
    assert t4s.driver.used(0) == base
    assert process.call("cuMemFree_v2", addresses[-1]) == (1,)


def test_copies(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    _, address = process.alloc(1000)
    text = b"what was written"
    assert process.fetch("cuMemcpyHtoD_v2", address + 8, Buffer(text), len(text))[0] == 0
    assert process.fetch("cuMemcpyDtoH_v2", Buffer(bytes(len(text))), address + 8, len(text)) == (
        0,
        (text,),
    )
    assert process.fetch("cuMemcpyHtoD_v2", address + 990, Buffer(text), len(text))[0] == 1


def test_pools_hold_chunks_until_synchronised(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    base = t4s.driver.used(0)
    result, address = process.call("cuMemAllocAsync", Out(), 4, 0)
    assert (result, t4s.driver.used(0) - base) == (0, 32 * MIB)
    assert process.call("cuMemFreeAsync", address, 0) == (0,)
    assert t4s.driver.used(0) - base == 32 * MIB
    assert process.call("cuCtxSynchronize") == (0,)
    assert t4s.driver.used(0) == base


def test_a_pool_that_gets_too_little_keeps_what_it_got(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    base = t4s.driver.used(0)
    assert process.call("cuMemAllocAsync", Out(SENTINEL), 15 * GIB, 0) == (OUT_OF_MEMORY, 0)
    assert t4s.driver.used(0) - base > 14 * GIB
    _, pool = process.call("cuDeviceGetDefaultMemPool", Out(), 0)
    assert process.call("cuMemPoolTrimTo", pool, 0) == (0,)
    assert t4s.driver.used(0) == base


def test_physical_memory_lives_until_unmapped(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    base, size = t4s.driver.used(0), 4 * MIB
    properties = Buffer(b"".join(v.to_bytes(4, "little") for v in (1, 0, 1, 0)) + bytes(16))
    _, handle = process.call("cuMemCreate", Out(), size, properties, 0)
    _, address = process.call("cuMemAddressReserve", Out(), size, 0, 0, 0)
    assert process.call("cuMemMap", address, size, 0, handle, 0) == (0,)
    assert process.call("cuMemRelease", handle) == (0,)
    assert t4s.driver.used(0) - base == size
    assert process.call("cuMemAddressFree", address, size) == (1,)
    assert process.call("cuMemUnmap", address, size) == (0,)
    assert t4s.driver.used(0) == base
    assert process.call("cuMemAddressFree", address, size) == (0,)


def test_one_account_for_all_processes(t4s: Machine) -> None:
    first, second, idle = t4s.cuda().ready(), t4s.cuda().ready(), t4s.cuda()
    assert idle.call("cuInit", 0) == (0,)
    assert first.alloc(10 * GIB)[0] == 0
    free = DEFAULT_GPUS[0].usable - 200 * MIB - 10 * GIB
    assert second.info() == (0, free, DEFAULT_GPUS[0].usable)
    assert second.alloc(5 * GIB) == (OUT_OF_MEMORY, SENTINEL)
    rest = free - free % (2 * MIB)
    assert second.alloc(rest)[0] == 0
    t4s.nvml.call("nvmlInit_v2")
    expected = {first.pid: 10 * GIB + 100 * MIB, second.pid: rest + 100 * MIB}
    assert t4s.nvml.processes(0) == expected
    assert t4s.nvml.processes(1) == {}
    first.kill()
    assert t4s.nvml.processes(0) == {second.pid: rest + 100 * MIB}
    assert second.info()[1] == free - rest + 10 * GIB + 100 * MIB
    alive = {second.pid: rest + 100 * MIB, idle.pid: 0}
    assert {account.pid: account.used[0] for account in t4s.driver.accounts()} == alive


def test_racing_processes_fill_the_card_and_no_more(t4s: Machine) -> None:
    status, output = t4s.run(
        "cudamem", "--processes", "8", "--json", "alloc", "--until-refused", "64MiB"
    )
    lines = [json.loads(line) for line in output.splitlines()]
    granted = [line["granted"] for line in lines if line["call"] == "until-refused"]
    assert (status, len(granted)) == (OUT_OF_MEMORY, 8)
    assert sum(granted) == (DEFAULT_GPUS[0].usable - 800 * MIB) // (64 * MIB) * (64 * MIB)
    assert t4s.driver.used(0) == 0


def test_a_full_card_refuses_a_context(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    assert process.alloc(process.info()[1] - 50 * MIB)[0] == 0
    other = t4s.cuda()
    assert other.call("cuInit", 0) == (0,)
    assert other.call("cuDevicePrimaryCtxRetain", Out(SENTINEL), 0) == (OUT_OF_MEMORY, SENTINEL)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1", [0, 1]),
        ("1,0", [1, 0]),
        ("1", [1]),
        (UUIDS[1], [1]),
        (UUIDS[1][:8] + ",0", [1, 0]),
        ("1,junk,0", [1]),
        ("0x1", [1]),
        ("", NO_DEVICE),
        ("-1", NO_DEVICE),
        ("GPU-", NO_DEVICE),
        ("junk,0", NO_DEVICE),
        ("0,0", 101),
    ],
)
def test_cuda_visible_devices(t4s: Machine, value: str, expected: list[int] | int) -> None:
    process = t4s.cuda(CUDA_VISIBLE_DEVICES=value)
    if isinstance(expected, int):
        assert process.call("cuInit", 0) == (expected,)
        return
    assert process.call("cuInit", 0) == (0,)
    found = [
        process.fetch("cuDeviceGetUuid_v2", Buffer(bytes(16)), ordinal)[1][0].hex()
        for ordinal in range(process.call("cuDeviceGetCount", Out())[1])
    ]
    assert found == [UUIDS[i].removeprefix("GPU-").replace("-", "") for i in expected]


def test_a_process_lives_as_long_as_it_runs_its_program(t4s: Machine) -> None:
    """Closing descriptors does not end it; a forked child does not keep it; exec ends it."""
    process = t4s.cuda().ready()
    process.call("closefrom", 3)
    assert process.alloc(GIB)[0] == 0
    assert t4s.driver.used(0) == GIB + 100 * MIB
    library = str(t4s.libraries / "libcuda.so.1")
    code = f"""
import ctypes, os, sys
cuda, context = ctypes.CDLL({library!r}), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
if sys.argv[1] == "fork" and os.fork() > 0:
    os._exit(0)
if sys.argv[1] == "exec":
    os.execv("/bin/sh", ["sh", "-c", "echo ready; read line"])
print("ready", flush=True)
sys.stdin.readline()
"""
    for how, held in (("stay", 100 * MIB), ("fork", 0), ("exec", 0)):
        with subprocess.Popen(
            [sys.executable, "-c", code, how],
            env={**os.environ, **t4s.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == b"ready\n"
            if how == "fork":
                child.wait()
            assert t4s.driver.used(1) == held, how
    assert t4s.driver.used(1) == 0


def test_killed_processes_leave_nothing(t4s: Machine) -> None:
    """Killed at any point of their work, also inside the critical section."""
    survivor = t4s.cuda().ready()
    command = [str(t4s.build / "bin" / "cudamem"), "alloc", "--until-refused", "2MiB"]
    for turn in range(60):
        with subprocess.Popen(
            command, env={**os.environ, **t4s.environment}, stdout=subprocess.DEVNULL
        ) as child:
            time.sleep(turn * 0.0005)
            child.kill()
    assert t4s.driver.used(0) == 100 * MIB
    assert survivor.alloc(survivor.info()[1] // (2 * MIB) * (2 * MIB))[0] == 0


def test_another_machines_accounts_are_not_mixed_in(t4s: Machine) -> None:
    process = t4s.cuda().ready()
    t4s.driver.state.unlink()
    assert t4s.cuda().ready().alloc(GIB)[0] == 0
    assert process.alloc(GIB) == (999, SENTINEL)
