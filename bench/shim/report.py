"""The table and the line of JSON."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Final

from bench.shim.scenes import Pair, Row

# Keys of the JSON line: the larger of the rows named.
KEYS: Final = {
    "alloc_free_over_native_ns": ("alloc_2m", "alloc_512"),
    "alloc_free_over_native_ns_100k_live": ("alloc_512_100k", "alloc_2m_100k"),
    "async_alloc_free_over_native_ns": ("async_512", "async_2m"),
    "mem_info_over_native_ns": ("info",),
    "launch_over_native_ns": ("launch",),
}


def machine(driver: str) -> str:
    """Return what the figures were measured on."""
    cpu = "an unnamed processor"
    for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if text.startswith("model name"):
            cpu = text.split(":", 1)[1].strip()
            break
    cores = text_of("nproc")
    libc, gcc = platform.libc_ver()[1], text_of("gcc", "-dumpfullversion")
    return f"{cores} cores of {cpu}, Linux {platform.release()}, glibc {libc}, gcc {gcc}; {driver}"


def text_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def table(rows: list[Row], pairs: dict[str, Pair], storm: dict[str, float], on: str) -> str:
    """Return all figures as a table in Markdown."""
    lines = [
        f"Measured on {on}.",
        "",
        "| call | native, ns | the front over it, ns | half of the rounds | instructions |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        own = "" if row.instructions is None else f"{row.instructions:.0f}"
        spread = f"{row.quarter:.1f} to {row.three_quarters:.1f}"
        lines.append(f"| {row.call.name} | {row.native:.1f} | {row.over:.1f} | {spread} | {own} |")
    lines += [
        "",
        "| scene | native, ms | front, ms | times | half of the rounds | by processor time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for pair in pairs.values():
        spread = f"{pair.quarter:.2f} to {pair.three_quarters:.2f}"
        lines.append(
            f"| {pair.name} | {pair.native:.1f} | {pair.front:.1f} | {pair.ratio:.2f} "
            f"| {spread} | {pair.processor:.2f} |"
        )
    lines += ["", *(f"{name}: {value:.1f}" for name, value in storm.items())]
    return "\n".join(lines)


def line(rows: list[Row], pairs: dict[str, Pair], storm: dict[str, float]) -> dict[str, float]:
    """Return the figures that have a goal, by their keys."""
    over = {row.call.key: row.over for row in rows}
    found = {
        key: round(max(over[name] for name in names if name in over), 1)
        for key, names in KEYS.items()
    }
    return found | {
        "cuinit64_ratio": round(pairs["start_init"].ratio, 3),
        "cuinit64_processor_time_ratio": round(pairs["start_init"].processor, 3),
        "first_alloc64_ratio": round(pairs["start_alloc"].ratio, 3),
        **storm,
    }
