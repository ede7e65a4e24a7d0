"""Every way by which a program comes by a function leads to the front, and only for the hooked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.schedules import timeslice
from tests.shim.support import LIBDIR, MIB, REPO, Container

TABLE = (REPO / "shim/src/cuda/hooks.def").read_text()
HOOKS = re.findall(r"^HOOK\((\w+),", TABLE, re.MULTILINE)
GATES = re.findall(r"^GATE\((\w+),", TABLE, re.MULTILINE)
OTHERS = ["cuDeviceGetCount", "cuCtxGetCurrent", "cuMemcpyHtoD_v2", "cuDriverGetVersion"]


def ways(container: Container, program: str, way: str, names: list[str]) -> dict[str, str]:
    """Return which library each name was found in: F(ront), D(river), - (none)."""
    lines = container.run(f"/run/bin/{program}", way, *names).splitlines()
    return dict(map(str.split, lines))


@pytest.mark.parametrize("program", ["resolve", "resolve-linked"])
@pytest.mark.parametrize("way", ["handle", "default", "dlmopen"])
@pytest.mark.parametrize("cores", ["limited by time", "not limited"])
def test_launches_come_from_the_front_where_cores_are_limited_by_time(
    container: Container, program: str, way: str, cores: str
) -> None:
    container.share(64 * MIB)
    if cores == "limited by time":
        timeslice(container)
    there = exports(LIBDIR / "libcuda.so.1")
    library = "F" if cores == "limited by time" else "D"
    seen = ways(container, program, way, GATES)
    assert seen == {name: library if name in there else "-" for name in GATES}


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


def library(path: Path, source: str, *flags: str) -> Path:
    """Make a library of `source`, in C."""
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags],
        input=source, text=True, check=True,
    )  # fmt: skip
    return path


def test_another_librarys_functions_of_the_same_names_are_its_own(
    container: Container, tmp_path: Path
) -> None:
    """A profiler's, say, that comes before the front: neither hidden nor taken for the front's."""
    container.share(64 * MIB)
    source = "int cuLaunchKernel(void) { return 1; } int cuMemAlloc_v2(void) { return 1; }"
    env = {"LD_PRELOAD": str(library(tmp_path / "profiler.so", source))}
    found = {
        way: container.run("/run/bin/resolve", way, "cuLaunchKernel", "cuMemAlloc_v2", env=env)
        for way in ("default", "handle")
    }
    assert found == {
        "default": "cuLaunchKernel ?\ncuMemAlloc_v2 ?\n",
        "handle": "cuLaunchKernel D\ncuMemAlloc_v2 F\n",
    }


IFUNC = """
static int found(unsigned flags) { (void)flags; return 42; }
static int (*choose(void))(unsigned) { return found; }
int cuInit(unsigned flags) __attribute__((ifunc("choose")));
"""
PLAIN = "int cuInit(unsigned flags) { (void)flags; return 42; }"


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        (PLAIN, ["-Wl,--hash-style=gnu"]),
        (PLAIN, ["-Wl,--hash-style=sysv"]),
        (PLAIN, ["-Wl,--default-symver"]),
        (IFUNC, []),
    ],
    ids=["plain", "with the old table of symbols", "with versions", "chosen when it is loaded"],
)
def test_a_drivers_functions_are_found_however_it_was_linked(
    container: Container, tmp_path: Path, source: str, flags: list[str]
) -> None:
    container.driver = tmp_path / "driver"
    container.driver.mkdir()
    shutil.copy(LIBDIR / "libnvidia-ml.so.1", container.driver)
    library(container.driver / "libcuda.so.1", source, *flags)
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert container.run("/usr/bin/python3", "-c", code) == "42\n"
    seen = ways(container, "resolve", "handle", ["cuInit", "cuMemAlloc_v2", "cuLaunchKernel"])
    assert seen == {"cuInit": "F", "cuMemAlloc_v2": "-", "cuLaunchKernel": "-"}


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


@pytest.mark.parametrize("cores", ["limited by time", "not limited"])
def test_proc_address_is_the_drivers_but_for_the_pointer(container: Container, cores: str) -> None:
    """Name, version, flags and status for every export of the driver, with and without suffix."""
    if cores == "limited by time":
        timeslice(container)
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
