"""An application with libcuda and pynvml that obeys line by line; it is run inside a container.

Each line is a JSON list: a command's name and its arguments. Each answer is a line of JSON.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from typing import Any

import pynvml

LISTS = [
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
]


class ProcessV1(ctypes.Structure):
    """An entry of the lists without a version."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class Application:
    """What the commands work on."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[str] | None = None
        self.cuda: Any = None

    def start(self) -> int:
        """Make the first card's context current; return this process's PID, or 0: none is had."""
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        assert self.cuda.cuInit(0) == 0
        if self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) != 0:
            return 0
        assert self.cuda.cuCtxSetCurrent(context) == 0
        return os.getpid()

    def alloc(self, size: int) -> int:
        """Return the result of an allocation."""
        pointer = ctypes.c_uint64()
        return int(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))

    def launch(self, times: int) -> None:
        """Launch a kernel that does nothing."""
        one = ctypes.c_uint(1)
        for _ in range(times):
            kernel = ctypes.c_void_p(4096)
            assert self.cuda.cuLaunchKernel(kernel, *[one] * 6, 0, None, None, None) == 0

    def beside(self, *command: Any) -> Any:
        """Give a command to a second application in this PID namespace."""
        if self.child is None:
            self.child = subprocess.Popen(
                [sys.executable, __file__],
                text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.write(json.dumps(command) + "\n")
        return json.loads(self.child.stdout.readline())

    def end_beside(self) -> None:
        """End the second application by SIGKILL."""
        assert self.child
        self.child.kill()
        self.child.communicate()
        self.child = None

    def run(self, *command: str) -> str:
        """Return what a program prints."""
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    def lists(self, places: int, index: int = 0) -> dict[str, Any]:
        """Return every list's result, count and entries, asked for with `places` places."""
        device = handle(index)
        found = {}
        for name in LISTS:
            v1 = not name.endswith(("_v2", "_v3"))
            entry = ProcessV1 if v1 else pynvml.c_nvmlProcessInfo_v2_t
            array = (entry * places)() if places else None
            count = ctypes.c_uint(places)
            result = function(name)(device, ctypes.byref(count), array)
            have = array[: count.value] if array and result == 0 else []
            found[name] = [result, count.value, [list(values(one)) for one in have]]
        return found

    def details(self, mode: int, places: int, version: int = 0x1000018) -> Any:
        """Return the detail list's result, count and entries."""
        array = (pynvml.c_nvmlProcessDetail_v1_t * places)()
        request = pynvml.c_nvmlProcessDetailList_v1_t(version, mode, places, array)
        result = function("nvmlDeviceGetRunningProcessDetailList")(handle(0), ctypes.byref(request))
        have = array[: request.numProcArrayEntries] if result == 0 else []
        return [result, request.numProcArrayEntries, [list(values(one)) for one in have]]

    def memory(self, index: int = 0) -> list[int]:
        """Return total, free and used."""
        info = pynvml.nvmlDeviceGetMemoryInfo(handle(index))
        return [info.total, info.free, info.used]

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what a function of pynvml says of the first card, or its error."""
        try:
            return plain(getattr(pynvml, name)(handle(0), *arguments))
        except pynvml.NVMLError as error:
            return {"error": error.value}

    def raw(self, name: str, count: int) -> list[int]:
        """Return the driver's result for a count and no array; and the count that it left."""
        places = ctypes.c_uint(count)
        if name == "nvmlDeviceGetProcessUtilization":
            since = ctypes.c_ulonglong(0)
            return [function(name)(handle(0), None, ctypes.byref(places), since), places.value]
        return [function(name)(handle(0), ctypes.byref(places), None), places.value]

    def accounted(self) -> list[int]:
        """Return the PIDs that the card's accounting names."""
        count, found = ctypes.c_uint(16), (ctypes.c_uint * 16)()
        assert function("nvmlDeviceGetAccountingPids")(handle(0), ctypes.byref(count), found) == 0
        return list(found[: count.value])

    def nothing(self, name: str) -> int:
        """Return the result of a list without a place for its count."""
        return int(function(name)(handle(0), None, None))


def function(name: str) -> Any:
    return pynvml._nvmlGetFunctionPointer(name)


@functools.cache
def handle(index: int) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def values(structure: Any) -> list[int]:
    return [getattr(structure, name) for name, _ in structure._fields_]


def plain(value: Any) -> Any:
    """Return structures of pynvml as lists."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, ctypes.Structure):
        return plain(values(value))
    if isinstance(value, ctypes.Array):
        return list(value)
    if hasattr(value, "__dict__"):
        return vars(value)
    return value


def main() -> None:
    pynvml.nvmlInit()
    handle(0)
    application = Application()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(application, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
