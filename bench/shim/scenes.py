"""The measurements: which program runs in which container, and what it says."""

from __future__ import annotations

import ctypes
import re
import shutil
import statistics
import subprocess
import sys
import uuid as uuids
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.shim import support

HERE: Final = Path(__file__).resolve().parent
BUILD: Final = support.REPO / "build" / "bench"
FLOOR: Final = BUILD / "floor"
SHARE: Final = 1 << 50  # more than any card has: nothing is refused
PROCESSES: Final = 64
KILLS: Final = 1000
COUNTED: Final = 10_000  # calls under callgrind
# A round of calls is short beside a time slice, so that what else runs spoils few of them.
CALLS_A_ROUND: Final = {"floor": 1000, "gpu": 200}
ROUNDS: Final = {"floor": 20, "gpu": 2}  # times those asked for


@dataclass(frozen=True)
class Call:
    """A call to measure: `live` allocations of `size` bytes stay while it is made."""

    key: str
    name: str
    program: str
    size: int = 0
    live: int = 0


CALLS: Final = (
    Call("alloc_2m", "allocate and free 2 MiB", "alloc", 2 << 20, 10),
    Call("alloc_512", "allocate and free 512 B", "alloc", 512, 10),
    Call("alloc_512_alone", "the same, and no other piece in its block", "alloc", 512),
    Call("alloc_512_100k", "512 B with 100,000 live", "alloc", 512, 100_000),
    Call("async_512", "512 B, stream-ordered", "async", 512, 10),
    Call("async_2m", "2 MiB, stream-ordered", "async", 2 << 20, 10),
    Call("info", "memory information", "info"),
    Call("launch", "launch of an empty kernel", "launch"),
)
# 100,000 large ones fit only where memory costs nothing.
FLOOR_ONLY: Final = (Call("alloc_2m_100k", "2 MiB with 100,000 live", "alloc", 2 << 20, 100_000),)


@dataclass
class Row:
    """What one call cost natively, and over that through the front: nanoseconds."""

    call: Call
    native: float
    over: float
    quarter: float
    three_quarters: float
    instructions: float | None = None


@dataclass(frozen=True)
class Pair:
    """Milliseconds of a scene, natively and with the front, and the rounds' ratios."""

    name: str
    native: float
    front: float
    ratio: float
    quarter: float
    three_quarters: float
    processor: float  # the ratio by processor time


def ratios(taken: list[list[float]]) -> list[float]:
    """Return, round by round, front over native."""
    native, front = taken
    return [f / n for n, f in zip(native, front, strict=True)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def card_of(driver: Path) -> str:
    """Return the UUID of a real driver's first card, as a limits file has it."""
    cuda = ctypes.CDLL(str(driver / "libcuda.so.1"))
    found = (ctypes.c_ubyte * 16)()
    if cuda.cuInit(0) or cuda.cuDeviceGetUuid_v2(found, 0):
        raise SystemExit(f"bench-shim: the driver in {driver} has no card to measure on")
    return f"GPU-{uuids.UUID(bytes=bytes(found))}"


class Bench:
    """One run: `driver` is a real driver's folder, or None for the simulated ones."""

    def __init__(self, folder: Path, driver: Path | None, rounds: int) -> None:
        self.folder, self.driver, self.rounds = folder, driver, rounds
        self.driver_name = f"the driver in {driver}" if driver else "a driver that does nothing"
        self.made = 0

    def build(self) -> None:
        say("building")
        support.build("client", "storm")
        support.make(HERE, f"BUILD={BUILD}", f"FAKES={support.LIBDIR}")

    def container(self, driver: Path, *, memory: int = SHARE) -> support.Container:
        """Return a container of a share that no other measurement uses."""
        self.made += 1
        folder = self.folder / str(self.made)
        state = support.state_folder(folder / "state", support.gpus_conf())
        container = support.Container(folder, state, driver=driver)
        real = driver not in {FLOOR, support.LIBDIR}
        container.share(memory, gpu=card_of(driver) if real else support.uuid())
        return container

    def calls(self) -> list[Row]:
        wanted = CALLS if self.driver else (*CALLS, *FLOOR_ONLY)
        return [self._row(call) for call in wanted]

    def _row(self, call: Call) -> Row:
        where = "gpu" if self.driver else "floor"
        text = self.container(self.driver or FLOOR).run(
            str(BUILD / "calls"), "both", call.program,
            *map(str, (call.size, call.live, self.rounds * ROUNDS[where], CALLS_A_ROUND[where])),
        )  # fmt: skip
        pairs = [tuple(map(float, line.split())) for line in text.splitlines()]
        over = [front - native for native, front in pairs]
        quarter, middle, three_quarters = statistics.quantiles(over, n=4)
        native = statistics.median(native for native, _ in pairs)
        say(f"{call.name}: {native:.0f} ns natively, {middle:.0f} ns over that")
        return Row(call, native, middle, quarter, three_quarters)

    def count_instructions(self, rows: list[Row]) -> None:
        """Add to each row the front's own instructions for a call, if valgrind is here."""
        if not shutil.which("valgrind"):
            say("valgrind is not installed: no instructions (Debian: apt-get install valgrind)")
            return
        say("counting instructions")
        for row in rows:
            native, front = (self._instructions(row.call, side) for side in ("native", "front"))
            row.instructions = front - native

    def _instructions(self, call: Call, side: str) -> float:
        few, many = (self._callgrind(call, side, n) for n in (1000, 1000 + COUNTED))
        return (many - few) / COUNTED

    def _callgrind(self, call: Call, side: str, calls: int) -> int:
        command = self.container(FLOOR).command(
            "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
            str(BUILD / "calls"), side, call.program,
            *map(str, (call.size, min(call.live, 100), 1, calls)),
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode or not found:
            raise SystemExit(f"bench-shim: callgrind failed:\n{done.stdout}{done.stderr}")
        return int(found.group(1))

    def starts(self) -> dict[str, Pair]:
        """64 processes at once: to cuInit, and to a first allocation."""
        named = {"init": "cuInit", "alloc": "first allocation"}
        return {
            f"start_{what}": self._start(f"{PROCESSES} processes at once, to {name}", what)
            for what, name in named.items()
        }

    def _start(self, name: str, what: str) -> Pair:
        container = self.container(self.driver or support.LIBDIR)
        rounds = max(3, self.rounds // 4) if self.driver else self.rounds
        wall: list[list[float]] = [[], []]
        processor: list[list[float]] = [[], []]
        for _ in range(rounds):
            for side, library in enumerate((f"{support.DRIVER_DIR}/libcuda.so.1", "libcuda.so.1")):
                text = container.run(str(BUILD / "starts"), library, str(PROCESSES), what, "1")
                nanoseconds, microseconds = map(float, text.split())
                wall[side].append(nanoseconds / 1e6)
                processor[side].append(microseconds / 1e3)
        quarter, ratio, three_quarters = statistics.quantiles(ratios(wall), n=4)
        native, front = map(statistics.median, wall)
        cpu = statistics.median(ratios(processor))
        say(f"{name}: {native:.1f} ms natively, {front:.1f} ms, {ratio:.2f} times")
        return Pair(name, native, front, ratio, quarter, three_quarters, cpu)

    def storm(self) -> dict[str, float]:
        """1,000 random SIGKILLs among 8: the longest that a survivor's call took, in ms."""
        if self.driver:
            return {}
        return {
            "storm_longest_call_ms": self._storm("with the front", {}),
            "storm_longest_call_native_ms": self._storm(
                "natively", {"LD_LIBRARY_PATH": support.DRIVER_DIR}
            ),
        }

    def _storm(self, how: str, env: dict[str, str]) -> float:
        container = self.container(support.LIBDIR, memory=64 * support.MIB)
        text = container.run("/run/bin/storm", str(KILLS), "8", str(3 * support.MIB), "7", env=env)
        kills, errors, longest_us = map(int, text.split())
        if (kills, errors) != (KILLS, 0):
            raise SystemExit(f"bench-shim: the storm had {errors} errors in {kills} kills")
        say(f"{kills} kills {how}: a survivor's longest call took {longest_us / 1000:.1f} ms")
        return longest_us / 1000
