"""The slots of prepared claims: over restarts, reboots, kills in the middle, and settings."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from apportion.cores import layout, slots
from apportion.cores.layout import State
from apportion.cores.slots import Slot
from apportion.enforce import limits
from apportion.model import ClaimOutcome, CoresMode

from tests.node.prepare.test_concurrency import at_once
from tests.node.prepare.world import UUIDS, World, ref, result

_REPO = Path(__file__).parents[3]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def prepared(world: World, **cores: int) -> None:
    for name, percent in cores.items():
        wanted = world.add(name, result(0, memory="1Gi", cores=str(percent)))
        outcome = world.preparer().prepare(wanted)
        assert outcome.error == ""


def state(world: World, name: str, index: int = 0) -> State:
    found = layout.unpack((world.share(name, index) / "schedule").read_bytes())
    assert found is not None
    return found


def all_slots(world: World) -> dict[str, Slot]:
    """Return the slots on the first GPU, by share; they must not overlap."""
    found: dict[str, Slot] = {}
    for path in sorted(world.config.driver_shares_dir.glob("uid-*/schedule")):
        read = layout.unpack(path.read_bytes())
        assert read is not None
        assert slots.fits(found, read.slot)
        found[path.parent.name] = read.slot
    return found


def with_setting(world: World, **settings: object) -> World:
    """Return the same node with a new plugin process of other settings."""
    after = world.restarted()
    after.config = replace(world.config, **settings)  # type: ignore[arg-type]
    after.enforcer = type(world.enforcer)(after.config, after.self_test)
    return after


def test_limits_say_the_mode_and_the_schedule_lies_beside_them(world: World) -> None:
    prepared(world, a=30)
    assert b"\ncores-mode timeslice\n" in (world.share("a") / "limits").read_bytes()
    assert state(world, "a") == State(50_000_000, Slot(0, 30))
    # The container sees it by the mount of the folder, read-only.
    mounts = world.spec("a")["devices"][0]["containerEdits"]["mounts"]
    assert [mount["options"][0:1] for mount in mounts if mount["hostPath"].endswith("-0")]


def test_all_cores_are_no_part_of_a_period(world: World) -> None:
    prepared(world, a=100)
    assert not (world.share("a") / "schedule").exists()


def test_a_claim_with_two_shares_of_a_gpu_has_two_slots(world: World) -> None:
    wanted = world.add("c", result(0, cores="30"), result(0, cores="20"), result(1, cores="40"))
    assert world.preparer().prepare(wanted).error == ""
    found = [state(world, "c", index).slot for index in range(3)]
    assert found == [Slot(0, 30), Slot(30, 20), Slot(0, 40)]


def test_slots_stay_over_a_restart_and_are_new_after_a_reboot(world: World) -> None:
    prepared(world, a=30, b=50)
    world.preparer().unprepare(ref("a"))
    after = world.restarted()
    after.preparer().ready(UUIDS[0])
    after.preparer().sweep(ask=True)
    prepared(after, b=50)
    assert state(after, "b").slot == Slot(30, 50)
    for path in sorted(world.config.driver_shares_dir.iterdir()):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    booted = world.restarted("boot-2")
    booted.preparer().sweep(ask=False)
    prepared(booted, b=50)
    assert state(booted, "b").slot == Slot(0, 50)


def test_a_share_of_an_older_plugin_is_answered_as_it_is(world: World) -> None:
    prepared(world, a=30)
    first = world.preparer().prepare(ref("a"))
    record = world.store.get(ref("a").uid)
    assert record is not None
    # As the plugin before wrote it: no word of cores, and no schedule.
    limits_file = world.share("a") / "limits"
    limits_file.chmod(0o644)
    limits_file.write_bytes(limits.render(record.shares[0], None))
    (world.share("a") / "schedule").unlink()
    after = world.restarted()
    assert after.preparer().prepare(ref("a")) == first
    after.preparer().ready(UUIDS[0])
    after.preparer().sweep(ask=True)
    assert after.told == []
    assert not (world.share("a") / "schedule").exists()
    (allowed,) = after.enforcer.allowances()
    assert allowed.mode is CoresMode.NONE


def test_a_setting_that_changed_holds_for_new_shares_and_old_ones_keep_their_mode(
    world: World,
) -> None:
    prepared(world, a=30)
    after = with_setting(world, cores_mode="none")
    prepared(after, a=30, b=30)
    assert (world.share("a") / "schedule").exists()
    assert not (world.share("b") / "schedule").exists()
    assert {each.mode for each in after.enforcer.allowances()} == {
        CoresMode.NONE,
        CoresMode.TIMESLICE,
    }


def test_another_period_is_given_to_shares_that_run(world: World) -> None:
    prepared(world, a=30, b=50)
    inode = (world.share("a") / "schedule").stat().st_ino
    after = with_setting(world, cores_periods=f"{UUIDS[0]}=20")
    after.preparer().ready(UUIDS[0])
    after.preparer().sweep(ask=False)
    # Not before libraries and driver are known to be good; but with the first sweep after.
    preparer = after.preparer()
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=False)
    assert state(after, "a") == State(20_000_000, Slot(0, 30))
    assert state(after, "b") == State(20_000_000, Slot(30, 50))
    assert (world.share("a") / "schedule").stat().st_ino == inode
    assert after.told == []


def test_a_damaged_schedule_comes_back_and_it_is_said_once(world: World) -> None:
    prepared(world, a=30, b=50)
    path = world.share("b") / "schedule"
    path.write_bytes(bytes(4096))
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    preparer.sweep(ask=True)
    assert [(told[0], told[1]) for told in world.told] == [(ref("b"), "ScheduleRestored")]
    assert all_slots(world) == {world.key("a"): Slot(0, 30), world.key("b"): Slot(30, 50)}


def test_a_schedule_that_was_taken_away_is_reported_once(world: World) -> None:
    prepared(world, a=30)
    (world.share("a") / "schedule").unlink()
    preparer = world.preparer()
    preparer.ready(UUIDS[0])
    preparer.sweep(ask=True)
    preparer.sweep(ask=True)
    assert {told[1] for told in world.told} == {"ShareDamaged"}
    assert "schedule was taken away" in world.told[0][2]
    assert "schedule was taken away" in preparer.prepare(ref("a")).error


def test_a_share_of_no_cores_takes_a_hundredth_and_counts_as_that(world: World) -> None:
    after = with_setting(world, cores_min=0)
    prepared(after, a=0)
    assert state(after, "a").slot == Slot(0, 1)
    assert after.store.held(UUIDS[0]).cores == 1
    wanted = after.add("b", result(0, memory="1Gi", cores="100"))
    assert "99 cores left" in after.preparer().prepare(wanted).error
    prepared(after, b=99)
    wanted = after.add("c", result(0, memory="1Gi", cores="0"))
    error = after.preparer().prepare(wanted).error
    assert "0 cores left and this claim was given 1024MiB and 1 cores (a share of 0" in error


def test_claims_prepared_at_once_by_two_plugins_have_slots_of_their_own(world: World) -> None:
    preparers = [world.preparer(), world.restarted().preparer()]
    refs = [world.add(f"c{n}", result(0, memory="1Mi", cores=str(1 + n % 4))) for n in range(40)]
    calls = [preparers[n % 2].prepare for n in range(40)]
    assert [outcome.error for outcome in at_once(calls, refs)] == [""] * 40
    assert sum(slot.cells for slot in all_slots(world).values()) == 100
    gone = [preparers[n % 2].unprepare for n in range(0, 40, 2)]
    assert [outcome.error for outcome in at_once(gone, refs[::2])] == [""] * 20
    # What is free lies in small pieces; the shares that stay make room.
    large = world.add("large", result(0, memory="1Mi", cores="40"))
    assert preparers[0].prepare(large).error == ""
    assert sum(slot.cells for slot in all_slots(world).values()) == 100


# A plugin that is killed in the middle, with shares that run and must move

_VICTIM = """
import os, signal, sys
from pathlib import Path
from tests.node.prepare.world import World, ref, result

base, call, after, nth, action = sys.argv[1:]
world = World(Path(base))
preparer = world.preparer()
for name, cores in (("a", 30), ("b", 30), ("c", 30)):
    world.add(name, result(0, memory="1Gi", cores=str(cores)))
world.add("d", result(0, memory="1Gi", cores="40"))
real, left = getattr(os, call), [int(nth)]

def dying(*arguments):
    left[0] -= 1
    if left[0] == 0 and after == "after":
        real(*arguments)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

setattr(os, call, dying)
print(getattr(preparer, action)(ref("d")))
"""


def kill_at(world: World, action: str, call: str, after: str, nth: int) -> bool:
    """Return whether the plugin got that far; it was killed then."""
    arguments = [str(world.base), call, after, str(nth), action]
    victim = subprocess.run(
        [sys.executable, "-c", _VICTIM, *arguments],
        cwd=_REPO,
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert victim.returncode in (0, -signal.SIGKILL), victim.stderr.decode()
    return victim.returncode == -signal.SIGKILL


@pytest.mark.parametrize("after", ["before", "after"])
@pytest.mark.parametrize(("action", "call"), [("prepare", "pwrite"), ("unprepare", "pwrite")])
def test_a_plugin_killed_at_any_write_leaves_slots_that_do_not_overlap(
    tmp_path: Path, action: str, call: str, after: str
) -> None:
    reached = 0
    for nth in range(1, 20):
        world = World(tmp_path / str(nth))
        prepared(world, a=30, b=30, c=30)
        assert world.preparer().unprepare(ref("a")) == ClaimOutcome()
        if action == "unprepare":
            prepared(world, d=40)
        if not kill_at(world, action, call, after, nth):
            break
        reached += 1
        all_slots(world)
        again = world.restarted()
        again.add("d", result(0, memory="1Gi", cores="40"))
        if action == "prepare":
            assert again.preparer().prepare(ref("d")).error == ""
            assert all_slots(again)[world.key("d")].cells == 40
        assert again.preparer().unprepare(ref("d")) == ClaimOutcome()
        prepared(again, e=40)
        assert sorted(slot.cells for slot in all_slots(again).values()) == [30, 30, 40]
    assert reached >= (7 if action == "prepare" else 2)
