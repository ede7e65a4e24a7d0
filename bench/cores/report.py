"""The tables and the line of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.cores.rates import MS
from bench.cores.scenes import Group, Latency, Solo


def _solo_rows(solos: Sequence[Solo]) -> list[str]:
    shares = list(solos[0].got)
    lines = [
        "| kernel x batch | busy alone, % | " + " | ".join(f"{s} %" for s in shares) + " |",
        "| --- | --- |" + " --- |" * len(shares),
    ]
    for solo in solos:
        got = " | ".join(f"{solo.got[share]:.1f}" for share in shares)
        lines.append(f"| {solo.work} | {100 * solo.alone:.1f} | {got} |")
    return [*lines, ""]


def _group_rows(groups: Sequence[Group], title: str) -> list[str]:
    lines = [f"| {title} | of the work | period, ms | got, % of one process alone | sum |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for group in groups:
        works = " beside ".join(dict.fromkeys(map(str, group.works)))
        got = " + ".join(f"{percent:.1f}" for percent in group.got)
        shares = " + ".join(map(str, group.shares))
        period = group.period // MS
        lines.append(f"| {shares} | {works} | {period} | {got} | {sum(group.got):.1f} |")
    return [*lines, ""]


def _latency_rows(latencies: Sequence[Latency]) -> list[str]:
    lines = [
        "| period, ms | kernel of 1 ms in a share of 30 %: p50, ms | p99, ms | longest, ms | of |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.period // MS} | {each.middle:.1f} | {each.p99:.1f} | {each.most:.1f} "
        f"| {each.count} |"
        for each in latencies
    ]
    return [*lines, ""]


@dataclass
class Results:
    """What was measured; a part that was not is empty."""

    solo: list[Solo] = field(default_factory=list)
    extremes: list[Solo] = field(default_factory=list)
    plain: list[Group] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    by_default: list[Group] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def tables(self) -> str:
        """Return all as tables in Markdown."""
        lines = _solo_rows(self.solo) if self.solo else []
        lines += _solo_rows(self.extremes) if self.extremes else []
        lines += _group_rows(self.groups, "shares") if self.groups else []
        lines += (
            _group_rows(self.by_default, "shares, the default period") if self.by_default else []
        )
        lines += _group_rows(self.plain, "without shares") if self.plain else []
        lines += _latency_rows(self.latencies) if self.latencies else []
        return "\n".join(lines)

    def line(self) -> dict[str, float]:
        """Return the figures that have a goal."""
        found = dict(self.figures)
        if self.solo:
            found["solo_max_error_points"] = max(solo.error for solo in self.solo)
        if self.extremes:
            found["extremes_max_error_points"] = max(solo.error for solo in self.extremes)
        for name, groups in (("", self.groups), ("default_period_", self.by_default)):
            if groups:
                found[f"{name}pair_max_error_points"] = max(group.error for group in groups)
                found[f"{name}pair_min_sum_percent"] = min(sum(group.got) for group in groups)
        if self.plain:
            found["plain_pair_min_sum_percent"] = min(sum(group.got) for group in self.plain)
        for each in self.latencies:
            found[f"latency_p99_ms_{each.period // MS}"] = each.p99
        return {key: round(value, 2) for key, value in found.items()}
