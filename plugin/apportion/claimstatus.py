"""What a claim's `status.devices` says of our shares: made, read back and compared. Pure.

One entry for each result of ours, of the same driver, pool, device and share ID; anything else the
API server refuses. What is in `data` is described in docs/status.md: fields are added to it and
never renamed or removed. Source: KEP-4817 and AllocatedDeviceStatus in k8s.io/api/resource/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from apportion import names, quantity
from apportion.model import Access, Capacity, CoresUse, GpuUuid, Share, ShareKey, Usage

KIND = "ShareStatus"
READY, HEALTHY = "Ready", "Healthy"

_NS = 1_000_000_000
_MOST_S = 1 << 34  # of a counter of nanoseconds in 64 bits
# A use that changed by less than this part of the share, or by less than this, can wait.
_STEP_PART, _STEP_LEAST = 32, 16 * quantity.MIB
NOW, SOON, LATER = 0, 1, 10
"""When a change is to be told, in the intervals since the last time; see `urgency`."""

Object = Mapping[str, Any]
Place = tuple[str, str | None]
"""Device and share ID."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a share.

    Attributes:
        type: for example Ready.
        status: "True", "False" or "Unknown".
        reason: one word in CamelCase.
        message: for a person.
        since: when `status` became this, in RFC 3339; empty until it is told.
    """

    type: str
    status: str
    reason: str
    message: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """What is told of one share.

    Attributes:
        node: name of the node.
        key: the share's key there.
        uuid: GPU.
        capacity: what it may take; nothing of its own for admin access.
        usage: what its ledger says, None where it cannot be read, or says nothing: of whole cards
            and admin access.
        observed: when, in RFC 3339.
        conditions: by type.
        access: how much of the GPU it is.
    """

    node: str
    key: ShareKey
    uuid: GpuUuid
    capacity: Capacity
    usage: Usage | None
    observed: str
    conditions: tuple[Condition, ...] = ()
    access: Access = Access.SHARE


def entry(driver: str, share: Share, status: ShareStatus) -> dict[str, Any]:
    """Return the entry of one share."""
    usage = status.usage
    data: dict[str, Any] = {
        "apiVersion": names.CONFIG_API,
        "kind": KIND,
        "node": status.node,
        "share": status.key,
        "uuid": status.uuid,
        "memoryLimitBytes": status.capacity.memory,
        "coresLimit": status.capacity.cores,
        "access": status.access.value,
        "observedAt": status.observed,
    }
    if usage is not None:
        data |= {
            "memoryUsedBytes": usage.held,
            "memoryPeakBytes": usage.peak,
            "refused": usage.denied,
            "processes": usage.processes,
        }
    if usage is not None and usage.cores is not None:
        data |= {
            "coresUsedSeconds": usage.cores.used / _NS,
            "coresWaitedSeconds": usage.cores.waited / _NS,
            "coresOverrunSeconds": usage.cores.overrun / _NS,
        }
    made: dict[str, Any] = {
        "driver": driver,
        "pool": share.pool,
        "device": share.device,
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": condition.since,
            }
            for condition in status.conditions
        ],
        "data": data,
    }
    return made if share.share_id is None else made | {"shareID": share.share_id}


def own(claim: Object, *, driver: str, pool: str) -> dict[Place, Object]:
    """Return a claim's entries of this driver and pool."""
    status = claim.get("status")
    found = status.get("devices") if isinstance(status, Mapping) else None
    return {
        (str(item.get("device")), item.get("shareID")): item
        for item in (found if isinstance(found, list) else ())
        if isinstance(item, Mapping) and (item.get("driver"), item.get("pool")) == (driver, pool)
    }


def read(item: Object) -> ShareStatus | None:
    """Return what an entry says, None unless it is what `entry` makes, of whatever version."""
    data = item.get("data")
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        return None
    texts = [data.get(key) for key in ("node", "share", "uuid", "observedAt")]
    limits = _amounts(data, "coresLimit", "memoryLimitBytes")
    if not all(isinstance(text, str) for text in texts) or limits is None:
        return None
    node, key, uuid, observed = map(str, texts)
    return ShareStatus(
        node=node,
        key=ShareKey(key),
        uuid=GpuUuid(uuid),
        capacity=Capacity(*limits),
        usage=_usage(data),
        observed=observed,
        conditions=_conditions(item.get("conditions")),
        access=_access(data.get("access")),
    )


def dated(now: ShareStatus, before: ShareStatus | None) -> ShareStatus:
    """Return `now` with the time of each condition: as before where its status is as before."""
    known = {each.type: each for each in (before.conditions if before else ())}

    def since(condition: Condition) -> str:
        old = known.get(condition.type)
        same = old is not None and old.status == condition.status
        return old.since if old is not None and same else now.observed

    conditions = tuple(replace(each, since=since(each)) for each in now.conditions)
    return replace(now, conditions=conditions)


def urgency(before: ShareStatus | None, now: ShareStatus) -> int | None:
    """Return how many intervals after the last time a change is to be told; None: nothing changed.

    At once: what a share is and how it is. After one interval: other words for that, and a use that
    changed by a step, or to or from nothing. After ten: a use that changed by less, so that it is
    right in the end. How high it was in between, and how many processes it is, is told along with
    that and is no reason by itself.
    """
    if before is None or _fixed(before) != _fixed(now):
        return NOW
    if _words(before) != _words(now):
        return SOON
    if before.usage is None or now.usage is None:
        return None if before.usage == now.usage else SOON
    told, held = before.usage.held, now.usage.held
    crossed = bool(told) != bool(held) or bool(before.usage.denied) != bool(now.usage.denied)
    if crossed or abs(told - held) >= max(now.capacity.memory // _STEP_PART, _STEP_LEAST):
        return SOON
    return LATER if told != held else None


def _fixed(status: ShareStatus) -> tuple[object, ...]:
    conditions = tuple((each.type, each.status, each.reason) for each in status.conditions)
    where = (status.node, status.key, status.uuid)
    return (*where, status.capacity, status.access, conditions)


def _words(status: ShareStatus) -> list[str]:
    return [each.message for each in status.conditions]


def _access(found: object) -> Access:
    """Return how much of a GPU it is; what older versions told of is a share."""
    return next((access for access in Access if access.value == found), Access.SHARE)


def _usage(data: Object) -> Usage | None:
    found = _amounts(data, "memoryUsedBytes", "processes", "memoryPeakBytes", "refused")
    if found is None:
        return None
    held, processes, peak, denied = found
    return Usage(held, held, processes, peak, denied, _cores(data))


def _cores(data: Object) -> CoresUse | None:
    """Return the time on the GPU, None where nothing is told of it, or nonsense."""
    found = []
    for word in ("Used", "Waited", "Overrun"):
        value = data.get(f"cores{word}Seconds")
        if type(value) not in (int, float) or value is None or not 0 <= value < _MOST_S:
            return None
        found.append(round(value * _NS))
    return CoresUse(*found)


def _amounts(data: Object, *keys: str) -> list[int] | None:
    """Return these amounts, None unless all are there."""
    values = [data.get(key) for key in keys]
    found = [value for value in values if type(value) is int and value >= 0]
    return found if len(found) == len(values) else None


def _conditions(found: object) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=str(item.get("type", "")),
            status=str(item.get("status", "")),
            reason=str(item.get("reason", "")),
            message=str(item.get("message", "")),
            since=str(item.get("lastTransitionTime", "")),
        )
        for item in (found if isinstance(found, list) else ())
        if isinstance(item, Mapping)
    )
