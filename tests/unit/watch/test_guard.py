"""What the guard does with what it sees; on real processes it is tested in tests/node/watch."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from apportion.errors import NvmlDeviceError, NvmlUnavailableError, StateError, StorageError
from apportion.model import ADMIN, WHOLE, ShareKey

from tests.unit.watch.node import GPU, MIB, OTHER_GPU, A, B, Node


def test_the_second_reading_in_a_row_kills() -> None:
    node = Node()
    node.process(7, 150, A)
    assert node.scan() == []
    assert node.told == []
    assert node.scan() == [7]
    assert node.heard() == [
        ("a", "ShareExceeded"),
        ("node", "ShareExceeded"),
        ("a", "ShareProcessKilled"),
        ("node", "ShareProcessKilled"),
    ]
    assert node.counted == [("found gpu-0 GPU-1", "a"), ("killed gpu-0 GPU-1", "a")]
    said = node.told[-1][2]
    assert all(
        word in said
        for word in ("process 7", "program-7", "default/a", "150MiB", "GPU-1", "100MiB", "past the")
    )


def test_a_reading_within_the_limit_starts_anew() -> None:
    node = Node()
    for mib in (150, 100, 150, 90, 150):
        node.process(7, mib, A)
        assert node.scan() == []


def test_not_the_same_process_twice_but_the_same_share() -> None:
    node = Node()
    node.process(7, 150, A)
    node.scan()
    del node.processes[7]
    node.process(8, 150, A)
    assert node.scan() == [8]


def test_neighbours_are_left_alone() -> None:
    node = Node()
    node.process(6, 50, B)
    node.process(7, 150, A)
    node.process(8, 100)
    assert node.scan(5) == [7]


def test_the_honest_of_the_same_share_are_left_alone() -> None:
    node = Node()
    node.process(6, 90, A)
    node.process(7, 80, A)
    node.charged(A, (6, 90))
    assert node.scan(5) == [7]


def test_observing_kills_nobody_and_says_it_once() -> None:
    node = Node(kill=False)
    node.process(7, 150, A)
    assert node.scan(5) == []
    assert node.heard() == [("a", "ShareExceeded"), ("node", "ShareExceeded")]
    node.process(7, 50, A)
    node.scan()
    node.process(7, 150, A)
    node.scan(3)
    assert node.heard().count(("a", "ShareExceeded")) == 2


def test_a_killed_process_that_lingers_is_not_counted_and_not_killed_again() -> None:
    node = Node()
    node.stubborn = True
    node.process(6, 90, A)
    node.process(7, 120, A)
    node.charged(A, (6, 90))
    assert node.scan(6) == [7]
    assert node.guard.view.strangers[GPU, "unknown"] == 120 * MIB


def test_a_process_that_shows_only_its_pod_has_the_pods_shares() -> None:
    node = Node()
    node.pods["pod-1"] = frozenset({A, ShareKey("elsewhere-0")})
    node.process(7, 150, pod="pod-1")
    assert node.scan(2) == [7]


def test_a_share_of_another_gpu_is_none_of_this_one() -> None:
    node = Node()
    node.limits[B] = (OTHER_GPU, 50)
    node.process(7, 500, B)
    assert node.scan(3) == []
    assert node.heard() == [("node, by the way", "ProcessWithoutShare")]


def test_a_ledger_that_cannot_be_read_excuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.ledger[A] = StateError("damaged")
    node.process(7, 130, A)
    assert node.scan(2) == [7]
    assert "damaged" in caplog.text


def test_what_the_ledger_has_is_borne_up_to_a_bound() -> None:
    node = Node()
    node.process(7, 115, A)
    node.charged(A, (7, 115))
    assert node.scan(3) == []
    node.process(7, 140, A)
    node.charged(A, (7, 140))
    assert node.scan(5) == []
    assert node.told == []
    node.process(7, 145, A)
    node.charged(A, (7, 145))
    assert node.scan(2) == [7]


def test_what_is_past_the_front_and_within_the_overhead_is_told_and_borne() -> None:
    node = Node()
    node.process(7, 115, A)
    node.charged(A, (7, 100))
    assert node.scan() == []
    assert node.told == []
    assert node.scan(3) == []
    assert node.heard() == [("a", "ShareExceeded"), ("node", "ShareExceeded")]
    # More than may be borne at one reading is not that at two.
    node.process(7, 150, A)
    assert node.scan() == []
    assert node.scan() == [7]
    assert node.heard().count(("a", "ShareExceeded")) == 1


def test_the_blind_kill_nobody_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.process(7, 150, A)
    node.scan()
    node.blind = "no hostPID"
    assert node.scan(5) == []
    assert node.heard() == [("node", "GuardBlind")]
    assert caplog.text.count("no hostPID") == 1
    assert node.guard.view.blind == "no hostPID"
    assert node.guard.view.at is None


def test_a_gpu_that_does_not_answer_is_alone_in_that(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.limits[B] = (OTHER_GPU, 50)
    node.listed[GPU] = NvmlDeviceError("it is lost", 15)
    node.process(7, 80, B, gpu=OTHER_GPU)
    node.scan()
    node.listed[GPU] = []
    assert node.scan() == [7]
    assert caplog.text.count("it is lost") == 1


def test_what_nvml_does_not_say_is_not_taken_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.process(6, None, A)
    node.process(7, 150, A)
    assert node.scan(2) == [7]
    assert "not guarded: 6" in caplog.text


def test_strangers_are_reported_once_and_live(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node()
    node.process(6, 10)
    node.process(7, 20, pod="pod-9")
    node.process(8, 30)
    node.own.add(8)
    assert node.scan() == []
    assert node.told == []
    assert node.scan(3) == []
    assert node.heard() == [
        ("node, by the way", "ProcessWithoutShare"),
        ("node", "ProcessWithoutShare"),
    ]
    assert "pod-9" in node.told[1][2]
    assert dict(node.guard.view.strangers) == {
        (GPU, "host"): 10 * MIB,
        (GPU, "pod"): 20 * MIB,
        (GPU, "unknown"): 0,
    }


def test_strangers_in_pods_are_killed_if_the_setting_says_so() -> None:
    node = Node(kill_strangers=True)
    node.process(6, 10)
    node.process(7, 20, pod="pod-9")
    node.process(8, 20, pod="pod-of-another-plugin")
    node.processes[8] = replace(node.processes[8], privileged=True)
    assert node.scan() == []
    node.stubborn = True
    assert node.scan(4) == [7], "once, however long it takes to die"
    assert node.counted == [("killed a stranger", GPU)]
    (said,) = [text for _, reason, text in node.told if reason == "ProcessWithoutShareKilled"]
    assert all(word in said for word in ("process 7", "program-7", "pod-9", "20MiB", GPU))


def test_what_serves_the_shares_is_no_stranger() -> None:
    node = Node(kill_strangers=True)
    node.process(7, 66, pod="pod-9")
    node.servers = {(7, 7)}
    assert node.scan(3) == []
    assert node.told == []
    assert node.guard.view.strangers[GPU, "mps"] == 66 * MIB
    # Its PID is another's by now.
    node.servers = {(7, 6)}
    assert node.scan(2) == [7]


def test_a_stranger_that_cannot_be_ended_is_not_said_to_be() -> None:
    node = Node(kill_strangers=True)
    node.process(7, 20, pod="pod-9")
    node.unkillable = {7}
    assert node.scan(3) == []
    assert node.counted == []
    assert node.heard() == [("node", "ProcessWithoutShare")]


@pytest.mark.parametrize("fails", ["nvml", "blind", "shares"])
def test_two_readings_with_one_that_fails_in_between_are_not_two_in_a_row(fails: str) -> None:
    node = Node(kill_strangers=True)
    node.process(7, 150, A)
    node.process(8, 20, pod="pod-9")
    node.scan()
    listed, limits = node.listed[GPU], node.limits
    if fails == "nvml":
        node.listed[GPU] = NvmlUnavailableError("another call hangs", 10)
        node.scan()
    elif fails == "blind":
        node.blind = "no hostPID"
        node.scan()
    else:
        node.limits = StorageError("cannot read it")
        with pytest.raises(StorageError):
            node.scan()
    node.listed[GPU], node.limits, node.blind = listed, limits, ""
    assert node.scan() == []
    assert node.scan() == [7, 8]


def test_no_stranger_is_killed_whose_pod_nobody_has_told_of_yet() -> None:
    node = Node(kill_strangers=True)
    node.pods["pod-9"] = None
    node.process(7, 20, pod="pod-9")
    assert node.scan(5) == []
    node.pods["pod-9"] = frozenset()
    assert node.scan() == [7]


@pytest.mark.parametrize("shared", [False, True])
def test_strangers_are_not_killed_where_nothing_is_shared_or_only_observed(shared: bool) -> None:  # noqa: FBT001 - a case
    node = Node(kill_strangers=True, kill=not shared)
    if not shared:
        node.limits.clear()
    node.process(7, 20, pod="pod-9")
    assert node.scan(3) == []


def test_readings_that_nvml_gives_nothing_for_are_no_look() -> None:
    node = Node()
    node.scan()
    node.listed[GPU] = NvmlUnavailableError("another call hangs", 10)
    node.now = 100.0
    node.scan(3)
    assert node.guard.view.at == 0.0
    node.listed[GPU] = []
    node.scan()
    assert node.guard.view.at == 100.0


def test_what_is_seen_is_shown() -> None:
    node = Node()
    node.process(7, 60, A)
    node.process(8, 30, A, B)
    node.scan()
    assert node.guard.view.shares == {A: 90 * MIB, B: 0}
    assert node.guard.view.at == 0.0


def test_a_process_that_ended_meanwhile_is_nobodys() -> None:
    node = Node()
    node.process(7, 150, A)
    del node.processes[7]
    assert node.scan(3) == []
    assert node.guard.view.strangers[GPU, "unknown"] == 150 * MIB


def test_who_was_ended_for_one_set_of_shares_is_not_counted_in_another() -> None:
    node = Node()
    node.process(1, 100, A, B)
    node.process(2, 120, B)
    assert node.scan(3) == [2]
    assert {whom for whom, _reason in node.heard()} == {"b", "node"}


def test_one_that_cannot_be_ended_keeps_nobody_from_it(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.unkillable = {7}
    node.process(7, 300, A)
    node.process(8, 200, A)
    node.process(9, 80, B)
    assert node.scan(2) == [8, 9]
    assert "cannot end a process: not permitted" in caplog.text


def test_a_share_without_a_record_is_named_by_its_key(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    lost = ShareKey("lost-0")
    node.limits[lost] = (GPU, 10)
    node.process(7, 40, lost)
    assert node.scan(2) == [7]
    assert node.heard() == [("node", "ShareExceeded"), ("node", "ShareProcessKilled")]
    assert "share lost-0, of which no record is left," in node.told[-1][2]
    assert "killed a process" in caplog.text


def test_a_whole_card_is_its_own_processes_however_much_they_hold() -> None:
    for allowed in (WHOLE, ADMIN):
        node = Node()
        node.limits = {A: (GPU, allowed.memory // MIB)}
        node.process(7, 15_000, A)
        assert node.scan(5) == []
        assert node.told == []
        assert node.guard.view.shares == {A: 15_000 * MIB}
        assert set(node.guard.view.strangers.values()) == {0}
