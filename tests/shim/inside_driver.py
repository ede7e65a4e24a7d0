"""In a container: one thread makes a call that takes its time, another asks for memory information.

Arguments: the call (linear, create) and its bytes. Prints 0 when all is prepared, then waits
for a line; prints the other thread's result and the bytes in use, then the call's result.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

SOON_S = 0.5  # more than the front lets pass between two looks, less than the call takes


class Location(ctypes.Structure):
    """As cuda.h has it."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """As cuda.h has it."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def main(call: str, size: int) -> None:
    """Do what the arguments say."""
    cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    result = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    result = result or cuda.cuCtxSetCurrent(context)
    print(result, flush=True)
    sys.stdin.readline()
    done: list[int] = []

    def work() -> None:
        cuda.cuCtxSetCurrent(context)
        if call == "linear":
            done.append(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        else:
            what = Properties(1, 0, Location(1, 0))
            done.append(
                cuda.cuMemCreate(
                    ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.byref(what),
                    ctypes.c_ulonglong(0),
                )
            )  # fmt: skip

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(SOON_S)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(result, total.value - free.value, flush=True)
    thread.join()
    print(*done, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
