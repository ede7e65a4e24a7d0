"""The rows of docs/escapes.md that need no node and no GPU: each way as a program goes it.

A row that says "held" is refused at the limit here. One that is the guard's gets through here, and
its test says so: when that changes, the document is to change with it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.shim.support import (
    DRIVER_DIR,
    FAKES,
    LIBDIR,
    MIB,
    NO_CONTEXT,
    OK,
    OOM,
    REPO,
    SHIM,
    Container,
    Share,
    uuid,
)

LIMIT = 64 * MIB
OVER = LIMIT + 1
HELD = [OK, OOM]
AROUND = [OK, OK]
REAL = f"{DRIVER_DIR}/libcuda.so.1"


@pytest.fixture
def share(container: Container) -> Share:
    return container.share(LIMIT)


def escape(
    container: Container,
    way: str,
    *library: str,
    program: str = "escape",
    size: int = OVER,
    env: dict[str, str] | None = None,
) -> list[int]:
    """Return the results of the first context and of the allocation; none without a library."""
    said = container.run(f"/run/bin/{program}", way, str(size), *library, env=env)
    return [] if said == "none\n" else [int(word) for word in said.split()]


def held(share: Share, answers: list[int]) -> bool:
    """Return whether the front refused; the ledger knows of it, unlike of a full card."""
    return answers == HELD and share.denied == 1


@pytest.mark.parametrize("way", ["handle", "default", "dlvsym", "dlmopen", "address"])
def test_by_dlopen(container: Container, share: Share, way: str) -> None:
    assert held(share, escape(container, way))
    assert escape(container, way, size=LIMIT) == AROUND, "what is within the share is granted"


@pytest.mark.parametrize("way", ["handle", "default", "next", "dlvsym", "dlmopen", "address"])
def test_by_link(container: Container, share: Share, way: str) -> None:
    assert held(share, escape(container, way, program="escape-linked"))


def test_by_every_name_of_the_driver(container: Container, share: Share) -> None:
    """The CDI spec mounts the front over them all."""
    folder = "/run/libdir"
    names = ("libcuda.so.1", "libcuda.so", "libcuda.so.580.159.04")
    mounts = [f"mkdir {folder}"]
    mounts += [f"touch {folder}/{n}; mount --bind {SHIM}/libcuda.so.1 {folder}/{n}" for n in names]
    for count, name in enumerate(names, start=1):
        other = replace(container, extra="\n".join(mounts))
        assert escape(other, "handle", f"{folder}/{name}") == HELD
        assert share.denied == count


def test_by_a_static_program_that_loads_the_driver(container: Container, share: Share) -> None:
    """It finds the front; whether a driver with thread-local data works there is glibc's affair."""
    said = container.run("/run/bin/escape-static", "total", "0")
    assert said == f"0 {LIMIT}\n"
    assert share.total == 0


def test_h1112_without_an_environment(container: Container, share: Share) -> None:
    """As a login by SSH has it."""
    assert held(share, escape(container, "handle", env={}))
    assert container.run("/usr/bin/env", "-i", "/run/bin/escape", "address", str(OVER)) == "0 2\n"


def test_h1607_with_limits_in_the_environment(container: Container, share: Share) -> None:
    names = ("LIMIT", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "APPORTION_LIMIT")
    assert held(share, escape(container, "handle", env=dict.fromkeys(names, "100g")))


def test_by_musl_nothing_is_loaded(container: Container, share: Share) -> None:
    """Neither the front nor the driver: both need glibc."""
    env = {"LD_LIBRARY_PATH": f"/run/front:{DRIVER_DIR}"}
    assert escape(container, "handle", program="escape-musl", env=env) == []
    assert escape(container, "handle", "/run/front/libcuda.so.1", program="escape-musl") == []
    assert share.denied == 0


@pytest.mark.parametrize(
    ("gone", "answers"),
    [
        (REAL, []),
        ("/run/apportion/shares/*/ledger /run/apportion/shares/*", [OOM, NO_CONTEXT]),
        ("/run/apportion/shares/*/ledger", [OOM, NO_CONTEXT]),
    ],
)
def test_h1346_with_a_part_missing(
    container: Container, share: Share, gone: str, answers: list[int]
) -> None:
    """Nothing is "ignored": no driver, or no memory."""
    assert escape(replace(container, extra=f"umount {gone}"), "handle", size=4096) == answers
    assert share.total == 0


OWN = f"mkdir /run/compat && cp {LIBDIR}/libcuda.so.1 /run/compat/"
"""An image's own libcuda, as its package for forward compatibility has it."""


def test_by_a_libcuda_of_the_images_own_in_the_library_path(
    container: Container, share: Share
) -> None:
    other = replace(container, extra=OWN)
    assert escape(other, "handle", env={"LD_LIBRARY_PATH": "/run/compat"}) == AROUND
    assert share.total == 0


def test_the_same_with_the_front_preloaded(container: Container, share: Share) -> None:
    """As /etc/ld.so.preload would have it; what an absolute path leads to goes around that, too."""
    other = replace(container, extra=OWN)
    env = ["LD_LIBRARY_PATH=/run/compat", "LD_PRELOAD=/run/front/libcuda.so.1"]
    command = ["/usr/bin/env", *env, "/run/bin/escape", "handle", str(OVER)]
    assert other.run(*command) == "0 2\n"
    assert other.run(*command, "/run/compat/libcuda.so.1") == "0 0\n"
    assert share.denied == 1


@pytest.mark.parametrize("library", ["/run/compat/libcuda.so.1", REAL])
def test_by_the_path_of_another_libcuda(container: Container, share: Share, library: str) -> None:
    assert escape(replace(container, extra=OWN), "handle", library) == AROUND
    assert share.total == 0


def test_by_a_program_that_is_its_own_driver(container: Container, share: Share) -> None:
    """Static to the end: it opens the device files itself."""
    program = FAKES / "bin/cudamem-static"
    assert "CUDA_ERROR" not in container.run(str(program), "alloc", f"{OVER}B")
    assert share.total == 0


def test_h1777_by_a_container_in_the_container(container: Container, share: Share) -> None:
    """It has a library of its own and nothing of ours in sight."""
    nested = f"{OWN}; umount -R /run/apportion/shares/*; umount /etc/ld.so.cache"
    other = replace(container, extra=nested)
    assert escape(other, "handle", env={"LD_LIBRARY_PATH": "/run/compat"}) == AROUND
    assert share.total == 0


def test_h2760_questions_between_cards_are_the_drivers(container: Container) -> None:
    """Nothing of ours stands before them: the answer cannot differ."""
    names = ["cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuDeviceGetP2PAttribute"]
    hooks = re.findall(
        r"^HOOK\((\w+),", (REPO / "shim/src/cuda/hooks.def").read_text(), re.MULTILINE
    )
    assert not set(names) & set(hooks)
    container.share(LIMIT)
    container.share(LIMIT, gpu=uuid(1))
    code = """
import ctypes
front, real = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("/run/apportion/driver/libcuda.so.1")
front.cuInit(0)
for one in (front, real):
    can = ctypes.c_int(7)
    print(one.cuDeviceCanAccessPeer(ctypes.byref(can), 0, 1), can.value)
"""
    first, second = container.run("/usr/bin/python3", "-c", code).splitlines()
    assert first == second == "0 0"


DOCUMENT = REPO / "docs/escapes.md"


def test_every_test_that_the_document_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DOCUMENT.read_text()))
    assert len(named) > 10
    for path, name in named:
        assert re.search(rf"^def {name}\(", (REPO / path).read_text(), re.MULTILINE), (path, name)


def test_every_test_here_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    here = re.findall(r"^def (test_\w+)\(", Path(__file__).read_text(), re.MULTILINE)
    ways = [name for name in here if "the_document" not in name]
    assert [name for name in ways if f"::{name}`" not in text] == []
