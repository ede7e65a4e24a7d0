"""Shares of a GPU's time as a node has them: so many percent, with slots one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.shim.schedules import MS, put, schedule_bytes, state_bytes
from tests.shim.support import GIB, Container, Share, uuid

PERIOD: Final = 50 * MS

Slot = tuple[int, int]
"""Start and length in nanoseconds."""


def slots_of(*percents: int, period: int = PERIOD) -> list[Slot]:
    """Return one slot for each share, one behind the other."""
    ends = [sum(percents[: i + 1]) for i in range(len(percents))]
    return [
        (period * (end - percent) // 100, period * percent // 100)
        for end, percent in zip(ends, percents, strict=True)
    ]


def limits_text(key: str, gpu: str, memory: int, cores: int, policy: str = "cap") -> str:
    """Return a limits file of a share whose cores are limited by time."""
    return (
        f"apportion-limits 1\nshare {key}\nuuid {gpu}\nmemory {memory}\n"
        f"cores {cores}\ncores-policy {policy}\ncores-mode timeslice\n"
    )


def add_schedule(folder: Path, own: Sequence[Slot], period: int) -> None:
    """Put a schedule into a share's folder."""
    put(folder, schedule_bytes(state_bytes(own, period=period)))


def share_of(
    container: Container,
    cores: int,
    own: Sequence[Slot],
    *,
    period: int = PERIOD,
    gpu: str = uuid(),
    policy: str = "cap",
    memory: int = GIB,
) -> Share:
    """Give a container a share of a GPU's time."""
    key = f"time-{len(container.shares)}"
    share = container.share(key=key, text=limits_text(key, gpu, memory, cores, policy))
    add_schedule(share.folder, own, period)
    return share


def executes_in_time(container: Container) -> None:
    """Let the first card execute in time."""
    path = container.state / "gpus.conf"
    text = path.read_text()
    path.write_text(text.replace("[gpu 0]\n", "[gpu 0]\nexecutes = yes\n"))
