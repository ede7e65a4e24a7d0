"""Who has which part of a GPU's period. Pure.

A period has 100 cells, one for each percent of the cores, so every part is exact. A share has one
slot: cells in a row. A new share goes into the smallest gap that has room for it; where none has,
though enough is free in all, the shares before the gaps move towards the beginning, each into cells
that are free by then or its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

CELLS = 100

K = TypeVar("K", bound=str)


class NoRoomError(ValueError):
    """More cells are wanted than are free."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Cells in a row: the first one, counted from the period's beginning, and how many."""

    start: int
    cells: int

    @property
    def end(self) -> int:
        """The first cell behind it."""
        return self.start + self.cells


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a new share goes.

    Attributes:
        slot: the new share's.
        moves: what must be written before, in this order: share and its new slot. After each of
            them no two slots overlap.
    """

    slot: Slot
    moves: tuple[tuple[str, Slot], ...] = ()


def cells_of(cores: int) -> int:
    """Return how many cells a share of `cores` percent has: never none, since 0 is no right to all.

    The proof against over-commit counts the same way (ledger.account).
    """
    return max(1, cores)


def gaps(slots: Mapping[K, Slot]) -> tuple[Slot, ...]:
    """Return the free cells as slots, in order."""
    found, at = [], 0
    for slot in sorted(slots.values()):
        if slot.start > at:
            found.append(Slot(at, slot.start - at))
        at = slot.end
    if at < CELLS:
        found.append(Slot(at, CELLS - at))
    return tuple(found)


def fits(slots: Mapping[K, Slot], slot: Slot) -> bool:
    """Return whether a slot lies in the period and on nobody else's."""
    return (
        slot.cells > 0
        and slot.start >= 0
        and slot.end <= CELLS
        and all(slot.end <= other.start or other.end <= slot.start for other in slots.values())
    )


def place(
    slots: Mapping[K, Slot], cells: int, *, fixed: Collection[str] = (), lost: Sequence[int] = ()
) -> Placement:
    """Return where a share of that many cells goes beside the others.

    Args:
        slots: of the others, by share; they do not overlap.
        cells: how many the new one has.
        fixed: which of them cannot move.
        lost: cells of others of which nobody knows where they are: in some gap, where they fit.

    Raises:
        NoRoomError: fewer are free, or too few in a row where nobody moves.
    """
    if lost:
        # Each gap that may be theirs is, and nobody moves into one.
        dark = [gap for gap in gaps(slots) if gap.cells >= min(lost)]
        taken = dict(slots) | {f"lost {n}": gap for n, gap in enumerate(dark)}
        slot = _smallest(taken, cells)
        if slot is None:
            raise NoRoomError(
                f"{cells} % of the time are wanted, and where {sum(lost)} % are is not known"
            )
        return Placement(slot)
    free = sum(gap.cells for gap in gaps(slots))
    if cells > free:
        raise NoRoomError(f"{cells} % of the time are wanted and {free} % are free")
    now = dict(slots)
    moves: list[tuple[str, Slot]] = []
    order = iter(sorted(now, key=lambda key: now[key]))
    at = 0
    while (slot := _smallest(now, cells)) is None:
        key = next(order, None)
        if key is None:
            raise NoRoomError(f"{cells} % of the time are wanted in a row, and not all can move")
        if key in fixed:
            at = now[key].end
            continue
        moved = Slot(at, now[key].cells)
        at = moved.end
        if moved != now[key]:
            now[key] = moved
            moves.append((key, moved))
    return Placement(slot, tuple(moves))


def _smallest(slots: Mapping[K, Slot], cells: int) -> Slot | None:
    """Return the first cells of the smallest gap with room, the first such; None: there is none."""
    found = [gap for gap in gaps(slots) if gap.cells >= cells]
    if not found:
        return None
    return Slot(min(found, key=lambda gap: (gap.cells, gap.start)).start, cells)


@dataclass(frozen=True, slots=True)
class Member:
    """A share of a GPU, as far as lending goes.

    Attributes:
        slot: its own.
        cores: its percent, by which what is idle is divided.
        burst: whether it may use what others do not.
        wants: whether it has asked for time of late.
    """

    slot: Slot
    cores: int
    burst: bool
    wants: bool


def lend(members: Mapping[K, Member]) -> dict[K, tuple[Slot, ...]]:
    """Return the cells of others, and of nobody, that each burst share which wants may use.

    What shares do not use that want nothing, and what is free, is divided among them by their
    cores; a guest never gets cells that another one gets. Sorted.
    """
    guests = sorted(key for key, each in members.items() if each.burst and each.wants)
    if not guests:
        return {}
    idle = list(gaps({key: each.slot for key, each in members.items() if each.wants}))
    total = sum(slot.cells for slot in idle)
    weights = [cells_of(members[key].cores) for key in guests]
    found: dict[K, tuple[Slot, ...]] = {}
    at, passed = 0, 0
    for key, weight in zip(guests, weights, strict=True):
        passed += weight
        end = total * passed // sum(weights)
        found[key] = _taken(idle, end - at)
        at = end
    return found


def _taken(slots: list[Slot], cells: int) -> tuple[Slot, ...]:
    """Take that many cells from the front of the slots, which have them."""
    found = []
    while cells > 0:
        first = slots.pop(0)
        part = Slot(first.start, min(cells, first.cells))
        if part != first:
            slots.insert(0, Slot(part.end, first.cells - part.cells))
        found.append(part)
        cells -= part.cells
    return tuple(found)
