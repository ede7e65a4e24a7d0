"""`python -m bench.prepare`: a table as it goes, and one line of JSON at the end.

Milliseconds of single calls at 0, 100, 500 and 1000 prepared claims, and beside them what a Prepare
is made of (a GET, a file made durable, an empty call); then 8 calls at once, a batch of 50, a
restart.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.prepare.anchors import Files, Gets
from bench.prepare.site import Claim, Site
from bench.prepare.stats import p50_ms, p99_ms
from tests.harness import golang
from tests.harness.versions import DEFAULT_KUBERNETES
from tests.node.support.apiserver import ApiServer

LEVELS = (0, 100, 500, 1000)
SAMPLES = 200
AT_ONCE, ROUNDS = 8, 25
BATCH = 50
_RAMP = 20


def main() -> None:
    """Measure all, print all."""
    programs = golang.kubernetes(DEFAULT_KUBERNETES)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="ap-") as disk,
        tempfile.TemporaryDirectory(prefix="ap-", dir="/dev/shm") as memory,
        ApiServer(programs, Path(folder) / "api") as server,
    ):
        site = Site(server, Path(disk), Path(memory))
        try:
            with site.kubelet:
                result = _measure(site)
        finally:
            site.close(Path("build/bench-prepare.log"))
    print(json.dumps(result))


def _measure(site: Site) -> dict[str, Any]:
    result: dict[str, Any] = {"start_to_slice_s": round(site.start(), 2)}
    _say(f"start to slice {result['start_to_slice_s']} s")
    gets, files = Gets(site.server), Files(site.host.root / "anchor")
    empties: list[float] = []
    prepared: list[Claim] = []
    tables: dict[str, dict[str, float]] = {"prepare_p50_ms": {}, "prepare_p99_ms": {}}
    unprepares: list[float] = []
    site.kubelet.wait_for(1)
    probes = site.claims(SAMPLES)
    _one_by_one(site, probes[:20])  # the first calls open connections
    result["rss_mib_0"] = _rss(site)
    for level in LEVELS:
        began = site.cpu()
        _fill(site, prepared, level)
        spent = site.cpu() - began
        gets_before, files_before = len(gets.seconds), len(files.seconds)
        times, removals = _one_by_one(site, probes, gets, files)
        empties += [site.prepare() for _ in range(50)]
        unprepares += removals
        tables["prepare_p50_ms"][str(level)] = p50_ms(times)
        tables["prepare_p99_ms"][str(level)] = p99_ms(times)
        _say(
            f"{level:5} prepared: prepare p50 {p50_ms(times)} ms, p99 {p99_ms(times)} ms, "
            f"unprepare p50 {p50_ms(removals)} ms; "
            f"GET p50 {p50_ms(gets.seconds[gets_before:])} ms, "
            f"durable file p50 {p50_ms(files.seconds[files_before:])} ms; "
            f"{spent:.2f} CPU s to get there"
        )
    gets.close()
    first, last = (tables["prepare_p50_ms"][str(LEVELS[i])] for i in (0, -1))
    result |= tables
    result |= {
        "growth_1000": round(last / first, 3),
        "unprepare_p50_ms": p50_ms(unprepares),
        "fsync_p50_ms": p50_ms(files.seconds),
        "api_get_p50_ms": p50_ms(gets.seconds),
        "empty_call_p50_ms": p50_ms(empties),
        "rss_mib_1000": _rss(site),
    }
    return result | _together(site, probes, prepared)


def _together(site: Site, probes: Sequence[Claim], prepared: Sequence[Claim]) -> dict[str, Any]:
    """Measure what is done at the highest level, after the levels."""
    repeats = [site.prepare(claim) for claim in prepared[:SAMPLES]]
    began = site.cpu()
    times, errors, seconds = _at_once(site, probes)
    cpu = site.cpu() - began
    _say(f"{AT_ONCE} at once: p99 {p99_ms(times)} ms, {len(times) / seconds:.0f} claims/s")
    batches = []
    for _ in range(5):
        batches.append(site.prepare(*probes[:BATCH]))
        site.unprepare(*probes[:BATCH])
    restarts = [site.restart(claim) for claim in prepared[:3]]
    _say(f"batch of {BATCH}: {p50_ms(batches)} ms; restart: {sorted(restarts)} s")
    return {
        "repeat_p50_ms": p50_ms(repeats),
        "eight_at_once_p50_ms": p50_ms(times),
        "eight_at_once_p99_ms": p99_ms(times),
        "eight_at_once_errors": len(errors),
        "eight_at_once_claims_per_s": round(len(times) / seconds),
        "cpu_s_per_1000": round(cpu / (len(times) + len(errors)) * 1000, 2),
        f"batch_{BATCH}_ms": p50_ms(batches),
        "restart_1000_s": round(sorted(restarts)[len(restarts) // 2], 2),
    }


def _fill(site: Site, prepared: list[Claim], level: int) -> None:
    missing = level - len(prepared)
    made = site.claims(missing)
    for at in range(0, missing, _RAMP):
        site.prepare(*made[at : at + _RAMP])
    prepared += made


def _one_by_one(
    site: Site, probes: Sequence[Claim], gets: Gets | None = None, files: Files | None = None
) -> tuple[list[float], list[float]]:
    """Prepare and unprepare each; what both rest on is measured in turns with them."""
    times, removals = [], []
    for claim in probes:
        if gets and files:
            gets.get(claim)
            files.write()
        times.append(site.prepare(claim))
        removals.append(site.unprepare(claim))
    return times, removals


def _at_once(site: Site, probes: Sequence[Claim]) -> tuple[list[float], list[str], float]:
    """Eight callers, each with claims of its own; return seconds, errors, and seconds in all."""
    times: list[float] = []
    errors: list[str] = []

    def caller(number: int) -> None:
        for claim in probes[number : ROUNDS * AT_ONCE : AT_ONCE]:
            try:
                times.append(site.prepare(claim))
            except RuntimeError as error:
                errors.append(str(error))

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(caller, range(AT_ONCE)))
    seconds = time.perf_counter() - began
    for claim in probes:
        site.unprepare(claim)
    return times, errors, seconds


def _rss(site: Site) -> float:
    assert site.plugin
    return round(site.plugin.rss() / (1 << 20), 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
