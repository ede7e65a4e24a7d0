"""What people hear of the guard: log lines, events on pods and nodes, counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from apportion import quantity
from apportion.ledger.schema import Record
from apportion.model import ClaimRef, DeviceName, GpuUuid, ShareKey
from apportion.watch.verdict import Group, Holder

_LOG = logging.getLogger("apportion.watch.guard")

BLIND = "GuardBlind"
EXCEEDED = "ShareExceeded"
KILLED = "ShareProcessKilled"
STRANGER = "ProcessWithoutShare"


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
        for record, device in self._owners(uuid, group):
            _LOG.warning(
                "processes hold more than their share",
                extra={
                    "claim": str(record.ref),
                    "pod": ",".join(record.pods),
                    "uuid": uuid,
                    "bytes": group.memory,
                    "limit": group.limit,
                    "charged": group.ledgered,
                    "pids": ",".join(str(holder.pid) for holder in group.holders),
                },
            )
            self._counts.guard_found(device, uuid, record.ref)
            self._both(
                record.ref,
                EXCEEDED,
                f"Processes of claim {record.ref} hold {quantity.mib(group.memory)} of GPU {uuid}, "
                f"and their share is {quantity.mib(group.limit)}; {quantity.mib(group.ledgered)} "
                "of it went through the front libraries.",
            )

    def killed(self, uuid: GpuUuid, group: Group, holder: Holder, name: str) -> None:
        """A process was ended since these shares' processes hold more than is theirs."""
        for record, device in self._owners(uuid, group, holder):
            _LOG.warning(
                "killed a process of a share that holds more than is its own",
                extra={
                    "claim": str(record.ref),
                    "pod": ",".join(record.pods),
                    "uuid": uuid,
                    "pid": holder.pid,
                    "program": name,
                    "bytes": holder.memory,
                    "charged": group.known.get(holder.pid, 0),
                    "limit": group.limit,
                },
            )
            self._counts.guard_killed(device, uuid, record.ref)
            self._both(
                record.ref,
                KILLED,
                f"Killed process {holder.pid} ({name!r}) of claim {record.ref}: it held "
                f"{quantity.mib(holder.memory)} of GPU {uuid}, "
                f"{quantity.mib(group.unrecorded(holder))} of that past the front libraries, and "
                f"the share is {quantity.mib(group.limit)}.",
            )

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

    def _both(self, ref: ClaimRef, reason: str, message: str) -> None:
        self._events.on_pods(ref, reason, message)
        self._events.on_node(reason, message)

    def _owners(
        self, uuid: GpuUuid, group: Group, holder: Holder | None = None
    ) -> list[tuple[Record, DeviceName]]:
        """Return the claims whose shares of the GPU these are, each with the GPU's device name."""
        keys: frozenset[ShareKey] = holder.keys if holder else group.keys
        return [
            (record, share.device)
            for record in self._records()
            for share in [s for s in record.shares if s.uuid == uuid and s.key in keys][:1]
        ]
