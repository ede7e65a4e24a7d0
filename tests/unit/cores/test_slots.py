"""Where shares go in a period: never on each other, exactly their part, no move without need."""

from __future__ import annotations

import pytest
from apportion.cores import slots
from apportion.cores.slots import CELLS, Member, NoRoomError, Slot
from hypothesis import given
from hypothesis import strategies as st

Slots = dict[str, Slot]

_CORES = st.integers(0, CELLS - 1)
_COMINGS = st.lists(st.tuples(st.integers(0, 30), _CORES), max_size=80)


def sound(found: Slots) -> bool:
    taken = [cell for slot in found.values() for cell in range(slot.start, slot.end)]
    return len(taken) == len(set(taken)) and all(0 <= cell < CELLS for cell in taken)


def put(found: Slots, name: str, cells: int) -> int:
    """Place a share as the plugin does, one write after the other; return how many moved."""
    placement = slots.place(found, cells)
    for key, slot in placement.moves:
        # Into what is free or its own, at the moment of the move.
        others = {other: each for other, each in found.items() if other != key}
        assert slots.fits(others, slot)
        assert slot.cells == found[key].cells
        found[key] = slot
    assert slots.fits(found, placement.slot)
    found[name] = placement.slot
    return len(placement.moves)


@given(_COMINGS)
def test_whatever_comes_and_goes_nothing_overlaps_and_all_that_fits_gets_its_part(
    comings: list[tuple[int, int]],
) -> None:
    found: Slots = {}
    for number, cores in comings:
        name, cells = f"s{number}", slots.cells_of(cores)
        found.pop(name, None)
        before = dict(found)
        free = CELLS - sum(slot.cells for slot in found.values())
        if cells > free:
            with pytest.raises(NoRoomError, match=f"{cells} % .* {free} % are free"):
                slots.place(found, cells)
            assert found == before
            continue
        gap = max((each.cells for each in slots.gaps(found)), default=0)
        moved = put(found, name, cells)
        assert sound(found)
        assert found[name].cells == cells
        assert (moved > 0) == (gap < cells)


@given(st.lists(st.integers(1, CELLS), max_size=20))
def test_gaps_are_what_slots_leave(sizes: list[int]) -> None:
    found: Slots = {}
    for number, size in enumerate(sizes):
        if size <= CELLS - sum(slot.cells for slot in found.values()):
            put(found, f"s{number}", size)
    gaps = slots.gaps(found)
    assert sound(found | {f"gap{n}": gap for n, gap in enumerate(gaps)})
    assert sum(each.cells for each in [*gaps, *found.values()]) == CELLS


def test_a_share_goes_into_the_smallest_gap_that_takes_it_and_nobody_moves() -> None:
    found = {"a": Slot(30, 10), "b": Slot(60, 40)}
    assert slots.place(found, 20) == slots.Placement(Slot(40, 20))
    assert slots.place(found, 25) == slots.Placement(Slot(0, 25))


def test_shares_move_down_until_the_gap_is_large_enough_and_no_further() -> None:
    found = {"a": Slot(10, 20), "b": Slot(40, 20), "c": Slot(70, 30)}
    placement = slots.place(found, 20)
    assert placement.moves == (("a", Slot(0, 20)),)
    assert placement.slot == Slot(20, 20)
    placement = slots.place(found, 30)
    assert placement.moves == (("a", Slot(0, 20)), ("b", Slot(20, 20)))
    assert placement.slot == Slot(40, 30)


def test_no_cores_are_a_little_and_never_all() -> None:
    assert slots.cells_of(0) == 1
    assert slots.place({"a": Slot(0, 99)}, slots.cells_of(0)).slot == Slot(99, 1)
    with pytest.raises(NoRoomError):
        slots.place({"a": Slot(0, 60), "b": Slot(60, 40)}, slots.cells_of(0))


@pytest.mark.parametrize(
    "slot", [Slot(-1, 5), Slot(98, 3), Slot(5, 0), Slot(10, 1), Slot(29, 5), Slot(5, 30)]
)
def test_what_does_not_fit_does_not(slot: Slot) -> None:
    assert not slots.fits({"a": Slot(10, 20)}, slot)


_MEMBERS = st.lists(
    st.tuples(st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=12
)


@given(_MEMBERS)
def test_only_what_nobody_wants_is_lent_once_and_all_of_it(
    parts: list[tuple[int, bool, bool]],
) -> None:
    found: Slots = {}
    members: dict[str, Member] = {}
    for number, (cores, burst, wants) in enumerate(parts):
        if cores <= CELLS - sum(slot.cells for slot in found.values()):
            name = f"s{number}"
            put(found, name, cores)
            members[name] = Member(found[name], cores, burst, wants)
    lent = slots.lend(members)
    guests = {key for key, each in members.items() if each.burst and each.wants}
    assert set(lent) == guests
    busy = {key: each.slot for key, each in members.items() if each.wants}
    given_away = {f"{key}/{n}": slot for key, all_ in lent.items() for n, slot in enumerate(all_)}
    assert sound(busy | given_away)
    total = sum(slot.cells for slot in (busy | given_away).values())
    assert total == (CELLS if guests else sum(slot.cells for slot in busy.values()))


def test_what_is_idle_is_divided_by_cores_and_joined() -> None:
    members = {
        "a": Member(Slot(0, 10), 10, burst=True, wants=True),
        "b": Member(Slot(10, 30), 30, burst=True, wants=True),
        "c": Member(Slot(40, 20), 20, burst=False, wants=False),
    }
    # 60 cells are idle: the slot of c and what nobody has.
    assert slots.lend(members) == {"a": (Slot(40, 15),), "b": (Slot(55, 45),)}


def test_who_may_not_burst_or_wants_nothing_gets_nothing() -> None:
    members = {
        "a": Member(Slot(0, 10), 10, burst=False, wants=True),
        "b": Member(Slot(10, 30), 30, burst=True, wants=False),
    }
    assert slots.lend(members) == {}
