"""What is wrong with a GPU, how it begins and how it ends. Pure.

Two sorts. A *reading* is so for as long as NVML says so (memory to be remapped, too hot). An
*incident* happened (an Xid, a GPU that left): nothing says that it is over, so it stays until the
GPU has been good for a while, or driver or node started anew. Which of the two a condition is, its
reason tells, also after a restart of the plugin.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from apportion.model import Vitals
from apportion.watch import xid

_GPU_IS_LOST, _RESET_REQUIRED = 15, 16


class Level(enum.IntEnum):
    """How bad: NOTE is for information, FAULT keeps new work away, LOST has ended the old."""

    NOTE = 1
    FAULT = 2
    LOST = 3


class Reason(enum.StrEnum):
    """Why; also the last part of a taint's key, so a name stays for ever."""

    XID = "xid"
    LOST = "lost"
    GONE = "gone"
    UNREADABLE = "unreadable"
    HANG = "hang"
    ECC = "ecc"
    REMAP_FAILED = "remap-failed"
    REMAP_PENDING = "remap-pending"
    RECOVERY = "recovery"
    THERMAL = "thermal"
    UNMONITORED = "unmonitored"
    MPS = "mps"


ABSENCES = frozenset({Reason.LOST, Reason.GONE, Reason.UNREADABLE})
"""The GPU cannot be read; which of these it is, NVML says now so and now so."""

CERTAIN = frozenset({_GPU_IS_LOST, _RESET_REQUIRED})
"""Codes of NVML that say how a GPU is; all others say only that a reading failed."""

INCIDENTS = frozenset({Reason.XID, Reason.HANG}) | ABSENCES


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong.

    Attributes:
        reason: what kind of thing.
        level: how bad.
        since: seconds since 1970 at which it was first seen.
        text: what happened and what to do, for a person.
        number: the Xid, 0 for all else.
    """

    reason: Reason
    level: Level
    since: int
    text: str
    number: int = 0

    @property
    def name(self) -> str:
        """Return the reason with its number: xid-79, lost."""
        return f"{self.reason}-{self.number}" if self.number else str(self.reason)

    @property
    def incident(self) -> bool:
        """Whether it stays until the GPU has proven itself."""
        return self.reason in INCIDENTS


Conditions = tuple[Condition, ...]
"""Those of one GPU, the worst first; at most one of each name."""


_RESET = "stop what uses the GPU and run nvidia-smi --gpu-reset, or reboot the node"
_RECOVERY: dict[int, tuple[Level, str]] = {
    1: (Level.FAULT, f"the driver asks for a reset of the GPU: {_RESET}"),
    2: (Level.LOST, "the driver asks for a reboot of the node"),
    3: (Level.NOTE, "the driver asks to end work between this GPU and others"),
    4: (Level.FAULT, f"the driver asks to end all work on the GPU, then for a reset: {_RESET}"),
    5: (Level.NOTE, "the driver asks to recover the IMEX domain"),
    6: (Level.LOST, "the driver asks for a reset of the GPU's bus"),
    7: (Level.LOST, "the driver asks for a reboot of the node"),
}
_RECOVERY_UNKNOWN = (Level.FAULT, "the driver asks for something: see nvidia-smi -q")

_XID_LEVELS = {
    xid.Kind.NOTE: Level.NOTE,
    xid.Kind.FAULT: Level.FAULT,
    xid.Kind.UNKNOWN: Level.FAULT,
    xid.Kind.LOST: Level.LOST,
}
_XID_ADVICE = {
    Level.NOTE: "",
    Level.FAULT: f"; {_RESET}",
    Level.LOST: "; reboot the node, and have the card looked at if it comes again",
}


def of_xid(number: int, now: int) -> Condition | None:
    """Return what an Xid makes of a GPU; None for an error of a program."""
    found = xid.classify(number)
    level = _XID_LEVELS.get(found.kind)
    if level is None:
        return None
    text = f"Xid {number}: {found.text}{_XID_ADVICE[level]}"
    return Condition(Reason.XID, level, now, text, number)


def of_absence(code: int | None, now: int) -> Condition:
    """Return what it means that a known GPU was not found.

    Args:
        code: the nvmlReturn_t with which reading it failed; None: it is not in the list.
        now: seconds since 1970.
    """
    if code is None:
        text = (
            "NVML no longer lists the GPU: look for Xid 79 in dmesg and reboot the node; if it "
            "was taken out on purpose, a reboot or a restart of the driver forgets it"
        )
        return Condition(Reason.GONE, Level.LOST, now, text)
    if code == _GPU_IS_LOST:
        text = "NVML says that the GPU is lost: look for Xid 79 in dmesg and reboot the node"
        return Condition(Reason.LOST, Level.LOST, now, text)
    if code == _RESET_REQUIRED:
        return Condition(Reason.UNREADABLE, Level.FAULT, now, f"the GPU needs a reset: {_RESET}")
    text = f"NVML cannot read the GPU (code {code}): see dmesg for Xid messages"
    return Condition(Reason.UNREADABLE, Level.FAULT, now, text)


def of_hang(seconds: float, now: int) -> Condition:
    """Return what it means that a call of NVML for a GPU does not come back."""
    text = (
        f"NVML has not answered for {seconds:.0f} s: does nvidia-smi on the node? If it does not "
        "either, reboot the node"
    )
    return Condition(Reason.HANG, Level.FAULT, now, text)


def of_vitals(vitals: Vitals, now: int) -> list[Condition]:
    """Return what the readings say."""
    found = []
    if vitals.remap_failed:
        text = "faulty memory could not be remapped: have the card replaced"
        found.append(Condition(Reason.REMAP_FAILED, Level.FAULT, now, text))
    if vitals.remap_pending:
        text = "memory waits to be remapped, or a page to be retired: reset the GPU when convenient"
        found.append(Condition(Reason.REMAP_PENDING, Level.NOTE, now, text))
    if vitals.uncorrected:
        level = Level.NOTE if vitals.contains else Level.FAULT
        text = f"{vitals.uncorrected} ECC errors could not be corrected: {_RESET}"
        found.append(Condition(Reason.ECC, level, now, text))
    if vitals.recovery:
        level, text = _RECOVERY.get(vitals.recovery, _RECOVERY_UNKNOWN)
        found.append(Condition(Reason.RECOVERY, level, now, text, vitals.recovery))
    if vitals.thermal:
        text = "the GPU is hot and runs slower: look at its cooling"
        found.append(Condition(Reason.THERMAL, Level.NOTE, now, text))
    return found


def of_silence(now: int) -> Condition:
    """Return what it means that NVML reports no Xids for a GPU."""
    text = "this GPU or driver reports no Xids; only its readings are watched"
    return Condition(Reason.UNMONITORED, Level.NOTE, now, text)


def of_mps(text: str, since: int) -> Condition:
    """Return what it means that a GPU divides its cores by MPS, and its daemon does not work."""
    return Condition(Reason.MPS, Level.FAULT, since, f"MPS does not work: {text}")


def add(conditions: Conditions, more: Iterable[Condition]) -> Conditions:
    """Return the conditions with more; one that is there already keeps the time it began."""
    known = {condition.name: condition for condition in conditions}
    for condition in more:
        before = known.get(condition.name)
        known[condition.name] = (
            replace(condition, since=min(before.since, condition.since)) if before else condition
        )
    return _sorted(known.values())


def read(conditions: Conditions, readings: Iterable[Condition]) -> Conditions:
    """Return the conditions after a look: incidents stay, readings are what was read now."""
    readings = list(readings)
    names = {reading.name for reading in readings}
    kept = (c for c in conditions if c.incident or c.name in names)
    return add(tuple(kept), readings)


def recovered(conditions: Conditions) -> Conditions:
    """Return the conditions of a GPU that has proven itself: what NVML says now, no incidents."""
    return tuple(condition for condition in conditions if not condition.incident)


def worst(conditions: Conditions) -> Condition | None:
    """Return the worst, the oldest of those; None where all is well."""
    return conditions[0] if conditions else None


def bad(conditions: Conditions) -> bool:
    """Return whether anything is worse than worth knowing."""
    return any(condition.level > Level.NOTE for condition in conditions)


def _sorted(conditions: Iterable[Condition]) -> Conditions:
    return tuple(sorted(conditions, key=lambda c: (-c.level, c.since, c.name)))
