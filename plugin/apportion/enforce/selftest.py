"""The self-test from inside: `python -m apportion.enforce.selftest enter|check <order as JSON>`.

`enter` makes mounts of its own as a container has them and starts `check` among them; the loader
reads its search path only at the start of a process. `check` prints one line of JSON.

A full card refuses as well, and with the same code: what counts as a refusal is the ledger's
`denied`, which only the front raises.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apportion import names
from apportion.cores import layout as cores
from apportion.cores.slots import Slot
from apportion.enforce import layout, shares
from apportion.model import Capacity, CoresMode, DeviceName, GpuUuid, Share, ShareKey

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MS_REC, _MS_PRIVATE = 16384, 1 << 18

_KEY = ShareKey("selftest-0")
_CORES = 50
_SCHEDULE = cores.fresh(cores.State(50_000_000, Slot(0, _CORES)))
_BAD = {ShareKey("selftest-1"): bytes(cores.SIZE), ShareKey("selftest-2"): b""}
"""Further shares of the GPU, whose schedule is damaged or missing: they must give nothing."""
_PASSED = "totals are the share's; an allocation over the limit was refused"
_OUT_OF_MEMORY = 2
_MORE = 2 << 20
"""Bytes over the limit that are tried: a whole block, as cuMemCreate wants."""
_PINNED = _ON_DEVICE = 1
_FIELDS = {"denied": 6, "context_mib": 11}
"""Where the ledger's header has what the front says."""


class TestFailedError(Exception):
    """What the front libraries did wrong, or why it cannot be told."""

    __test__ = False


class SmallShareError(Exception):
    """The share has no room for a context, which is counted against it."""


class FullCardError(Exception):
    """The driver itself wants for memory, so that nothing can be told; says which function."""


def enter(order: dict[str, Any]) -> None:
    """Make the mounts, then become `check`. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(
            ctypes.get_errno(), "cannot get mounts of its own; the plugin must run as root"
        )
    _mount(libc, "none", "/", _MS_REC | _MS_PRIVATE)
    root = Path(names.CONTAINER_ROOT)
    root.mkdir(parents=True, exist_ok=True)
    _mount(libc, "apportion-selftest", str(root), 0, kind="tmpfs")
    driver, libraries = Path(names.CONTAINER_DRIVER), root / "lib"
    for folder in (driver, libraries, Path(names.CONTAINER_SHARES)):
        folder.mkdir()
    for name, path in (("libcuda.so.1", order["cuda"]), ("libnvidia-ml.so.1", order["nvml"])):
        (driver / name).touch()
        _mount(libc, path, str(driver / name), _MS_BIND)
    # Only the driver's own: its folder can hold another system's C library.
    for name, path in order["others"]:
        (libraries / name).symlink_to(path)
    for key, schedule in {_KEY: _SCHEDULE, **_BAD}.items():
        _mount_share(libc, order, key, schedule)
    environ = dict(os.environ) | {"LD_LIBRARY_PATH": f"{order['front']}:{libraries}"}
    command = [sys.executable, "-m", "apportion.enforce.selftest", "check", json.dumps(order)]
    os.execve(sys.executable, command, environ)  # noqa: S606 - no shell is wanted


def _mount_share(libc: ctypes.CDLL, order: dict[str, Any], key: ShareKey, schedule: bytes) -> None:
    """Mount a share as the CDI spec does: the folder read-only, the ledger writable over it."""
    origin = Path(names.CONTAINER_ROOT) / key
    inside = Path(names.CONTAINER_SHARES) / key
    origin.mkdir()
    inside.mkdir()
    capacity = Capacity(cores=_CORES, memory=order["memory"])
    share = Share(key, "", "", DeviceName(""), None, GpuUuid(order["uuid"]), capacity)
    shares.create(origin, share, 0, CoresMode.TIMESLICE, schedule)
    _mount(libc, str(origin), str(inside), _MS_BIND)
    _mount(libc, "none", str(inside), _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    _mount(libc, str(origin / shares.LEDGER), str(inside / shares.LEDGER), _MS_BIND)


def _mount(libc: ctypes.CDLL, source: str, target: str, flags: int, kind: str = "none") -> None:
    if libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), ctypes.c_void_p()
    ):
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def check(order: dict[str, Any]) -> dict[str, str]:
    """Return what was found when totals are the share's and more than it is refused.

    Returns:
        `passed`: in words; and `doubt`: what could not be tried, if anything, since the card is
        full.

    Raises:
        TestFailedError: with the reason.
        SmallShareError: it cannot be told with a share as small.
        FullCardError: it cannot be told on a card as full.
        OSError: a library cannot be loaded.
        AttributeError: a library lacks a function.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    _expect(cuda.cuInit(0), "cuInit")
    device = _device(cuda, order["uuid"])
    total = ctypes.c_size_t()
    _expect(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device), "cuDeviceTotalMem")
    _compare("cuDeviceTotalMem", total.value, order["memory"])
    _compare("nvmlDeviceGetMemoryInfo", _nvml_total(order["uuid"]), order["memory"])
    return _allocate(cuda, device, order["memory"])


def _device(cuda: ctypes.CDLL, wanted: str) -> ctypes.c_int:
    count = ctypes.c_int()
    _expect(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    for index in range(count.value):
        device = ctypes.c_int()
        _expect(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        raw = (ctypes.c_ubyte * 16)()
        _expect(cuda.cuDeviceGetUuid(raw, device), "cuDeviceGetUuid")
        if f"GPU-{uuid.UUID(bytes=bytes(raw))}" == wanted.lower().replace("gpu-", "GPU-"):
            return device
    raise TestFailedError(f"CUDA sees {count.value} GPUs and none of them is {wanted}")


def _nvml_total(wanted: str) -> int:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    _expect(nvml.nvmlInit_v2(), "nvmlInit")
    handle = ctypes.c_void_p()
    found = nvml.nvmlDeviceGetHandleByUUID(wanted.encode(), ctypes.byref(handle))
    _expect(found, "nvmlDeviceGetHandleByUUID")
    info = (ctypes.c_ulonglong * 3)()
    _expect(nvml.nvmlDeviceGetMemoryInfo(handle, info), "nvmlDeviceGetMemoryInfo")
    nvml.nvmlShutdown()
    return int(info[0])


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def _allocate(cuda: ctypes.CDLL, device: ctypes.c_int, memory: int) -> dict[str, str]:
    """Return as `check` does, once more than the share was refused in all ways with room to try."""
    over = ctypes.c_size_t(memory + _MORE)
    got = ctypes.c_ulonglong()
    wanted = _Properties(type=_PINNED, location_type=_ON_DEVICE, location_id=device.value)
    # Needs no context, and so no free memory: a plugin can start anew on a card that is all in use.
    _refused(
        "cuMemCreate",
        lambda: cuda.cuMemCreate(ctypes.byref(got), over, ctypes.byref(wanted), 0),
        lambda: cuda.cuMemRelease(got),
    )
    context = ctypes.c_void_p()
    before = _header("denied")
    code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code == _OUT_OF_MEMORY and _header("denied") > before:
        raise SmallShareError
    if code == _OUT_OF_MEMORY:
        return {"passed": f"{_PASSED} by cuMemCreate", "doubt": "it has no room for a context"}
    _expect(code, "cuDevicePrimaryCtxRetain")
    try:
        _expect(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        _refused(
            "cuMemAlloc",
            lambda: cuda.cuMemAlloc_v2(ctypes.byref(got), over),
            lambda: cuda.cuMemFree_v2(got),
        )
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)
    return {"passed": _PASSED}


def _refused(function: str, allocate: Callable[[], int], free: Callable[[], int]) -> None:
    before = _header("denied")
    code = allocate()
    if code == 0:
        free()
        raise TestFailedError(f"an allocation over the limit was granted by {function}")
    if code != _OUT_OF_MEMORY:
        raise TestFailedError(f"{function} over the limit gave CUDA error {code}, not 2")
    if _header("denied") == before:
        raise TestFailedError(
            f"{function} over the limit was refused by the driver, since the card is full, and "
            "not by the front libraries"
        )


def _header(field: str) -> int:
    """Return a field of the share's ledger: what the front refused, or learned, so far."""
    ledger = Path(names.CONTAINER_SHARES) / _KEY / shares.LEDGER
    return int(layout.HEADER.unpack_from(ledger.read_bytes())[_FIELDS[field]])


def _expect(code: int, function: str) -> None:
    if code == _OUT_OF_MEMORY and function.startswith("cu"):
        raise FullCardError(f"{function} gave CUDA error {code}")
    if code != 0:
        raise TestFailedError(f"{function} gave error {code}")


def _compare(function: str, found: int, wanted: int) -> None:
    if found in (2 * wanted, 3 * wanted):
        raise TestFailedError(
            f"{function} says {found} bytes: a share whose schedule is damaged or missing is taken "
            f"beside the one of {wanted}"
        )
    if found != wanted:
        raise TestFailedError(f"{function} says {found} bytes instead of the share's {wanted}")


def main(arguments: list[str]) -> int:
    """Run one stage; the last line of the output is the answer. Returns the exit status."""
    stage, order = arguments[0], json.loads(arguments[1])
    answer: dict[str, str | int]
    try:
        if stage == "enter":
            enter(order)  # becomes the other stage
        answer = {**check(order), "context_mib": _header("context_mib")}
    except FullCardError as error:
        answer = {"doubt": str(error)}
    except SmallShareError:
        answer = {"small": f"a context does not fit into {order['memory']} bytes"}
    except (TestFailedError, OSError, AttributeError) as error:
        answer = {"failed": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if answer.keys() & {"passed", "doubt"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
