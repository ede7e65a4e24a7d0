"""From what is wrong with a GPU to its taints and to what kubelet is told. Pure.

Source: KEP-5055 and resource.k8s.io/v1 DeviceTaint (at most 16 a device; effect None is known since
Kubernetes 1.35).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from apportion.model import HealthState, Taint
from apportion.watch.condition import Condition, Conditions, Level, bad

OFF = "off"
MAX_TAINTS = 16


@dataclass(frozen=True, slots=True)
class Effects:
    """The effect of a taint at each level; "off": none is made."""

    lost: str = "NoSchedule"
    fault: str = "NoSchedule"
    note: str = OFF

    def of(self, level: Level) -> str:
        """Return the effect for a level."""
        return {Level.LOST: self.lost, Level.FAULT: self.fault, Level.NOTE: self.note}[level]


def taints(
    conditions: Conditions, driver: str, effects: Effects, stamp: Callable[[int], str]
) -> tuple[Taint, ...]:
    """Return a GPU's taints, the worst first.

    Keys are `<driver>/<reason>`, the value is the Xid where there is one: what is tolerated by key
    alone is a kind of trouble, with the value one Xid.

    Args:
        conditions: what is wrong.
        driver: name of the DRA driver.
        effects: what each level leads to.
        stamp: writes seconds since 1970 as the API does.
    """
    found = (
        Taint(
            key=f"{driver}/{condition.reason}",
            value=str(condition.number) if condition.number else "",
            effect=effects.of(condition.level),
            added=stamp(condition.since),
        )
        for condition in conditions
    )
    return tuple(taint for taint in found if taint.effect != OFF)[:MAX_TAINTS]


def state(conditions: Conditions) -> HealthState:
    """Return what kubelet is told."""
    return HealthState.UNHEALTHY if bad(conditions) else HealthState.HEALTHY


def message(conditions: Sequence[Condition]) -> str:
    """Return what is wrong in one text, the worst first; empty where nothing is."""
    return "; ".join(condition.text for condition in conditions)
