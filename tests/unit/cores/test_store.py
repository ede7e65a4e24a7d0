"""Schedules as files: read back, moved in place, mended, and true between two plugins."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from apportion.cores import layout
from apportion.cores.slots import Slot
from apportion.cores.store import Gpu, is_scheduled
from apportion.errors import EnforcementError, StorageError
from apportion.model import CoresMode, ShareKey

from tests.unit.cores.node import MS, OTHER, PERIOD, Node, share, sound


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_only_shares_of_less_than_all_need_a_schedule() -> None:
    assert is_scheduled(CoresMode.TIMESLICE, 99)
    assert not is_scheduled(CoresMode.TIMESLICE, 100)
    assert not is_scheduled(CoresMode.NONE, 30)
    assert not is_scheduled(CoresMode.MPS, 30)


def test_each_share_gets_its_part_beside_the_others_of_its_gpu(node: Node) -> None:
    node.add("a", 30)
    node.add("b", 70)
    node.add("c", 60, uuid=OTHER)
    assert node.slots() == {"a": Slot(0, 30), "b": Slot(30, 70), "c": Slot(0, 60)}
    assert node.state("b").period == PERIOD
    info = node.file("a").stat()
    assert (info.st_mode & 0o777, info.st_size) == (0o444, 4096)
    assert os.getxattr(node.file("a"), "security.apportion") == b"a"


def test_preparing_again_changes_nothing(node: Node) -> None:
    node.add("a", 30)
    before = (node.file("a").stat(), node.file("a").read_bytes())
    node.add("a", 30)
    node.again().add("a", 30)
    assert (node.file("a").stat(), node.file("a").read_bytes()) == before


def test_a_restarted_plugin_keeps_all_slots_and_knows_the_gaps(node: Node) -> None:
    for name in ("a", "b", "c"):
        node.add(name, 20)
    node.remove("b")
    before = node.slots()
    after = node.again()
    assert after.schedules.restore() == {}
    after.add("d", 15)
    assert after.slots() == before | {"d": Slot(20, 15)}


def test_running_shares_move_in_place_when_a_new_one_needs_the_room(node: Node) -> None:
    for name in ("a", "b", "c"):
        node.add(name, 30)
    node.remove("a")
    inode = node.file("b").stat().st_ino
    with (
        node.file("c").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as seen,
    ):
        node.add("d", 40)
        # What a program that has it mapped sees.
        found = layout.unpack(bytes(seen))
        assert found is not None
        assert found.slot == Slot(30, 30)
        assert layout.generation(bytes(seen)) == 2
    assert node.file("b").stat().st_ino == inode
    assert node.slots() == {"b": Slot(0, 30), "c": Slot(30, 30), "d": Slot(60, 40)}


def test_what_two_plugins_place_in_turn_never_overlaps(node: Node) -> None:
    other = node.again()
    for number in range(10):
        (node, other)[number % 2].add(f"s{number}", 10)
    other.remove("s3")
    node.remove("s7")
    other.add("t", 20)
    found = node.slots()
    assert sound(found)
    assert sum(slot.cells for slot in found.values()) == 100


def test_many_threads_place_at_once(node: Node) -> None:
    threads = [threading.Thread(target=node.add, args=(f"s{n}", 5)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(node.slots()) == 20
    assert sound(node.slots())


def test_a_share_for_which_no_time_is_left_is_refused_and_leaves_nothing(node: Node) -> None:
    node.add("a", 60)
    node.add("b", 40)
    before = {name: node.file(name).read_bytes() for name in ("a", "b")}
    with pytest.raises(EnforcementError, match=r"not enough time left: 1 % .* 0 % are free"):
        node.add("c", 0)
    assert {name: node.file(name).read_bytes() for name in ("a", "b")} == before
    assert sorted(node.slots()) == ["a", "b"]


def test_shares_of_plugins_that_held_no_cores_take_no_slot(node: Node) -> None:
    old = share("old", 60)
    node.shares.prepare(old, 0, CoresMode.NONE)
    with node.schedules.room(old) as content:
        assert content == b""
    node.add("a", 40)
    assert node.state("a").slot == Slot(0, 40)


# What goes wrong


DAMAGE: dict[str, Callable[[int], object]] = {
    "zeroed": lambda fd: os.pwrite(fd, bytes(4096), 0),
    "short": lambda fd: os.truncate(fd, 100),
    "long": lambda fd: os.truncate(fd, 9000),
    "another size": lambda fd: os.pwrite(fd, layout.pack(_state(31)), layout.offset(1)),
    "another's slot": lambda fd: os.pwrite(fd, layout.pack(_state(30)), layout.offset(1)),
}


def _state(cells: int) -> layout.State:
    return layout.State(PERIOD, Slot(0, cells))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_schedule_is_written_again_in_the_file_that_containers_have(
    node: Node, kind: str
) -> None:
    node.add("a", 50)
    node.add("b", 30)
    inode = node.file("b").stat().st_ino
    fd = os.open(node.file("b"), os.O_RDWR)
    DAMAGE[kind](fd)
    os.close(fd)
    after = node.again()
    assert list(after.schedules.restore()) == ["b"]
    assert after.schedules.restore() == {}
    assert node.file("b").stat().st_ino == inode
    assert after.slots() == {"a": Slot(0, 50), "b": Slot(50, 30)}
    # Programs that have it mapped see that it is another state than they know.
    assert layout.generation(node.file("b").read_bytes()) != 1


def test_any_number_of_damaged_schedules_is_mended(node: Node) -> None:
    for number in range(5):
        node.add(f"s{number}", 20)
    for name in ("s0", "s2", "s3"):
        node.file(name).write_bytes(bytes(4096))
    assert sorted(node.again().schedules.restore()) == ["s0", "s2", "s3"]
    assert sound(node.slots())
    assert [slot.cells for slot in node.slots().values()] == [20] * 5


def test_a_schedule_that_cannot_be_mended_holds_up_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        node.add(name, 30)
        node.file(name).write_bytes(bytes(4096))
    real = node.schedules.write

    def write(gpu: Gpu, key: ShareKey, state: layout.State) -> None:
        if key == "a":
            raise StorageError("cannot write a")
        real(gpu, key, state)

    with monkeypatch.context() as patched:
        patched.setattr(node.schedules, "write", write)
        assert list(node.schedules.restore()) == ["b"]
        node.add("c", 30)
    assert "cannot mend a schedule: cannot write a" in caplog.text
    # It still has its part, as soon as it can be written.
    node.add("d", 10)
    assert sound(node.slots())
    assert node.slots()["a"].cells == 30


def test_what_could_not_be_mended_is_read_again_though_others_were_written_after(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        node.add(name, 30)
        node.file(name).write_bytes(bytes(4096))
    real = node.schedules.write

    def write(gpu: Gpu, key: ShareKey, state: layout.State) -> None:
        real(gpu, key, state)
        if key == "a":
            node.file("a").write_bytes(bytes(4096))
            raise StorageError("half of a was written")

    with monkeypatch.context() as patched:
        patched.setattr(node.schedules, "write", write)
        assert list(node.schedules.restore()) == ["b"]
    # Memory has a whole state of it, which the file has not.
    node.add("c", 10)
    assert sound(node.slots())
    assert node.slots()["a"].cells == 30


def test_a_prepare_mends_what_it_finds(node: Node) -> None:
    node.add("a", 50)
    node.file("a").write_bytes(bytes(4096))
    node.again().add("a", 50)
    assert node.state("a").slot == Slot(0, 50)


def test_a_schedule_that_is_gone_is_left_to_be_reported(node: Node) -> None:
    node.add("a", 50)
    node.file("a").unlink()
    assert node.schedules.restore() == {}
    with pytest.raises(EnforcementError, match=r"schedule was taken away: .*delete the pods"):
        node.shares.verify(share("a", 50))
    assert not node.file("a").exists()


def test_a_schedule_without_its_mark_is_reported(node: Node) -> None:
    node.add("a", 50)
    node.shares.verify(share("a", 50))
    os.removexattr(node.file("a"), "security.apportion")
    with pytest.raises(EnforcementError, match="schedule has lost its mark"):
        node.shares.verify(share("a", 50))


def test_another_period_is_given_to_running_shares_of_that_gpu_alone(node: Node) -> None:
    node.add("a", 30)
    node.add("b", 30, uuid=OTHER)
    after = node.again()
    after.periods[OTHER] = 20 * MS
    assert after.schedules.restore() == {}
    assert after.state("a").period == PERIOD
    assert after.state("b") == layout.State(20 * MS, Slot(0, 30))


def test_a_new_share_has_the_period_of_its_neighbours_by_the_settings_of_who_makes_it(
    node: Node,
) -> None:
    node.add("a", 30)
    after = node.again()
    after.periods[share("a", 30).uuid] = 100 * MS
    after.add("b", 30)
    assert {after.state(name).period for name in ("a", "b")} == {100 * MS}


@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_a_failed_move_is_an_error_and_nothing_is_believed_after(
    node: Node, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for name in ("a", "b", "c"):
        node.add(name, 30)
    node.remove("a")
    before = node.slots()

    def fail(*_arguments: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(StorageError, match="look at the kernel's log"):
            node.add("d", 40)
    assert node.slots() == before
    node.add("d", 40)
    assert sound(node.slots())


def test_a_plugin_that_died_between_two_moves_left_slots_that_do_not_overlap(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        node.add(f"s{number}", 20)
    for name in ("s0", "s2", "s4"):
        node.remove(name)
    real, left = node.schedules.write, [1]

    def write(*arguments: object) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(node.schedules, "write", write)
    with pytest.raises(KeyboardInterrupt):
        node.add("t", 60)
    assert node.slots() == {"s1": Slot(0, 20), "s3": Slot(60, 20)}
    after = node.again()
    after.add("t", 60)
    assert after.slots()["t"].cells == 60
    assert sound(after.slots())


def test_the_state_not_in_force_is_the_one_that_is_written(node: Node) -> None:
    """A reader that looks while it is written sees the old state or the new one, whole."""
    node.add("a", 30)
    first = node.file("a").read_bytes()
    with node.schedules.held() as gpus:
        node.schedules.write(
            gpus[share("a", 30).uuid], ShareKey("a"), layout.State(PERIOD, Slot(5, 30))
        )
    second = node.file("a").read_bytes()
    assert (layout.generation(first), layout.generation(second)) == (1, 2)
    old = slice(layout.offset(1), layout.offset(1) + layout.STATE.size)
    assert first[old] == second[old]
    assert node.state("a").slot == Slot(5, 30)
