"""What sets memory, or copies within the card, waits for its slot; what the host is part of not."""

from __future__ import annotations

import subprocess
from typing import Final

import pytest

from tests.shim.schedules import CLOSED, OPEN, Account, timeslice, wait_until_wanted, write
from tests.shim.support import Container

# Structures as in cuda.h; an array of 64 x 64 texels of one byte.
MEMORY: Final = """
import ctypes, sys
from ctypes import c_int, c_size_t as size, c_uint64, c_void_p
cu = ctypes.CDLL("libcuda.so.1")
c, p, q, array, other = c_void_p(), c_uint64(), c_uint64(), c_void_p(), c_void_p()
n, pitch, wide, high = size(4096), size(64), size(8), size(3)
HOST, DEVICE, ARRAY = 1, 2, 3

class Flat(ctypes.Structure):
    _fields_ = [(f"{end}_{name}", kind) for end in ("from", "to") for name, kind in (
        ("x", size), ("y", size), ("type", c_int), ("host", c_void_p), ("device", c_uint64),
        ("array", c_void_p), ("pitch", size))] + [("width", size), ("height", size)]

class Deep(ctypes.Structure):
    _fields_ = [(f"{end}_{name}", kind) for end in ("from", "to") for name, kind in (
        ("x", size), ("y", size), ("z", size), ("level", size), ("type", c_int),
        ("host", c_void_p), ("device", c_uint64), ("array", c_void_p), ("reserved", c_void_p),
        ("pitch", size), ("height", size))] + [("width", size), ("height", size), ("depth", size)]

class Shape(ctypes.Structure):
    _fields_ = [("width", size), ("height", size), ("format", c_int), ("channels", c_int)]

here = ctypes.create_string_buffer(bytes(range(64)), 4096)

def ends(source, target):
    return {"from_type": source, "to_type": target, "from_device": q.value, "to_device": p.value,
            "from_host": ctypes.addressof(here), "to_host": ctypes.addressof(here),
            "from_array": other.value, "to_array": array.value, "from_pitch": 64, "to_pitch": 64}

def flat(source=DEVICE, target=DEVICE):
    return ctypes.byref(Flat(**ends(source, target), width=8, height=3))

def deep(source=DEVICE, target=DEVICE):
    return ctypes.byref(Deep(**ends(source, target), from_height=3, to_height=3, width=8, height=3,
                             depth=2))

cu.cuInit(0); cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); cu.cuCtxSetCurrent(c)
cu.cuMemAlloc_v2(ctypes.byref(p), n); cu.cuMemAlloc_v2(ctypes.byref(q), n)
for made in (array, other):
    assert cu.cuArrayCreate_v2(ctypes.byref(made), ctypes.byref(Shape(64, 64, 1, 1))) == 0
pinned = c_void_p()
assert cu.cuMemAllocHost_v2(ctypes.byref(pinned), n) == 0
print(eval(sys.argv[1]), flush=True)
"""

WITHIN: Final = (
    "cu.cuMemsetD8_v2(p, 1, n)", "cu.cuMemsetD8Async(p, 1, n, None)",
    "cu.cuMemsetD32_v2(p, 1, size(9))", "cu.cuMemsetD32Async_ptsz(p, 1, size(9), None)",
    "cu.cuMemsetD2D8_v2(p, pitch, 1, wide, high)",
    "cu.cuMemsetD2D16_v2_ptds(p, pitch, 1, wide, high)",
    "cu.cuMemsetD2D32Async(p, pitch, 1, wide, high, None)",
    "cu.cuMemsetD2D8Async_ptsz(p, pitch, 1, wide, high, None)",
    "cu.cuMemcpyDtoD_v2(p, q, n)", "cu.cuMemcpyDtoDAsync_v2(p, q, n, None)",
    "cu.cuMemcpy2D_v2(flat())", "cu.cuMemcpy2DUnaligned_v2(flat())",
    "cu.cuMemcpy2DAsync_v2(flat(), None)", "cu.cuMemcpy2DAsync_v2_ptsz(flat(), None)",
    "cu.cuMemcpy2D_v2_ptds(flat(ARRAY, DEVICE))", "cu.cuMemcpy2D_v2(flat(DEVICE, ARRAY))",
    "cu.cuMemcpy3D_v2(deep())", "cu.cuMemcpy3D_v2_ptds(deep())",
    "cu.cuMemcpy3DAsync_v2(deep(), None)", "cu.cuMemcpy3DAsync_v2_ptsz(deep(ARRAY, ARRAY), None)",
    "cu.cuMemcpy(p, q, n)", "cu.cuMemcpyAsync(p, q, n, None)",
    "cu.cuMemcpyDtoA_v2(array, size(0), p, wide)", "cu.cuMemcpyAtoD_v2(p, array, size(0), wide)",
    "cu.cuMemcpyAtoA_v2_ptds(array, size(0), other, size(0), wide)",
)  # fmt: skip
WITH_HOST: Final = (
    "cu.cuMemcpyHtoD_v2(p, b'12345678', size(8))",
    "cu.cuMemcpy(p, c_uint64(ctypes.addressof(here)), n)",
    "cu.cuMemcpyAsync(c_uint64(ctypes.addressof(here)), q, n, None)",
    "cu.cuMemcpy(p, c_uint64(pinned.value), n)",
    "cu.cuMemcpy2D_v2(flat(HOST, DEVICE))", "cu.cuMemcpy2DAsync_v2(flat(DEVICE, HOST), None)",
    "cu.cuMemcpy3D_v2(deep(HOST, ARRAY))", "cu.cuMemcpy3DAsync_v2_ptsz(deep(ARRAY, HOST), None)",
)  # fmt: skip


@pytest.mark.parametrize("call", WITHIN)
def test_what_sets_memory_or_copies_within_the_card_waits(container: Container, call: str) -> None:
    share = timeslice(container, CLOSED)
    command = container.command("/usr/bin/python3", "-c", MEMORY, call)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        wait_until_wanted(share)
        write(share, OPEN)
        assert app.communicate()[0] == "0\n"
    assert Account.of(share).waited > 0


@pytest.mark.parametrize("call", WITH_HOST)
def test_copies_from_and_to_the_host_do_not_wait(container: Container, call: str) -> None:
    share = timeslice(container, CLOSED)
    assert container.run("/usr/bin/python3", "-c", MEMORY, call) == "0\n"
    assert Account.of(share).wanted == 0


def test_rows_arrive_where_they_belong(container: Container) -> None:
    timeslice(container)
    call = """(
        cu.cuMemcpyHtoD_v2(q, here, n), cu.cuMemsetD8_v2(p, 9, n), cu.cuMemcpy2D_v2(flat()),
        cu.cuMemsetD2D8_v2(size(p.value + 128), pitch, 7, wide, size(1)),
        cu.cuMemcpyDtoH_v2(here, p, n),
        [list(here.raw[row * 64 : row * 64 + 10]) for row in range(4)],
    )[-1]"""
    rows = [[*range(8), 9, 9], [0] * 8 + [9, 9], [7] * 8 + [9, 9], [9] * 10]
    assert container.run("/usr/bin/python3", "-c", MEMORY, call) == f"{rows}\n"
