from __future__ import annotations

import pytest
from apportion.model import HealthState, Taint
from apportion.watch import taints
from apportion.watch.condition import Condition, Conditions, Level, Reason
from apportion.watch.taints import Effects

DRIVER = "apportion.gpu"
_LOST = Condition(Reason.XID, Level.LOST, 10, "Xid 79", 79)
_FAULT = Condition(Reason.REMAP_FAILED, Level.FAULT, 20, "no rows left")
_NOTE = Condition(Reason.THERMAL, Level.NOTE, 30, "hot")
_ALL: Conditions = (_LOST, _FAULT, _NOTE)


def made(conditions: Conditions, effects: Effects = Effects()) -> tuple[Taint, ...]:  # noqa: B008
    return taints.taints(conditions, DRIVER, effects, str)


def test_a_good_gpu_has_none() -> None:
    assert made(()) == ()


def test_by_default_new_work_stays_away_and_notes_are_none() -> None:
    assert made(_ALL) == (
        Taint(f"{DRIVER}/xid", "79", "NoSchedule", "10"),
        Taint(f"{DRIVER}/remap-failed", "", "NoSchedule", "20"),
    )


def test_each_level_has_the_effect_that_is_set() -> None:
    found = made(_ALL, Effects(lost="NoExecute", fault="off", note="None"))
    assert [(taint.key, taint.effect) for taint in found] == [
        (f"{DRIVER}/xid", "NoExecute"),
        (f"{DRIVER}/thermal", "None"),
    ]


def test_no_more_than_the_api_allows_and_the_worst_of_them() -> None:
    many = tuple(Condition(Reason.XID, Level.FAULT, n, "", n) for n in range(200, 220))
    found = made((_LOST, *many))
    assert len(found) == taints.MAX_TAINTS
    assert found[0].value == "79"


@pytest.mark.parametrize(
    ("conditions", "state"),
    [((), HealthState.HEALTHY), ((_NOTE,), HealthState.HEALTHY), (_ALL, HealthState.UNHEALTHY)],
)
def test_kubelet_hears_of_what_is_bad(conditions: Conditions, state: HealthState) -> None:
    assert taints.state(conditions) is state


def test_the_message_has_the_worst_first() -> None:
    assert taints.message(_ALL) == "Xid 79; no rows left; hot"
    assert taints.message(()) == ""
