"""What was built: names, needs, exports, versions, layout."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.shim.support import (
    DRIVER_DIR,
    LEDGER_MAGIC,
    LEDGER_SIZE,
    LIBRARIES,
    PROGRAMS,
    REPO,
    SHIM,
)

TABLES = {"libcuda.so.1": "cuda", "libnvidia-ml.so.1": "nvml"}
MARKS = {"apportion_shim_build_id", "apportion_shim_version"}


def output(*command: str) -> str:
    """Return what a tool of the compiler's says."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(library: str, *flags: str) -> list[str]:
    """Return the lines of `nm` for a library's dynamic symbols."""
    return output("nm", "--dynamic", *flags, str(SHIM / library)).splitlines()


@pytest.mark.parametrize("library", LIBRARIES)
def test_name_and_needs(library: str) -> None:
    dynamic = output("readelf", "--dynamic", "--wide", str(SHIM / library))
    assert re.findall(r"SONAME\).*\[(.*)\]", dynamic) == [library]
    needed = re.findall(r"NEEDED\).*\[(.*)\]", dynamic)
    assert needed == [f"{DRIVER_DIR}/{library}", "libdl.so.2", "libc.so.6"]
    assert "NODELETE" in dynamic
    assert "NOW" in dynamic
    assert "TEXTREL" not in dynamic
    assert not re.search(r"R(UN)?PATH", dynamic)


@pytest.mark.parametrize("library", LIBRARIES)
def test_exports_are_the_table(library: str) -> None:
    text = (REPO / "shim/src" / TABLES[library] / "hooks.def").read_text()
    hooks = set(re.findall(r"^(?:HOOK|GATE)\((\w+),", text, re.MULTILINE))
    exported = {line.split()[-1] for line in symbols(library, "--defined-only")}
    assert exported == hooks | MARKS


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_runs_on_old_glibc(library: str) -> None:
    versions = re.findall(r"@GLIBC_([\d.]+)", "\n".join(symbols(library, "--undefined-only")))
    assert max(tuple(map(int, version.split("."))) for version in versions) <= (2, 17)


@pytest.mark.parametrize("library", LIBRARIES)
def test_it_neither_ends_nor_signals_nor_prints_by_stdio(library: str) -> None:
    wanted = {line.split()[-1].split("@")[0] for line in symbols(library, "--undefined-only")}
    unwanted = {
        "exit", "_exit", "abort", "signal", "sigaction", "umask", "printf", "fprintf", "puts",
        "malloc", "free", "calloc", "realloc", "fork", "system", "setenv",
    }  # fmt: skip
    assert wanted & unwanted == set()


def test_the_build_id_is_in_both_and_in_the_file() -> None:
    build = (SHIM / "BUILD_ID").read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{16}", build)
    for library in LIBRARIES:
        data = (SHIM / library).read_bytes()
        assert build.encode() in data
        notes = output("readelf", "--notes", "--wide", str(SHIM / library))
        assert re.search(r"Build ID: [0-9a-f]{40}", notes)
        assert "Apportion" in notes


def test_the_hook_is_static() -> None:
    assert "INTERP" not in output(
        "readelf", "--segments", "--wide", str(SHIM / "apportion-ldcache")
    )


class Header(ctypes.LittleEndianStructure):
    """The ledger's header, as the contract words it."""

    _fields_ = (
        ("magic", ctypes.c_uint64), ("version", ctypes.c_uint32), ("header_size", ctypes.c_uint32),
        ("slot_size", ctypes.c_uint32), ("slot_count", ctypes.c_uint32), ("total", ctypes.c_uint64),
        ("denied", ctypes.c_uint64), ("peak", ctypes.c_uint64), ("dirty", ctypes.c_uint32),
        ("clean", ctypes.c_uint32), ("top", ctypes.c_uint32), ("context_mib", ctypes.c_uint32),
    )  # fmt: skip


class Slot(ctypes.LittleEndianStructure):
    """A process's line of the ledger."""

    _fields_ = (
        ("seq", ctypes.c_uint64), ("used", ctypes.c_uint64), ("pid", ctypes.c_uint32),
        ("reserved0", ctypes.c_uint32), ("started", ctypes.c_uint64),
        ("namespace", ctypes.c_uint64), ("died", ctypes.c_uint64),
        ("busy_until_ns", ctypes.c_uint64), ("object", ctypes.c_uint64),
    )  # fmt: skip


class Cores(ctypes.LittleEndianStructure):
    """A share's time on the GPU, behind the header."""

    _fields_ = (
        ("used_ns", ctypes.c_uint64), ("waited_ns", ctypes.c_uint64),
        ("overrun_ns", ctypes.c_uint64), ("wanted_ns", ctypes.c_uint64),
        ("carry_ns", ctypes.c_int64), ("given_until_ns", ctypes.c_uint64),
        ("taken_until_ns", ctypes.c_uint64), ("reserved", ctypes.c_uint64),
    )  # fmt: skip


def test_the_layout_is_the_same_from_c_and_from_ctypes() -> None:
    layout = json.loads(output(str(PROGRAMS / "layout")))
    for prefix, structure in (("header", Header), ("slot", Slot), ("cores", Cores)):
        assert layout[f"sizeof {prefix}"] == ctypes.sizeof(structure) == 64
        for name, offset in layout.items():
            if name.startswith(f"{prefix}."):
                assert getattr(structure, name.split(".")[1]).offset == offset, name
    assert layout["LEDGER_MAGIC"].to_bytes(8, "little") == LEDGER_MAGIC
    assert layout["LEDGER_SIZE"] == LEDGER_SIZE
    assert layout["LEDGER_SLOTS_OFFSET"] == 4096
    assert layout["LEDGER_CORES_OFFSET"] == 64
    assert layout["LEDGER_LOCK_SLOTS"] == layout["LEDGER_LOCK_SWEEP"] + 1 > LEDGER_SIZE


def test_installing_needs_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "-s", "-C", str(REPO / "shim"), "install", f"BUILD={SHIM}", f"DESTDIR={tmp_path}"],
        check=True,
    )
    installed = sorted(path.name for path in (tmp_path / "usr/lib/apportion").iterdir())
    assert installed == sorted([*LIBRARIES, "apportion-ldcache", "BUILD_ID"])
