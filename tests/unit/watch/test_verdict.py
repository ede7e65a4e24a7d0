"""Who is over, and who must go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from apportion.model import Charge, Own, ShareKey
from apportion.watch import verdict
from apportion.watch.verdict import Group, Holder, Margin
from hypothesis import given
from hypothesis import strategies as st

MIB = 1 << 20
A, B, C = (ShareKey(f"claim-{n}") for n in range(3))
LIMITS = {A: 100 * MIB, B: 50 * MIB, C: 10 * MIB}
MARGIN = Margin(slack=2 * MIB, overhead=20 * MIB, recorded=40 * MIB)
STRICT = Margin(slack=2 * MIB, overhead=0, recorded=0)


def holder(
    pid: int, mib: int, *keys: ShareKey, own: tuple[int, int] | None = None, start: int = 0
) -> Holder:
    me = Own(*own) if own else Own(1, pid)
    return Holder(pid, start or pid, me, frozenset(keys or (A,)), mib * MIB)


def charges(
    of: Mapping[ShareKey, Sequence[tuple[int, int]]],
) -> dict[ShareKey, tuple[Charge, ...]]:
    return {
        key: tuple(Charge(Own(1, pid), mib * MIB) for pid, mib in found)
        for key, found in of.items()
    }


def groups(
    holders: Sequence[Holder], on_record: Mapping[ShareKey, Sequence[tuple[int, int]]] | None = None
) -> list[Group]:
    return list(verdict.groups(holders, LIMITS, charges(on_record or {})))


def over(
    holders: Sequence[Holder], on_record: Mapping[ShareKey, Sequence[tuple[int, int]]] | None = None
) -> list[frozenset[ShareKey]]:
    return [group.keys for group in groups(holders, on_record) if group.is_over(STRICT)]


@pytest.mark.parametrize(
    ("mib", "charged", "found"),
    [
        pytest.param(100, 100, "", id="full to the last block"),
        pytest.param(102, 100, "", id="a block in flight"),
        pytest.param(103, 100, "odd", id="more, past the front"),
        pytest.param(103, 101, "", id="more, and on record but for the block"),
        pytest.param(120, 120, "", id="as much as the driver may take without asking"),
        pytest.param(120, 100, "odd", id="as much, and not on record"),
        pytest.param(121, 101, "odd", id="more, of which no more is not on record"),
        pytest.param(121, 100, "over, odd", id="more than that"),
        pytest.param(140, 140, "", id="as much as may be charged afterwards"),
        pytest.param(141, 141, "over", id="more than that, and on record"),
        pytest.param(140, 500, "", id="a ledger that lies, up to that"),
        pytest.param(150, 100, "over, odd", id="much more, past the front"),
        pytest.param(150, 500, "over", id="a ledger that lies"),
        pytest.param(90, 10, "", id="past the front, and within the limit"),
    ],
)
def test_one_process(mib: int, charged: int, found: str) -> None:
    (group,) = groups([holder(1, mib)], {A: [(1, charged)]})
    words = (("over", group.is_over(MARGIN)), ("odd", group.is_odd(MARGIN)))
    assert ", ".join(word for word, is_so in words if is_so) == found


def test_what_a_ledger_has_too_much_of_one_excuses_no_other() -> None:
    (group,) = groups([holder(1, 90), holder(2, 35)], {A: [(1, 125), (2, 0)]})
    assert group.is_over(MARGIN)
    assert verdict.victims(group, MARGIN) == (group.holders[1],)


def test_each_process_may_have_a_block_in_flight() -> None:
    three = [holder(pid, 35) for pid in (1, 2, 3)]
    record = {A: [(1, 33), (2, 33), (3, 33)]}
    (group,) = groups(three, record)
    assert not group.is_odd(MARGIN)
    (group,) = groups([*three, holder(4, 4)], {A: [*record[A], (4, 0)]})
    assert group.is_odd(MARGIN)
    many = [holder(pid, 10) for pid in range(12)]
    (group,) = groups(many)
    assert not group.is_over(MARGIN), "24 MiB for twelve"
    (group,) = groups([*many, holder(20, 30)])
    assert group.is_over(MARGIN)


def test_two_processes_of_one_share_together() -> None:
    assert over([holder(1, 60), holder(2, 60)], {A: [(1, 60), (2, 30)]}) == [{A}]


def test_shares_of_one_process_add_up() -> None:
    assert over([holder(1, 150, A, B)]) == []
    assert over([holder(1, 153, A, B)]) == [{A, B}]


def test_a_process_with_one_of_the_shares_is_held_to_that() -> None:
    both, alone = holder(1, 20, A, B), holder(2, 60, B)
    assert over([both, alone]) == [{B}]
    assert over([holder(1, 100, A, B), holder(2, 50, B)]) == []


def test_shares_that_hang_together_are_held_together() -> None:
    found = [group.keys for group in groups([holder(1, 1, A, B), holder(2, 1, B, C)])]
    assert found == [{A, B}, {B, C}, {A, B, C}]
    assert over([holder(1, 110, A, B), holder(2, 55, B, C)]) == [{A, B, C}]


def test_shares_of_others_are_no_matter() -> None:
    assert over([holder(1, 200, A), holder(2, 50, B)]) == [{A}]


def test_who_went_past_the_front_goes_first_and_nobody_else() -> None:
    honest = [holder(pid, 30) for pid in (1, 2, 3)]
    rogue = holder(9, 25)
    (group,) = groups([*honest, rogue], {A: [(1, 30), (2, 30), (3, 30)]})
    assert verdict.victims(group, STRICT) == (rogue,)


def test_as_many_go_as_it_takes() -> None:
    rogues = [holder(pid, 60 + pid) for pid in (7, 8, 9)]
    (group,) = groups([holder(1, 90), *rogues], {A: [(1, 90)]})
    assert [victim.pid for victim in verdict.victims(group, STRICT)] == [9, 8, 7]


def test_of_those_alike_the_larger_then_the_younger_goes() -> None:
    (group,) = groups([holder(1, 90), holder(2, 95)], {A: [(1, 90), (2, 95)]})
    assert [victim.pid for victim in verdict.victims(group, STRICT)] == [2]
    twins = [holder(3, 70, start=10), holder(2, 70, start=20)]
    (group,) = groups(twins)
    assert [victim.pid for victim in verdict.victims(group, STRICT)] == [2]


def test_who_is_within_limit_and_margin_stays() -> None:
    (group,) = groups([holder(1, 100), holder(2, 20)])
    assert verdict.victims(group, MARGIN) == ()


def test_a_pid_that_two_containers_have_is_two_processes() -> None:
    honest, rogue = holder(10, 80, own=(1, 7)), holder(11, 90, own=(2, 7))
    (group,) = groups([rogue, honest], {A: [(7, 80)]})
    assert group.known == {10: 80 * MIB, 11: 0}
    assert verdict.victims(group, STRICT) == (rogue,)


def test_a_process_of_two_shares_is_charged_to_both() -> None:
    found = verdict.recorded([holder(1, 70, A, B)], charges({A: [(1, 40)], B: [(1, 30), (2, 9)]}))
    assert found == {1: 70 * MIB}


SETS = st.sets(st.sampled_from([A, B, C]), min_size=1).map(frozenset)
HOLDERS = st.lists(st.tuples(SETS, st.integers(0, 300), st.integers(0, 300)), max_size=8)


@given(HOLDERS)
def test_after_the_victims_nobody_is_over(
    drawn: list[tuple[frozenset[ShareKey], int, int]],
) -> None:
    holders = [Holder(n, n, Own(1, n), keys, mib * MIB) for n, (keys, mib, _) in enumerate(drawn)]
    record = {
        key: [(n, charged) for n, (keys, _, charged) in enumerate(drawn) if min(keys) == key]
        for key in LIMITS
    }
    gone: set[int] = set()
    for group in groups(holders, record):
        for victim in verdict.victims(group, STRICT):
            gone.add(victim.pid)
    left = [one for one in holders if one.pid not in gone]
    kept = {
        key: [entry for entry in found if entry[0] not in gone] for key, found in record.items()
    }
    assert over(left, kept) == []


@given(HOLDERS)
def test_whoever_stays_within_each_share_is_left_alone(
    drawn: list[tuple[frozenset[ShareKey], int, int]],
) -> None:
    """No set is over when what each process has can be laid into its shares."""
    left = dict(LIMITS)
    holders = []
    for n, (keys, mib, _) in enumerate(drawn):
        taken = 0
        for key in keys:
            part = min(left[key], mib * MIB - taken)
            left[key] -= part
            taken += part
        holders.append(Holder(n, n, Own(1, n), keys, taken))
    assert over(holders) == []
