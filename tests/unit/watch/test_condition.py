from __future__ import annotations

import pytest
from apportion.model import Vitals
from apportion.watch import condition
from apportion.watch.condition import Condition, Level, Reason

_XID = Condition(Reason.XID, Level.LOST, 10, "Xid 79", 79)
_HOT = Condition(Reason.THERMAL, Level.NOTE, 5, "hot")


def test_an_error_of_a_program_is_no_condition() -> None:
    assert condition.of_xid(13, 1) is None


@pytest.mark.parametrize(
    ("number", "level", "words"),
    [
        (94, Level.NOTE, "when convenient"),
        (95, Level.FAULT, "nvidia-smi --gpu-reset"),
        (79, Level.LOST, "reboot the node"),
        (4711, Level.FAULT, "does not know"),
    ],
)
def test_an_xid_has_its_level_and_says_what_to_do(number: int, level: Level, words: str) -> None:
    found = condition.of_xid(number, 7)
    assert found is not None
    assert (found.name, found.level, found.since, found.incident) == (
        f"xid-{number}",
        level,
        7,
        True,
    )
    assert words in found.text


@pytest.mark.parametrize(
    ("code", "reason", "level"),
    [
        (None, Reason.GONE, Level.LOST),
        (15, Reason.LOST, Level.LOST),
        (16, Reason.UNREADABLE, Level.FAULT),
        (999, Reason.UNREADABLE, Level.FAULT),
    ],
)
def test_a_gpu_that_is_away(code: int | None, reason: Reason, level: Level) -> None:
    found = condition.of_absence(code, 3)
    assert (found.reason, found.level, found.incident) == (reason, level, True)
    assert reason in condition.ABSENCES


def test_a_call_that_hangs_is_a_fault_of_the_gpu() -> None:
    found = condition.of_hang(60, 1)
    assert (found.reason, found.level) == (Reason.HANG, Level.FAULT)
    assert "for 60 s" in found.text


def test_readings_that_are_good_or_unknown_are_no_conditions() -> None:
    assert condition.of_vitals(Vitals(), 1) == []
    good = Vitals(0, remap_failed=False, remap_pending=False, recovery=0, thermal=False)
    assert condition.of_vitals(good, 1) == []


@pytest.mark.parametrize(
    ("vitals", "name", "level"),
    [
        (Vitals(remap_failed=True), "remap-failed", Level.FAULT),
        (Vitals(remap_pending=True), "remap-pending", Level.NOTE),
        (Vitals(uncorrected=2), "ecc", Level.FAULT),
        (Vitals(uncorrected=2, contains=True), "ecc", Level.NOTE),
        (Vitals(recovery=1), "recovery-1", Level.FAULT),
        (Vitals(recovery=2), "recovery-2", Level.LOST),
        (Vitals(recovery=3), "recovery-3", Level.NOTE),
        (Vitals(recovery=99), "recovery-99", Level.FAULT),
        (Vitals(thermal=True), "thermal", Level.NOTE),
    ],
)
def test_each_bad_reading(vitals: Vitals, name: str, level: Level) -> None:
    (found,) = condition.of_vitals(vitals, 1)
    assert (found.name, found.level, found.incident) == (name, level, False)


def test_silence_is_worth_knowing() -> None:
    found = condition.of_silence(1)
    assert (found.name, found.level, found.incident) == ("unmonitored", Level.NOTE, False)


def test_what_is_there_already_keeps_the_time_it_began_and_takes_the_new_words() -> None:
    again = Condition(Reason.XID, Level.LOST, 99, "Xid 79 again", 79)
    (found,) = condition.add((_XID,), [again])
    assert (found.since, found.text) == (10, "Xid 79 again")


def test_the_worst_comes_first_then_the_oldest() -> None:
    fault = Condition(Reason.HANG, Level.FAULT, 1, "hang")
    later = Condition(Reason.XID, Level.FAULT, 2, "Xid 62", 62)
    assert condition.add((_HOT, later), [fault, _XID]) == (_XID, fault, later, _HOT)
    assert condition.worst((_XID, fault)) == _XID
    assert condition.worst(()) is None


def test_a_look_ends_readings_and_leaves_incidents() -> None:
    assert condition.read((_XID, _HOT), []) == (_XID,)
    pending = Condition(Reason.REMAP_PENDING, Level.NOTE, 50, "pending")
    warmer = Condition(Reason.THERMAL, Level.NOTE, 50, "hot")
    assert condition.read((_XID, _HOT), [pending, warmer]) == (_XID, _HOT, pending)


def test_who_has_proven_itself_keeps_its_readings_only() -> None:
    assert condition.recovered((_XID, _HOT)) == (_HOT,)


def test_bad_is_worse_than_worth_knowing() -> None:
    assert condition.bad((_XID, _HOT))
    assert not condition.bad((_HOT,))
    assert not condition.bad(())
