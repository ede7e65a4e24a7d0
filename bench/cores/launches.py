"""What a launch costs through the front: in its share's slot, and where cores are not limited."""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Final

from bench.shim.scenes import BUILD, card_of
from bench.shim.scenes import HERE as SHIM_BENCH
from tests.shim import cores, support
from tests.shim.schedules import MS, Account

CALLS: Final = 512  # launches in a round, which ends with a wait for them
PERIOD: Final = 10_000 * MS
IN_SLOT: Final = 99


def measure(folder: Path, driver: Path | None) -> dict[str, float]:
    """Return both figures; `driver`: a real one's folder, or None for the simulated one."""
    support.make(SHIM_BENCH, f"BUILD={BUILD}", f"FAKES={support.LIBDIR}")
    rounds = 200 if driver else 2000
    return {
        f"launch_{where}_over_native_ns": _over_native(folder, driver, percent, rounds)
        for where, percent in (("in_slot", IN_SLOT), ("unlimited", 100))
    }


def _over_native(folder: Path, driver: Path | None, percent: int, rounds: int) -> float:
    """Return nanoseconds that a launch takes over a native one, the median of the rounds.

    Both sides take turns in one process. On the simulated driver a launch is done at once. 100
    percent are not limited; else nearly all of the time is the share's slot.
    """
    folder = folder / f"launches-{percent}"
    state = support.state_folder(folder / "state", support.gpus_conf())
    container = support.Container(folder, state, driver=driver or support.LIBDIR)
    slot = (0, PERIOD * min(percent, IN_SLOT) // 100)
    gpu = card_of(driver) if driver else support.uuid()
    share = cores.share_of(container, percent, [slot], period=PERIOD, gpu=gpu)
    # Whatever path leads to the driver's own library: the front's comes first.
    path = f"/run/front:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    text = container.run(
        str(BUILD / "calls"), "both", "launch", "0", "0", str(rounds), str(CALLS),
        env={**os.environ, "LD_LIBRARY_PATH": path},
    )  # fmt: skip
    if percent == IN_SLOT and not Account.of(share).wanted:
        raise SystemExit("bench-cores: the launches did not come through the front")
    pairs = [tuple(map(float, line.split())) for line in text.splitlines()]
    return statistics.median(front - native for native, front in pairs)
