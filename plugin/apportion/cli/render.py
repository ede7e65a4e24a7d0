"""Views as text for people and as JSON for programs. Pure.

The JSON is described in docs/status.md; fields are added to it and never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from apportion import quantity
from apportion.cli.view import CardView, ShareView, View

API_VERSION = "apportion.gpu/status/v1"
_NONE = "-"
_GAP = "  "
_Row = TypeVar("_Row", CardView, ShareView)


@dataclass(frozen=True, slots=True)
class _Column(Generic[_Row]):
    """One column: its title, its text for a row, and where it is shown."""

    title: str
    cell: Callable[[_Row], str]
    source: str = ""  # "node" or "cluster" only; empty: both
    wide: bool = False


def _mib(value: int | None) -> str:
    return _NONE if value is None else quantity.mib(value)


def _mib_of(part: int | None, whole: int | None) -> str:
    number = _NONE if part is None else str(part // quantity.MIB)
    return f"{number} / {_mib(whole)}"


def _plain(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 3)


def _time(share: ShareView) -> str:
    return _NONE if share.time is None else f"{_seconds(share.time.used):g}s"


def _slot(share: ShareView) -> str:
    return _NONE if share.slot is None else f"{share.slot.start}-{share.slot.end}%"


def _ago(seconds: int | None) -> str:
    """Return an age as kubectl writes it: in the largest unit of which it is two or more."""
    if seconds is None:
        return _NONE
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


_CARDS: tuple[_Column[CardView], ...] = (
    _Column("NODE", lambda card: card.node, source="cluster"),
    _Column("DEVICE", lambda card: card.device),
    _Column("PRODUCT", lambda card: card.product or _NONE),
    _Column("UUID", lambda card: card.uuid or _NONE),
    _Column("PCI", lambda card: card.pci or _NONE, wide=True),
    _Column("MEMORY USED", lambda card: _mib_of(card.used, card.memory), source="node"),
    _Column("HEALTH", lambda card: card.health or _NONE, wide=True),
    _Column("MEMORY GIVEN", lambda card: _mib_of(card.memory_given, card.memory)),
    _Column("CORES GIVEN", lambda card: f"{card.cores_given} / {_plain(card.cores)}"),
)

_SHARES: tuple[_Column[ShareView], ...] = (
    _Column("NODE", lambda share: share.node, source="cluster"),
    _Column("DEVICE", lambda share: share.device),
    _Column("CLAIM", lambda share: f"{share.namespace}/{share.claim}"),
    _Column("POD", lambda share: ",".join(share.pods) or _NONE),
    _Column("REQUEST", lambda share: share.request, wide=True),
    _Column("SHARE ID", lambda share: share.share_id or _NONE, wide=True),
    _Column("MEMORY USED", lambda share: _mib_of(share.used, share.memory)),
    _Column("SEEN", lambda share: _ago(share.age), source="cluster"),
    _Column("ACCESS", lambda share: share.access.value, wide=True),
    _Column("PEAK", lambda share: _mib(share.peak), wide=True),
    _Column("REFUSED", lambda share: _plain(share.refused), wide=True),
    _Column("PROCESSES", lambda share: _plain(share.processes), wide=True),
    _Column("CORES", lambda share: _plain(share.cores)),
    _Column("SLOT", _slot, source="node", wide=True),
    _Column("GPU TIME", _time, wide=True),
    _Column("STATE", lambda share: share.state),
)


def table(view: View, *, wide: bool = False) -> str:
    """Return two tables, cards and shares, each line ended by a newline.

    Args:
        view: what to show; nodes are a column where it is the cluster's, and when use was seen.
        wide: more columns.
    """
    if not view.cards:
        return f"No GPU of driver {view.driver}.\n" if view.complete else "Nothing could be read.\n"
    cards = _lines(_shown(_CARDS, view.source, wide=wide), view.cards)
    if not view.shares:
        return cards + "\nNo shares.\n"
    return cards + "\n" + _lines(_shown(_SHARES, view.source, wide=wide), view.shares)


def as_json(view: View) -> str:
    """Return the view as one JSON object with sorted keys, ended by a newline."""
    content = {
        "apiVersion": API_VERSION,
        "kind": "Status",
        "driver": view.driver,
        "source": view.source,
        "complete": view.complete,
        "problems": list(view.problems),
        "cards": [_card(card) for card in view.cards],
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _shown(columns: Sequence[_Column[_Row]], source: str, *, wide: bool) -> list[_Column[_Row]]:
    return [c for c in columns if c.source in ("", source) and (wide or not c.wide)]


def _lines(columns: Sequence[_Column[_Row]], rows: Sequence[_Row]) -> str:
    cells = [[column.title for column in columns]]
    cells += [[column.cell(row) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in cells
    )


def _card(card: CardView) -> dict[str, Any]:
    return {
        "node": card.node,
        "device": card.device,
        "uuid": card.uuid or None,
        "product": card.product or None,
        "pciBusID": card.pci or None,
        "memoryBytes": card.memory,
        "memoryGivenBytes": card.memory_given,
        "memoryUsedBytes": card.used,
        "cores": card.cores,
        "coresGiven": card.cores_given,
        "health": card.health or None,
        "shares": [_share(share) for share in card.shares],
    }


def _share(share: ShareView) -> dict[str, Any]:
    return {
        "namespace": share.namespace,
        "claim": share.claim,
        "claimUID": share.uid,
        "request": share.request,
        "pods": list(share.pods),
        "shareID": share.share_id,
        "state": share.state,
        "memoryLimitBytes": share.memory,
        "memoryUsedBytes": share.used,
        "memoryPeakBytes": share.peak,
        "refused": share.refused,
        "processes": share.processes,
        "coresLimit": share.cores,
        "coresMode": share.mode,
        "coresSlot": None if share.slot is None else [share.slot.start, share.slot.end],
        "coresUsedSeconds": None if share.time is None else _seconds(share.time.used),
        "coresWaitedSeconds": None if share.time is None else _seconds(share.time.waited),
        "coresOverrunSeconds": None if share.time is None else _seconds(share.time.overrun),
        "access": share.access.value,
        "useObservedAt": share.observed or None,
        "useAgeSeconds": share.age,
    }
