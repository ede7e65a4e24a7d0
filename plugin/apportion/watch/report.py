"""What people hear of the guard: log lines, events on pods and nodes, counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from apportion import quantity
from apportion.ledger.schema import Record
from apportion.model import ClaimRef, DeviceName, GpuUuid
from apportion.watch.verdict import Group, Holder, Keys

_LOG = logging.getLogger("apportion.watch.guard")

BLIND = "GuardBlind"
EXCEEDED = "ShareExceeded"
KILLED = "ShareProcessKilled"
STRANGER = "ProcessWithoutShare"
STRANGER_KILLED = "ProcessWithoutShareKilled"


class Events(Protocol):
    """What of events.Recorder is used."""

    def on_node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about this node."""

    def on_pods(self, ref: ClaimRef, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about the pods of a claim."""


class Counts(Protocol):
    """What of metrics.Metrics is used."""

    def guard_found(self, device: str, uuid: str, ref: ClaimRef) -> None:
        """Count a claim that went over its share."""

    def guard_killed(self, device: str, uuid: str, ref: ClaimRef) -> None:
        """Count a process that was ended for it."""

    def guard_stranger_killed(self, uuid: str) -> None:
        """Count a process without a share that was ended."""


class _Owner(NamedTuple):
    """A claim, the pods it was prepared for, and the device that the GPU is."""

    ref: ClaimRef
    pods: tuple[str, ...]
    device: DeviceName


class _Names(NamedTuple):
    """Whose something is, in words and in fields of a log line."""

    text: str
    fields: dict[str, str]


class Report:
    """Tells people.

    Args:
        records: reads the records of this boot, to name claims.
        events: where events go.
        counts: where counts go.
    """

    def __init__(
        self, records: Callable[[], Iterable[Record]], events: Events, counts: Counts
    ) -> None:
        self._records, self._events, self._counts = records, events, counts

    def blind(self, why: str) -> None:
        """The guard sees nothing."""
        self._events.on_node(BLIND, f"The guard of GPU shares is blind: {why}.")

    def exceeded(self, uuid: GpuUuid, group: Group) -> None:
        """The processes of these shares hold more than is theirs."""
        owners = self._owners(uuid, group.keys)
        whose = _names(owners, group.keys)
        _LOG.warning(
            "processes hold more than their share",
            extra=whose.fields
            | {
                "uuid": uuid,
                "bytes": group.memory,
                "limit": group.limit,
                "charged": group.ledgered,
                "pids": ",".join(str(holder.pid) for holder in group.holders),
            },
        )
        for owner in owners:
            self._counts.guard_found(owner.device, uuid, owner.ref)
        self._tell(
            owners,
            EXCEEDED,
            f"Processes of {whose.text} hold {quantity.mib(group.memory)} of GPU {uuid}, and their "
            f"share is {quantity.mib(group.limit)}; {quantity.mib(group.ledgered)} of it went "
            "through the front libraries.",
        )

    def killed(self, uuid: GpuUuid, group: Group, holder: Holder, name: str) -> None:
        """A process was ended since these shares' processes hold more than is theirs."""
        owners = self._owners(uuid, holder.keys)
        whose = _names(owners, holder.keys)
        _LOG.warning(
            "killed a process of a share that holds more than is its own",
            extra=whose.fields
            | {
                "uuid": uuid,
                "pid": holder.pid,
                "program": name,
                "bytes": holder.memory,
                "charged": group.known.get(holder.pid, 0),
                "limit": group.limit,
            },
        )
        for owner in owners:
            self._counts.guard_killed(owner.device, uuid, owner.ref)
        self._tell(
            owners,
            KILLED,
            f"Killed process {holder.pid} ({name!r}) of {whose.text}: it held "
            f"{quantity.mib(holder.memory)} of GPU {uuid}, "
            f"{quantity.mib(group.unrecorded(holder))} of that past the front libraries, and the "
            f"share is {quantity.mib(group.limit)}.",
        )

    def unkillable(self, pid: int, why: str) -> None:
        """A process that should be ended cannot be."""
        _LOG.error("the guard cannot end a process: %s", why, extra={"pid": pid})

    def stranger(self, uuid: GpuUuid, pid: int, name: str, pod: str | None, memory: int) -> None:
        """A process without a share holds memory of a GPU that is shared."""
        where = "on the node itself" if pod is None else f"in the pod with UID {pod}"
        level = logging.INFO if pod is None else logging.WARNING
        _LOG.log(
            level,
            "a process without a share holds memory of a shared GPU",
            extra={"uuid": uuid, "pid": pid, "program": name, "pod_uid": pod, "bytes": memory},
        )
        self._events.on_node(
            STRANGER,
            f"Process {pid} ({name!r}) {where} holds {quantity.mib(memory)} of GPU {uuid} and has "
            "no share of it; the shares of the GPU may find that much less.",
            warning=pod is not None,
        )

    def stranger_killed(
        self, uuid: GpuUuid, pid: int, name: str, pod: str | None, memory: int
    ) -> None:
        """A process without a share was ended, as the setting guard_strangers says."""
        _LOG.warning(
            "killed a process without a share that held memory of a shared GPU",
            extra={"uuid": uuid, "pid": pid, "program": name, "pod_uid": pod, "bytes": memory},
        )
        self._counts.guard_stranger_killed(uuid)
        self._events.on_node(
            STRANGER_KILLED,
            f"Killed process {pid} ({name!r}) in the pod with UID {pod}: it held "
            f"{quantity.mib(memory)} of GPU {uuid} and had no share of it.",
        )

    def _tell(self, owners: list[_Owner], reason: str, message: str) -> None:
        for owner in owners:
            self._events.on_pods(owner.ref, reason, message)
        self._events.on_node(reason, message)

    def _owners(self, uuid: GpuUuid, keys: Keys) -> list[_Owner]:
        """Return the claims whose shares of the GPU these are; none where no record is left."""
        return [
            _Owner(record.ref, record.pods, share.device)
            for record in self._records()
            for share in [s for s in record.shares if s.uuid == uuid and s.key in keys][:1]
        ]


def _names(owners: list[_Owner], keys: Keys) -> _Names:
    if not owners:
        shares = ",".join(sorted(keys))
        return _Names(f"share {shares}, of which no record is left,", {"share": shares})
    claims = ",".join(str(owner.ref) for owner in owners)
    pods = ",".join(pod for owner in owners for pod in owner.pods)
    return _Names(f"claim {claims}", {"claim": claims, "pod": pods})
