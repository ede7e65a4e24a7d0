"""Shares that lost a file: their slots stay theirs, for programs that run keep to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from apportion.cores.slots import Slot
from apportion.errors import EnforcementError
from apportion.model import CoresMode, ShareKey

from tests.unit.cores.node import Node, share, sound


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def gap_of_ten_before_and_twenty_behind(node: Node) -> Slot:
    """Make the share lost, and no other, without a schedule; return the slot that it had."""
    for name, cores in (("first", 10), ("lost", 40), ("second", 30)):
        node.add(name, cores)
    node.remove("first")
    had = node.state("lost").slot
    assert had == Slot(10, 40)
    node.file("lost").unlink()
    return had


def spoil(limits: Path) -> None:
    limits.chmod(0o644)
    limits.write_bytes(b"nonsense")


def slots_but(node: Node, gone: str) -> dict[str, Slot]:
    found = (path.name for path in node.shares.folder.iterdir())
    return {name: node.state(name).slot for name in found if name != gone}


def test_a_schedule_that_is_gone_keeps_its_slot(node: Node) -> None:
    """Programs that run have the file mapped, and nobody can tell them of another slot."""
    had = gap_of_ten_before_and_twenty_behind(node)
    assert node.schedules.restore() == {}
    for name, cores in (("small", 10), ("large", 20)):
        node.add(name, cores)
        node.schedules.restore()
        assert sound(slots_but(node, "lost") | {"lost": had})
    with pytest.raises(EnforcementError, match=r"delete the pods that use the shares .*\(lost\)"):
        node.add("more", 1)
    node.remove("lost")
    node.add("more", 40)
    assert sound(node.slots())


def test_the_slot_of_one_that_leaves_without_a_schedule_is_free_at_once(node: Node) -> None:
    node.add("a", 100 - 1)
    node.file("a").unlink()
    node.remove("a")
    node.add("b", 100 - 1)
    assert node.slots() == {"b": Slot(0, 99)}


def test_one_that_bursts_and_lost_its_schedule_holds_up_no_other(node: Node) -> None:
    node.add("a", 50, burst=True)
    node.file("a").unlink()
    node.schedules.restore()
    node.add("b", 50)
    assert node.state("b").slot == Slot(50, 50)


def test_nobody_moves_over_one_that_cannot_move(node: Node) -> None:
    had = gap_of_ten_before_and_twenty_behind(node)
    node.schedules.restore()
    with pytest.raises(EnforcementError, match="in a row, and not all can move"):
        node.add("wide", 30)
    assert sound(slots_but(node, "lost") | {"lost": had})


@pytest.mark.parametrize("cores", [10, 20])
def test_a_slot_that_is_not_known_any_more_may_be_wherever_it_fits(node: Node, cores: int) -> None:
    had = gap_of_ten_before_and_twenty_behind(node)
    after = node.again()
    # 50 cells in a row are free by what the files say, and 20: hers may be in the first only.
    if cores == 20:
        after.add("new", cores)
        assert after.state("new").slot == Slot(80, 20)
    else:
        after.add("new", cores)
        after.add("other", cores)
    with pytest.raises(EnforcementError, match=r"where 40 % are is not known.*\(lost\)"):
        after.add("more", 10)
    assert sound(slots_but(after, "lost") | {"lost": had})
    after.remove("lost")
    after.add("more", 40)
    assert sound(after.slots())


@pytest.mark.parametrize("also", ["", "schedule"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_share_whose_limits_are_damaged_keeps_its_slot(
    node: Node, *, restarted: bool, also: str
) -> None:
    for name in ("a", "b"):
        node.add(name, 40)
    spoil(node.shares.path(ShareKey("a")) / "limits")
    if also:
        node.file("a").write_bytes(bytes(4096))
    after = node.again() if restarted else node
    assert list(after.schedules.restore()) == (["a"] if also else [])
    after.add("c", 20)
    assert sound(after.slots())
    assert after.slots()["a"].cells == 40
    with pytest.raises(EnforcementError, match="not enough time"):
        after.add("d", 1)


def test_what_is_not_divided_by_time_and_whose_limits_are_damaged_takes_no_slot(node: Node) -> None:
    other = node.claimed["other"] = share("other", 60)
    node.shares.prepare(other, 0, CoresMode.NONE)
    spoil(node.shares.path(other.key) / "limits")
    node.add("a", 90)
    assert node.state("a").slot == Slot(0, 90)
