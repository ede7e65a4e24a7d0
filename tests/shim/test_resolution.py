"""Every way by which a program comes by a function leads to the front, and only for the hooked."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.shim.support import LIBDIR, MIB, REPO, Container

HOOKS = re.findall(r"^HOOK\((\w+),", (REPO / "shim/src/cuda/hooks.def").read_text(), re.MULTILINE)
OTHERS = ["cuInit", "cuCtxGetCurrent", "cuLaunchKernel", "cuMemcpyHtoD_v2", "cuDriverGetVersion"]


def ways(container: Container, program: str, way: str, names: list[str]) -> dict[str, str]:
    """Return which library each name was found in: F(ront), D(river), - (none)."""
    lines = container.run(f"/run/bin/{program}", way, *names).splitlines()
    return dict(map(str.split, lines))


@pytest.mark.parametrize("program", ["resolve", "resolve-linked"])
@pytest.mark.parametrize("way", ["handle", "default", "dlmopen"])
def test_hooked_functions_come_from_the_front(container: Container, program: str, way: str) -> None:
    seen = ways(container, program, way, [*HOOKS, *OTHERS, "cuNoSuchThing"])
    assert {name: seen[name] for name in HOOKS} == dict.fromkeys(HOOKS, "F")
    assert {name: seen[name] for name in OTHERS} == dict.fromkeys(OTHERS, "D")
    assert seen["cuNoSuchThing"] == "-"


def test_the_next_library_of_a_linked_program_is_the_front(container: Container) -> None:
    for _ in range(2):
        seen = ways(container, "resolve-linked", "next", [*HOOKS, *OTHERS])
        assert {name: seen[name] for name in HOOKS} == dict.fromkeys(HOOKS, "F")
        assert {name: seen[name] for name in OTHERS} == dict.fromkeys(OTHERS, "D")


def test_asking_for_a_version_never_gives_the_drivers_own(container: Container) -> None:
    seen = ways(container, "resolve", "dlvsym", HOOKS)
    assert set(seen.values()) <= {"F", "-"}


def exports(library: Path) -> set[str]:
    """Return the names that a library defines for others."""
    text = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(library)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return {line.split("@")[0] for line in text.split()}


def test_proc_address_is_the_drivers_but_for_the_pointer(container: Container) -> None:
    """Name, version, flags and status for every export of the driver, with and without suffix."""
    names = {name for name in exports(LIBDIR / "libcuda.so.1") if name.startswith("cu")}
    bare = {re.sub(r"(_v\d|_ptsz|_ptds)+$", "", name) for name in names}
    lines = container.run("/run/bin/proc_address", *sorted(names | bare), "cuNoSuchThing", "")
    differences = lines.splitlines()
    assert differences[:-1] == []
    assert int(differences[-1]) > 10_000


def test_a_linked_program_is_held(container: Container) -> None:
    container.share(64 * MIB)
    assert container.run("/run/bin/linked", env={}).split() == ["0", str(64 * MIB), "0", "2"]


@pytest.mark.parametrize("name", ["libcuda.so.1", "/run/front/libcuda.so.1"])
def test_python_by_ctypes_is_held(container: Container, name: str) -> None:
    container.share(64 * MIB)
    code = f"""
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
assert ctypes.CDLL({name!r})._handle == cu._handle
c, p = ctypes.c_void_p(), ctypes.c_uint64(7)
cu.cuInit(0); cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); cu.cuCtxSetCurrent(c)
print(cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(65 << 20)), p.value)
"""
    assert container.run("/usr/bin/python3", "-c", code).split() == ["2", "7"]


def test_loading_leaves_nothing_open(container: Container) -> None:
    container.share(64 * MIB)
    code = """
import ctypes, os
before = os.listdir("/proc/self/fd")
cu = ctypes.CDLL("libcuda.so.1"); ctypes.CDLL("libnvidia-ml.so.1")
c, p = ctypes.c_void_p(), ctypes.c_uint64(0)
assert os.listdir("/proc/self/fd") == before
cu.cuInit(0); cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); cu.cuCtxSetCurrent(c)
with_driver = os.listdir("/proc/self/fd")
cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20))
assert os.listdir("/proc/self/fd") == with_driver
print("nothing")
"""
    assert container.run("/usr/bin/python3", "-c", code) == "nothing\n"
