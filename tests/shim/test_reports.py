"""What was publicly reported of other libraries of this kind, each as a behaviour of ours.

A test's name begins with the report: hc is Project-HAMi/HAMi-core, h Project-HAMi/HAMi, gm
tkestack/gpu-manager, vm coldzerofear/vgpu-manager. Other such tests are in the file of their
family; kills, races and starts in numbers are in test_storms.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import (
    BLOCK,
    GIB,
    LIBDIR,
    MIB,
    OK,
    OOM,
    REPO,
    SENTINEL,
    SHIM,
    Container,
    gpus_conf,
    several,
    uuid,
)

LIMIT = 64 * MIB
ENTRIES = (REPO / "tests/fakes/cuda/entries.def").read_text()
EXPORTS = [
    (name, int(since))
    for name, since in re.findall(r"^ENTRY\(\w+, (\w+), (\d+), \w+\)", ENTRIES, re.MULTILINE)
]
HOOKS = re.findall(r"^HOOK\((\w+),", (REPO / "shim/src/cuda/hooks.def").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "untouched"),
    [
        (("alloc", LIMIT + 1), [SENTINEL]),
        (("pitch", 512, LIMIT // 512 + 1), [SENTINEL, SENTINEL]),
        (("managed", LIMIT + 1), [SENTINEL]),
        (("vmm-create", LIMIT + BLOCK), [0]),
        (("pool-async", LIMIT + 1, 0, 1), [SENTINEL]),
    ],
)
def test_hc55_h662_over_the_limit_is_out_of_memory_by_every_call(
    container: Container, command: tuple[str | int, ...], untouched: list[int]
) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask(*command) == [OOM, *untouched]


def test_hc191_h1844_a_second_process_sees_what_is_really_free(container: Container) -> None:
    share = container.share(4 * GIB)
    with container.client().start() as first:
        assert first.alloc(GIB) == OK
        with container.client().start() as second:
            assert second.info() == (3 * GIB, 4 * GIB)
            first.end()
            assert second.alloc(GIB) == OK
            assert share.total >= GIB
            assert second.alloc(3 * GIB) == OK
            assert second.info() == (0, 4 * GIB)


def test_hc241_survivors_stay_counted_when_others_die(container: Container) -> None:
    share = container.share(LIMIT)
    with several(container, 4) as (one, two, three, four):
        for client in (one, two, three, four):
            assert client.alloc(10 * MIB) == OK
        one.kill()
        three.kill()
        with container.client().start() as fifth:
            assert fifth.alloc(LIMIT - 20 * MIB) == OK
            assert fifth.alloc(BLOCK) == OOM
            assert sorted(filter(None, share.slots())) == [10 * MIB, 10 * MIB, LIMIT - 20 * MIB]
        for client in (two, four):
            assert client.alloc(10 * MIB) == OK
        assert share.total == 40 * MIB


def test_hc273_no_two_processes_both_pass_the_check(container: Container) -> None:
    """Two at a time for room that is enough for one, many times over."""
    container.share(LIMIT)
    with several(container, 2) as (one, two):
        for _ in range(200):
            one.send("fill", 40 * MIB, 1)
            two.send("fill", 40 * MIB, 1)
            granted = [client.read()[1] for client in (one, two)]
            assert sum(granted) == 1
            winner = one if granted[0] else two
            assert winner.ask("free-each", 1) == [OK, 1]


def test_hc86_h2500_no_lock_outlives_its_holder(container: Container) -> None:
    """Killed amid four threads that allocate without end; the next one waits for nobody."""
    share = container.share(LIMIT)
    for _ in range(20):
        with container.client().start() as victim:
            victim.send("churn", 1_000_000, 3 * MIB, 7, 4)
            with container.client().start() as peer:
                victim.kill()
                assert peer.alloc(LIMIT) == OK
                assert share.total == LIMIT


def test_hc248_a_process_killed_in_its_start_keeps_nobody_from_starting(
    container: Container,
) -> None:
    """Where the driver itself hangs in cuInit, and in the first context, and in its first call."""
    share = container.share(LIMIT)
    driver = FakeDriver(container.state)
    for function in ("cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc"):
        driver.hang(None, function, 30_000)
        victim = container.client()
        victim.send("start", 0)
        victim.send("alloc", BLOCK)
        wait_until_asleep(victim.process.pid)
        victim.kill()
        driver.clear()
        with container.client().start() as app:
            assert app.alloc(LIMIT) == OK
            assert app.alloc(BLOCK) == OOM
            assert share.total == LIMIT


def wait_until_asleep(pid: int) -> None:
    """Wait until the process has become the application and sleeps in the driver."""
    for _ in range(1_000_000):
        task = Path("/proc", str(pid))
        name, call = (task / "comm").read_text(), (task / "syscall").read_text().split()[0]
        # 35 nanosleep, 230 clock_nanosleep
        if name == "client\n" and call in {"35", "230"}:
            return
    raise AssertionError("it never slept")


def test_hc243_h1662_many_starts_at_once_are_all_held(container: Container) -> None:
    """That it is as fast as without is `make bench-shim`'s to show."""
    share = container.share(64 * BLOCK)
    with several(container, 64) as clients:
        for client in clients:
            client.send("fill", BLOCK, 2)
        answers = [client.read() for client in clients]
        assert sum(count for _, count in answers) == 64
        assert share.total == share.peak == 64 * BLOCK


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("0", {0: 0}),
        ("1", {0: 1}),
        ("1,0", {0: 1, 1: 0}),
        (uuid(1), {0: 1}),
        (uuid(1)[:12], {0: 1}),
    ],
    ids=["0", "1", "1,0", "uuid", "short-uuid"],
)
def test_hc225_each_card_has_its_own_share_whatever_is_visible(
    container: Container, visible: str, devices: dict[int, int]
) -> None:
    limits = [LIMIT, 2 * LIMIT]
    shares = [container.share(limits[card], gpu=uuid(card)) for card in (0, 1)]
    with container.client(env=os.environ | {"CUDA_VISIBLE_DEVICES": visible}) as app:
        for device, card in devices.items():
            app.start(device)
            assert app.info() == (limits[card], limits[card])
            assert app.alloc(limits[card]) == OK
            assert app.alloc(1) == OOM
        used = devices.values()
        assert [s.total for s in shares] == [limits[c] if c in used else 0 for c in (0, 1)]


def driver_of(version: int, folder: Path) -> Path:
    """Build the simulated driver with the exports of that CUDA version (11040 for 11.4) only."""
    names = [name for name, since in EXPORTS if since <= version]
    folder.mkdir()
    (folder / "exports.map").write_text("{ global: " + "; ".join(names) + "; local: *; };\n")
    objects = [*(LIBDIR.parents[3] / "obj/cuda").glob("*.o"),
               *(LIBDIR.parents[3] / "obj/common").glob("*.o")]  # fmt: skip
    subprocess.run(
        ["gcc", "-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-pthread",
         "-Wl,--version-script=exports.map", "-o", "libcuda.so.1", *map(str, objects)],
        cwd=folder, check=True,
    )  # fmt: skip
    shutil.copy(LIBDIR / "libnvidia-ml.so.1", folder)
    return folder


VERSIONS = [11040, 11080, 12000, 12020, 12040, 12080, 13000, 13020]


def of_version(container: Container, version: int) -> Container:
    """Return the container on a node whose driver is of that CUDA version."""
    text = f"{version // 1000}.{version % 1000 // 10}"
    (container.state / "gpus.conf").write_text(gpus_conf(cuda=text))
    return replace(container, driver=driver_of(version, container.folder / "driver"))


@pytest.mark.parametrize("version", VERSIONS)
def test_hc36_a_driver_of_any_version_is_held_and_lacks_what_it_lacks(
    container: Container, version: int
) -> None:
    """A driver of CUDA 11.5 has no cuGetProcAddress_v2, and none may seem to be there."""
    old = of_version(container, version)
    share = old.share(LIMIT)
    since = dict(EXPORTS)
    lines = old.run("/run/bin/resolve", "handle", *HOOKS).splitlines()
    expected = {name: "F" if since.get(name, version + 1) <= version else "-" for name in HOOKS}
    assert dict(map(str.split, lines)) == expected
    with old.client().start() as app:
        assert app.alloc(LIMIT) == OK
        assert app.ask("alloc", 1) == [OOM, SENTINEL]
        assert app.info() == (0, LIMIT)
        assert app.ask("free-each", 1) == [OK, 1]
        assert share.total == 0


@pytest.mark.parametrize("version", [12000, 12080, 13000, 13020])
def test_hc36_every_answer_of_a_drivers_cugetprocaddress_stays_its_own(
    container: Container, version: int
) -> None:
    """But for the pointer, which is the front's for what it watches: version, flags, status."""
    old = of_version(container, version)
    names = sorted(
        {name for names in re.findall(r"ENTRY\((\w+), (\w+),", ENTRIES) for name in names}
    )
    lines = old.run("/run/bin/proc_address", *names, "cuNoSuchThing", "").splitlines()
    assert lines[:-1] == []
    assert int(lines[-1]) > 10_000


@pytest.mark.parametrize("name", ["libcuda.so.1", "/run/fakegpu/elsewhere/libcuda.so.1"])
def test_hc215_a_library_in_another_place_is_held_too(container: Container, name: str) -> None:
    """As where an image's LD_LIBRARY_PATH names its own folder, with the front mounted there."""
    container.share(LIMIT)
    elsewhere = container.state / "elsewhere"
    elsewhere.mkdir()
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy(SHIM / library, elsewhere)
    code = f"""
import ctypes
cu = ctypes.CDLL({name!r})
assert [line.split()[-1] for line in open("/proc/self/maps") if "elsewhere/libcuda" in line]
for _ in range(1000):
    assert ctypes.CDLL({name!r}).cuMemAlloc_v2
c, p = ctypes.c_void_p(), ctypes.c_uint64(7)
print(cu.cuInit(0), cu.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), cu.cuCtxSetCurrent(c),
      cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(65 << 20)), p.value)
"""
    env = {"LD_LIBRARY_PATH": "/run/fakegpu/elsewhere"}
    assert container.run("/usr/bin/python3", "-c", code, env=env).split() == [
        "0",
        "0",
        "0",
        "2",
        "7",
    ]


def test_h1834_the_same_lookup_again_gives_the_same(container: Container) -> None:
    names = ["cuMemAlloc_v2", "cuDriverGetVersion"] * 500
    lines = container.run("/run/bin/resolve-linked", "next", *names).splitlines()
    assert set(lines) == {"cuMemAlloc_v2 F", "cuDriverGetVersion D"}
    assert len(lines) == 1000


def test_vm89_rtld_next_gives_the_front(container: Container) -> None:
    lines = container.run("/run/bin/resolve-linked", "next", *HOOKS).splitlines()
    assert {line.split()[1] for line in lines} == {"F"}


@pytest.mark.parametrize("way", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_gm169_cugetprocaddress_may_be_the_first_call(container: Container, way: str) -> None:
    """Before cuInit, and everything else by what it gave: as cudart does."""
    container.share(LIMIT)
    code = f"""
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
def get(name, *kinds):
    found = ctypes.c_void_p()
    more = (None,) if {way!r}.endswith("_v2") else ()
    assert cu.{way}(name, ctypes.byref(found), 12000, ctypes.c_uint64(0), *more) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(found.value)
p64 = ctypes.POINTER(ctypes.c_uint64)
alloc = get(b"cuMemAlloc", p64, ctypes.c_size_t)
init = get(b"cuInit", ctypes.c_uint)
retain = get(b"cuDevicePrimaryCtxRetain", ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
current = get(b"cuCtxSetCurrent", ctypes.c_void_p)
c, p = ctypes.c_void_p(), ctypes.c_uint64(7)
early = alloc(p, 4096)
print(early, init(0), retain(c, 0), current(c), alloc(p, 65 << 20), p.value, alloc(p, 64 << 20))
"""
    seen = container.run("/usr/bin/python3", "-c", code).split()
    assert seen == ["3", "0", "0", "0", "2", "7", "0"]
