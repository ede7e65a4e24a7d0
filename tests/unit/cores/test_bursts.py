"""What is idle is lent for a moment, by a clock that the test sets, on real files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from apportion.cores.slots import Slot
from apportion.model import ShareKey

from tests.unit.cores.node import MS, OTHER, PERIOD, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.add("a", 30, burst=True)
    found.add("b", 50)
    return found


def test_without_burst_shares_nothing_is_looked_at(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.bursts.step() == 2.0
    node.add("a", 30)
    shutil.rmtree(node.shares.path(ShareKey("a")) / "ledger", ignore_errors=True)
    assert node.bursts.step() == 2.0
    assert node.file("a").read_bytes()[16] == 1


def test_a_share_that_wants_may_use_what_nobody_does_for_a_period_and_a_half(node: Node) -> None:
    assert node.bursts.step() == PERIOD / 2 / 1e9
    assert node.state("a").guests == ()
    node.want("a")
    node.bursts.step()
    state = node.state("a")
    assert state.slot == Slot(0, 30)
    assert state.guests == (Slot(30, 70),)
    assert state.guest_until == node.now + PERIOD * 3 // 2
    assert node.state("b").guests == ()


def test_the_owner_gets_its_slot_back_with_the_next_look_and_what_is_free_stays_lent(
    node: Node,
) -> None:
    node.want("a")
    node.bursts.step()
    node.now += PERIOD // 2
    node.want("b")
    node.bursts.step()
    assert node.state("a").guests == (Slot(80, 20),)
    # Two periods without a launch or a wait, and it is idle again.
    for _ in range(4):
        node.now += PERIOD // 2
        node.want("a")
        node.bursts.step()
        assert node.state("a").guests == (Slot(80, 20),)
    node.now += 1
    node.bursts.step()
    assert node.state("a").guests == (Slot(30, 70),)


def test_a_guest_that_wants_no_more_gives_all_back(node: Node) -> None:
    node.want("a")
    node.bursts.step()
    node.now += 2 * PERIOD + 1
    node.bursts.step()
    assert node.state("a").guests == ()
    generation = node.file("a").read_bytes()[16]
    node.bursts.step()
    assert node.file("a").read_bytes()[16] == generation


def test_several_guests_divide_what_is_idle(node: Node) -> None:
    node.add("c", 10, burst=True)
    node.want("a")
    node.want("c")
    node.bursts.step()
    # Idle are 30 to 80, of b, and 90 to 100, of nobody: three quarters and one.
    assert node.state("a").guests == (Slot(30, 45),)
    assert node.state("c").guests == (Slot(75, 5), Slot(90, 10))


def test_what_is_lent_is_taken_back_before_it_is_given(node: Node) -> None:
    node.want("a")
    node.bursts.step()
    node.add("c", 20)
    assert node.state("c").slot == Slot(80, 20)
    assert node.state("a").guests == ()


def test_what_is_lent_is_renewed_before_it_ends_and_not_with_every_look(node: Node) -> None:
    ends = set()
    for _ in range(20):
        node.want("a")
        node.bursts.step()
        assert node.state("a").guests == (Slot(30, 70),)
        assert node.state("a").guest_until >= node.now + PERIOD * 3 // 4
        ends.add(node.state("a").guest_until)
        node.now += PERIOD // 2
        assert node.state("a").guest_until > node.now
    assert len(ends) == 10


def test_gpus_do_not_mix(node: Node) -> None:
    node.periods[OTHER] = 20 * MS
    node.add("x", 60, uuid=OTHER, burst=True)
    assert node.bursts.step() == 20 * MS / 2 / 1e9
    node.want("x")
    node.bursts.step()
    assert node.state("a").guests == ()
    assert node.state("x").guests == (Slot(60, 40),)
    assert node.state("x").guest_until == node.now + 30 * MS


@pytest.mark.parametrize("harm", ["gone", "short", "future"])
def test_who_cannot_be_asked_keeps_its_slot(node: Node, harm: str) -> None:
    ledger = node.shares.path(ShareKey("b")) / "ledger"
    if harm == "gone":
        ledger.unlink()
    elif harm == "short":
        os.truncate(ledger, 10)
    else:
        node.want("b", 2**63)
    node.want("a")
    node.bursts.step()
    assert node.state("a").guests == (Slot(80, 20),)


def test_nothing_is_lent_while_it_is_not_known_whose_the_time_is(node: Node) -> None:
    node.want("a")
    node.file("b").write_bytes(bytes(4096))
    node.again().bursts.step()
    assert node.state("a").guests == ()


def test_ledgers_are_opened_once_and_closed_when_their_shares_go(node: Node) -> None:
    node.bursts.step()
    node.bursts.step()
    assert sorted(node.bursts._open) == ["a", "b"]
    fd = node.bursts._open[ShareKey("b")]
    node.remove("b")
    node.bursts.step()
    assert sorted(node.bursts._open) == ["a"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    node.bursts.close()
    assert node.bursts._open == {}


def test_a_share_made_anew_under_its_key_is_asked_by_its_new_ledger(node: Node) -> None:
    node.want("b")
    node.want("a")
    node.bursts.step()
    node.remove("b")
    node.add("b", 50)
    node.bursts.step()
    assert node.state("a").guests == (Slot(30, 70),)


def test_nothing_is_lent_beside_a_share_that_lost_its_schedule(node: Node) -> None:
    """It cannot be told whom it lends to, nor from whom it borrows."""
    node.file("a").unlink()
    node.schedules.restore()
    node.add("c", 10, burst=True)
    for name in ("a", "c"):
        node.want(name)
    assert node.bursts.step() == PERIOD / 2 / 1e9
    assert node.state("c").guests == ()
