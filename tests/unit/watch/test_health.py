"""The GPUs' health by a driver that is played: what stays, what goes, and who is told."""

from __future__ import annotations

import dataclasses

import pytest
from apportion.errors import (
    EnforcementError,
    NvmlDeviceError,
    NvmlUnavailableError,
    StoppingError,
)
from apportion.inventory.nvml import Busy
from apportion.inventory.xids import Event
from apportion.model import Excluded, Inventory, Vitals
from apportion.watch import condition
from apportion.watch.health import Health

from tests.unit.watch.played import BOTH, HANG_S, LOST, ONE, QUIET_S, TWO, Site, fall_ill, names

# Incidents.


def test_an_xid_is_counted_written_down_and_told(site: Site, health: Health) -> None:
    fall_ill(site, health)
    assert (names(health), names(health, TWO)) == (["xid-79"], [])
    assert health.is_bad(ONE.uuid)
    assert site.counted == [(ONE.uuid, 79)]
    (change,) = site.changes
    assert (change.gpu, change.begun[0].number, change.ended) == (ONE.uuid, 79, ())
    # And it was on disk before it was told: a taint that is published is not forgotten.
    assert site.written[0][ONE.uuid].conditions[0].number == 79


def test_the_same_xid_again_is_no_news_and_keeps_its_time(site: Site, health: Health) -> None:
    fall_ill(site, health)
    (before,) = health.conditions()[ONE.uuid]
    site.seconds += 100
    fall_ill(site, health)
    assert health.conditions()[ONE.uuid] == (before,)
    assert len(site.changes) == 1


def test_an_error_of_a_program_is_counted_and_nothing_else(site: Site, health: Health) -> None:
    fall_ill(site, health, 31)
    assert site.counted == [(ONE.uuid, 31)]
    assert (names(health), site.changes) == ([], [])


def test_an_xid_of_nobody_knows_which_gpu_is_logged(
    site: Site, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    site.pending.append(Event(None, 79))
    health.poll()
    assert (names(health), site.counted) == ([], [])
    assert "an Xid of a GPU that is not known" in caplog.text


def test_a_gpu_is_trusted_again_after_quiet_and_proof(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.pass_time(health, QUIET_S - 1)
    assert (site.probed, names(health)) == ([], ["xid-79"])
    # An Xid in between begins the time anew.
    fall_ill(site, health)
    site.pass_time(health, QUIET_S - 1)
    assert (site.probed, names(health)) == ([], ["xid-79"])
    site.pass_time(health, 6)
    assert (site.probed, names(health)) == ([ONE.uuid], [])
    assert [one.number for one in site.changes[-1].ended] == [79]


def test_a_gpu_that_fails_its_proof_waits_again(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.unproven = EnforcementError("cuInit gave error 999")
    site.pass_time(health, QUIET_S)
    assert (site.probed, names(health)) == ([ONE.uuid], ["xid-79"])
    site.unproven = None
    site.pass_time(health, QUIET_S - 1)
    assert len(site.probed) == 1
    site.pass_time(health, 6)
    assert names(health) == []


def test_a_proof_that_a_stop_breaks_off_says_nothing(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.unproven = StoppingError("stopping")
    site.pass_time(health, QUIET_S)
    assert names(health) == ["xid-79"]


def test_an_xid_during_the_proof_counts(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.during_probe = [Event(ONE.uuid, 62)]
    site.pass_time(health, QUIET_S)
    assert names(health) == ["xid-79", "xid-62"]


def test_a_gpu_that_the_driver_wants_reset_is_not_even_tried(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.vitals[ONE.uuid] = Vitals(recovery=1)
    site.pass_time(health, QUIET_S)
    assert (site.probed, names(health)) == ([], ["xid-79", "recovery-1"])
    site.vitals.clear()
    site.pass_time(health, 6)
    assert names(health) == []


# Readings.


def test_what_others_know_stays_for_as_long_as_they_say_it(site: Site, health: Health) -> None:
    health.settle(BOTH)
    site.more = [condition.of_mps("the daemon ended", 7)]
    health.poll()
    assert (names(health), names(health, TWO)) == (["mps"], [])
    assert health.is_bad(ONE.uuid)
    site.more = []
    health.poll()
    assert names(health) == ["mps"], "not yet the time to look"
    health.hasten()
    health.poll()
    assert names(health) == []
    assert site.probed == [], "nothing has to be proven"


def test_readings_are_what_nvml_says_now(site: Site, health: Health) -> None:
    site.vitals[TWO.uuid] = Vitals(thermal=True, remap_failed=True)
    health.poll()
    assert names(health, TWO) == ["remap-failed", "thermal"]
    site.vitals[TWO.uuid] = Vitals(thermal=True)
    site.pass_time(health, 6)
    assert names(health, TWO) == ["thermal"]
    assert site.probed == []


def test_a_note_stands_a_minute_after_it_was_read_last(site: Site, health: Health) -> None:
    hot, cool = Vitals(thermal=True), Vitals()
    for _ in range(6):
        site.vitals[ONE.uuid] = hot
        site.pass_time(health, 6)
        site.vitals[ONE.uuid] = cool
        site.pass_time(health, 54)
        assert names(health) == ["thermal"]
    assert len(site.changes) == 1
    site.pass_time(health, 7)
    assert names(health) == []


def test_what_keeps_work_away_ends_when_nvml_no_longer_says_it(site: Site, health: Health) -> None:
    site.vitals[ONE.uuid] = Vitals(remap_failed=True)
    site.pass_time(health, 6)
    site.vitals.clear()
    site.pass_time(health, 6)
    assert names(health) == []


def test_between_two_looks_only_xids_are_asked_for(site: Site, health: Health) -> None:
    health.poll()
    site.vitals[ONE.uuid] = Vitals(thermal=True)
    fall_ill(site, health, 62)
    assert names(health) == ["xid-62"]


def test_a_gpu_without_xids_is_said_to_be_unmonitored(site: Site, health: Health) -> None:
    site.silent = {ONE.uuid}
    health.poll()
    assert (names(health), health.is_bad(ONE.uuid)) == (["unmonitored"], False)


def test_a_gpu_that_cannot_be_read_is_lost(site: Site, health: Health) -> None:
    site.vitals[ONE.uuid] = LOST
    health.poll()
    site.pass_time(health, 6)
    assert names(health) == ["lost"]


@pytest.mark.parametrize(("code", "name"), [(15, "lost"), (16, "unreadable")])
def test_what_nvml_says_of_a_gpu_counts_at_once(
    site: Site, health: Health, code: int, name: str
) -> None:
    site.vitals[ONE.uuid] = NvmlDeviceError("", code)
    health.poll()
    assert names(health) == [name]


def test_one_reading_that_fails_is_no_fault_and_two_in_a_row_are(
    site: Site, health: Health
) -> None:
    for _ in range(3):
        site.vitals[ONE.uuid] = NvmlDeviceError("unknown error", 999)
        site.pass_time(health, 6)
        site.vitals.clear()
        site.pass_time(health, 6)
    assert (names(health), site.changes) == ([], [])
    site.vitals[ONE.uuid] = NvmlDeviceError("unknown error", 999)
    site.pass_time(health, 6)
    site.pass_time(health, 6)
    assert names(health) == ["unreadable"]


def test_nvml_that_is_of_no_use_ends_nothing(site: Site, health: Health) -> None:
    site.vitals[ONE.uuid] = Vitals(thermal=True)
    health.poll()
    site.failure = NvmlUnavailableError("NVML is not open", 1)
    site.pass_time(health, 6)
    assert names(health) == ["thermal"]
    site.failure = None
    site.vitals[ONE.uuid] = NvmlUnavailableError("busy", 10)
    site.pass_time(health, 6)
    assert names(health) == ["thermal"]


def test_a_gpu_that_does_not_answer_hides_no_other(site: Site, health: Health) -> None:
    site.vitals[ONE.uuid] = NvmlUnavailableError("busy", 10)
    site.vitals[TWO.uuid] = Vitals(remap_failed=True)
    site.pass_time(health, 6)
    assert names(health, TWO) == ["remap-failed"]


# Scans.


def test_a_scan_watches_what_it_finds_at_once(site: Site, health: Health) -> None:
    assert site.watched == {ONE.uuid, TWO.uuid}
    site.failure = NvmlUnavailableError("away", 1)
    assert health.settle(BOTH) == BOTH


@pytest.mark.parametrize(
    ("excluded", "name"),
    [
        ((), "gone"),
        ((Excluded("GPU 0", "lost", code=15),), "lost"),
        ((Excluded("GPU 0", "reset", uuid=ONE.uuid, code=16),), "unreadable"),
    ],
)
def test_a_gpu_that_was_there_stays_offered(
    site: Site, health: Health, excluded: tuple[Excluded, ...], name: str
) -> None:
    assert health.settle(Inventory((TWO,), excluded)) == BOTH
    assert names(health) == [name]
    # What it is called the first time it stays.
    assert health.settle(Inventory((TWO,))) == BOTH
    assert names(health) == [name]
    assert len(site.changes) == 1


def test_it_is_not_trusted_just_because_it_is_back(site: Site, health: Health) -> None:
    health.settle(Inventory((TWO,)))
    site.pass_time(health, QUIET_S)
    assert site.probed == []
    health.settle(Inventory((TWO,)))
    health.settle(BOTH)
    site.pass_time(health, QUIET_S - 1)
    assert names(health) == ["gone"]
    site.pass_time(health, 6)
    assert (site.probed, names(health)) == ([ONE.uuid], [])


def test_a_gpu_that_became_unfit_is_gone_on_purpose(health: Health) -> None:
    mig = Inventory((TWO,), (Excluded("GPU-…", "MIG mode is on", uuid=ONE.uuid),))
    assert health.settle(mig) == mig
    assert ONE.uuid not in health.conditions()


def test_a_gpu_that_was_never_read_stays_left_out(site: Site) -> None:
    health = site.start()
    found = Inventory((TWO,), (Excluded("GPU 0", "lost", code=15),))
    assert health.settle(found) == found
    # One of two nameless ones is the known one that is missing.
    two = Inventory((), (Excluded("GPU 0", "lost", code=15), Excluded("GPU 1", "lost", code=15)))
    assert health.settle(two) == Inventory((TWO,), two.excluded[1:])


def test_by_index_no_name_is_given_twice(site: Site) -> None:
    health = site.start(by_index=True)
    health.settle(BOTH)
    moved = dataclasses.replace(TWO, index=0)
    assert health.settle(Inventory((moved,))) == Inventory((moved,))
    assert names(health) == ["gone"]


# Hangs.


def hang(site: Site, subject: str) -> None:
    site.busy = Busy(subject, since=site.seconds - HANG_S - 1)


def test_a_call_that_hangs_marks_its_gpu(site: Site, health: Health) -> None:
    hang(site, ONE.uuid)
    health.check()
    health.check()
    assert (names(health), names(health, TWO)) == (["hang"], [])
    assert len(site.changes) == 1


def test_a_call_by_index_means_that_gpu_and_one_for_all_means_all(
    site: Site, health: Health
) -> None:
    hang(site, "GPU 1")
    health.check()
    assert (names(health), names(health, TWO)) == ([], ["hang"])
    hang(site, "counting GPUs")
    health.check()
    assert names(health) == ["hang"]


def test_a_call_that_takes_its_time_is_none(site: Site, health: Health) -> None:
    health.check()
    site.busy = Busy(ONE.uuid, since=site.seconds - HANG_S + 1)
    health.check()
    assert names(health) == []
