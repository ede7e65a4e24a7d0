"""A ResourceClaim as the API gave it in, our shares of it out; whatever is odd is refused. Pure.

Fail closed: a limit that is missing, unknown or not one that the published policy can give is
never guessed. Source: resource.k8s.io/v1 ResourceClaim, `status.allocation` above all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import features, names, quantity, shareconfig
from apportion.errors import ClaimError
from apportion.fields import MAX_SHOWN, Field, plain
from apportion.model import (
    Access,
    Capacity,
    ClaimRef,
    Device,
    DeviceName,
    ResolvedClaim,
    Share,
    ShareKey,
)
from apportion.shareconfig import ShareConfig

_AGAIN = "delete the claim and its pod, so that they are scheduled again"


def resolve(
    claim: Mapping[str, Any],
    ref: ClaimRef,
    *,
    driver: str,
    pool: str,
    devices: Mapping[DeviceName, Device],
    cores_min: int = 1,
) -> ResolvedClaim:
    """Return our shares of an allocated claim, in the order of its allocation's results.

    Args:
        claim: the object, as decoded from the API's JSON.
        ref: which claim kubelet means.
        driver: whose results are ours; others are left to their drivers.
        pool: the one that this node publishes.
        devices: what this node publishes, by name.
        cores_min: least cores that the published policy gives.

    Raises:
        ClaimError: whatever is wrong with the claim: the field, what it is, and what to do.
    """
    offer = _Offer(driver, pool, devices, cores_min)
    try:
        return _resolve(Field("", claim), ref, offer)
    except ClaimError as error:
        raise ClaimError(f"claim {ref}: {error}") from error


def given(
    claim: Mapping[str, Any], ref: ClaimRef, *, driver: str, pool: str
) -> dict[ShareKey, tuple[DeviceName, str | None]]:
    """Return device and share ID of what a claim has here now, by share key.

    Whether it is as it should be is for `resolve` to say. Empty: another claim has the name now,
    it is not allocated any more, or not here.

    Raises:
        ClaimError: the object is too odd to tell.
    """
    found = Field("", claim)
    if found.get("metadata").get("uid").text() != ref.uid:
        return {}
    results = found.get("status").get("allocation").get("devices").get("results").entries()
    return {
        names.share_key(ref.uid, index): (
            DeviceName(result.get("device").text()),
            result.get("shareID").value,
        )
        for index, result in enumerate(results)
        if result.get("driver").value == driver and result.get("pool").value == pool
    }


@dataclass(frozen=True, slots=True)
class _Offer:
    """What this node published, against which a result is checked."""

    driver: str
    pool: str
    devices: Mapping[DeviceName, Device]
    cores_min: int


def _resolve(claim: Field, ref: ClaimRef, offer: _Offer) -> ResolvedClaim:
    allocation = _allocation(claim, ref).get("devices")
    configs = shareconfig.configs(allocation.get("config"), offer.driver)
    results = allocation.get("results").entries()
    ours = [
        (index, result)
        for index, result in enumerate(results)
        if result.get("driver").text() == offer.driver
    ]
    if not ours:
        drivers = ", ".join(sorted({plain(r.get("driver").text()) for r in results})) or "none"
        raise ClaimError(
            f"no device of driver {offer.driver} in its allocation (drivers there: {drivers}); "
            "nothing is to be prepared here: look at the DeviceClass of its requests"
        )
    shares = tuple(
        _share(names.share_key(ref.uid, index), claim, result, offer, configs)
        for index, result in ours
    )
    _refuse_duplicates(shares)
    return ResolvedClaim(ref, shares, _pods(claim.get("status").get("reservedFor")))


def _allocation(claim: Field, ref: ClaimRef) -> Field:
    uid = claim.get("metadata").get("uid").text()
    if uid != ref.uid:
        raise ClaimError(
            f"its UID is {uid[:MAX_SHOWN]!r}, kubelet asked for {ref.uid!r}: it was deleted and "
            "made again under the same name; delete the pod if it does not go by itself"
        )
    if not names.is_uid(uid):
        raise ClaimError(f"metadata.uid is {uid[:MAX_SHOWN]!r}, which cannot name a file")
    allocation = claim.get("status").get("allocation")
    if allocation.value is None:
        deleted = claim.get("metadata").get("deletionTimestamp").value is not None
        state = "being deleted and no longer allocated" if deleted else "not allocated"
        raise ClaimError(f"it is {state} (no status.allocation); {_AGAIN}")
    return allocation


def _share(
    key: ShareKey,
    claim: Field,
    result: Field,
    offer: _Offer,
    configs: Sequence[ShareConfig],
) -> Share:
    request = _request(result.get("request"))
    device = _device(result, offer)
    share_id = result.get("shareID")
    access, capacity = _given(claim, result, device, offer.cores_min)
    if not is_bare(result):
        _check_share_id(share_id)
    return Share(
        key=key,
        request=request,
        pool=offer.pool,
        device=device.name,
        share_id=share_id.value,
        uuid=device.gpu.uuid,
        capacity=capacity,
        policy=shareconfig.policy(request, configs),
        access=access,
    )


def is_bare(result: Field) -> bool:
    """Return whether a result is of a Kubernetes that shares no device.

    Without the feature gate DRAConsumableCapacity a device is one claim's alone, and the result
    has neither an ID of a share nor an amount.
    """
    return result.get("shareID").value is None and result.get("consumedCapacity").value is None


def asks_for_a_part(claim: Field, request: str) -> bool:
    """Return whether a request names capacity; so does one that is not to be found."""
    name, _, alternative = request.partition("/")
    found = _by_name(claim.get("spec").get("devices").get("requests"), name)
    if found is not None and alternative:
        found = _by_name(found.get("firstAvailable"), alternative)
    elif found is not None:
        found = found.get("exactly")
    return found is None or bool(found.get("capacity").get("requests").mapping())


def _by_name(entries: Field, name: str) -> Field | None:
    return next((entry for entry in entries.entries() if entry.get("name").value == name), None)


def _given(claim: Field, result: Field, device: Device, cores_min: int) -> tuple[Access, Capacity]:
    """Return how much of its device a result is; who asks for all of it gets the whole card.

    Admin access, which the API server keeps to namespaces of administrators, takes nothing,
    whatever the scheduler has written down for it. A bare result is all of its device, unless a
    part was asked for: the ledger's proof keeps everybody else off that card.
    """
    if result.get("adminAccess").flag():
        return Access.ADMIN, Capacity(cores=0, memory=0)
    if is_bare(result) and not asks_for_a_part(claim, result.get("request").text()):
        return Access.WHOLE, device.capacity
    capacity = _capacity(result.get("consumedCapacity"), device, cores_min)
    return Access.WHOLE if capacity == device.capacity else Access.SHARE, capacity


def _request(field: Field) -> str:
    """Return the request's name; it becomes part of CDI device names, so its form is checked."""
    request = field.text()
    parts = request.split("/")
    if len(parts) > 2 or not all(names.is_label(part) for part in parts):  # noqa: PLR2004 - request/subrequest
        raise field.wrong("a request's name, or request/subrequest")
    return request


def _device(result: Field, offer: _Offer) -> Device:
    pool = result.get("pool").text()
    if pool != offer.pool:
        raise ClaimError(
            f"{result.path}.pool is {pool[:MAX_SHOWN]!r}, and this node publishes only "
            f"{offer.pool!r}: the claim was allocated for another node; {_AGAIN}"
        )
    name = result.get("device").text()
    device = offer.devices.get(DeviceName(name))
    if device is None:
        known = ", ".join(sorted(offer.devices)) or "none"
        raise ClaimError(
            f"{result.path}.device is {name[:MAX_SHOWN]!r}, which this node does not publish "
            f"(published: {known}); if its GPU is lost or in MIG mode, mend that; else {_AGAIN}"
        )
    return device


def _check_share_id(field: Field) -> None:
    """Refuse what is no share's ID: the scheduler gives one for each result of a shareable device.

    Such a result without one is half of what a scheduler writes.
    """
    if field.value is None:
        raise ClaimError(f"{field.path} is missing; {_gate()}")
    if not names.is_uid(field.text()):
        raise field.wrong("letters, digits and dashes")


def _gate() -> str:
    return (
        "the scheduler or the API server shares no devices: "
        f"{features.SHARING.switch_on()}, then {_AGAIN}"
    )


def _capacity(field: Field, device: Device, cores_min: int) -> Capacity:
    """Return what was consumed; exactly the published names, and values the policy can give."""
    if not field.mapping():
        raise ClaimError(f"{field.path} is missing: the share has no limits; {_gate()}")
    known = (names.CORES, names.MEMORY)
    field.known(*known, what="capacity")
    for name in known:
        if field.get(name).value is None:
            raise ClaimError(f"{field.get(name).path} is missing: no limit is no share; {_AGAIN}")
    return Capacity(
        cores=_amount(field.get(names.CORES), cores_min, device.capacity.cores, 1, device),
        memory=_amount(
            field.get(names.MEMORY), quantity.MIB, device.capacity.memory, quantity.MIB, device
        ),
    )


def _amount(field: Field, least: int, most: int, step: int, device: Device) -> int:
    """Return a quantity that the published policy could have produced: least..most by step.

    The scheduler rounds every request up to the policy; another value comes from a policy that is
    no longer published, or from no scheduler at all, and rounding it here would change a limit.
    """
    try:
        value = quantity.parse(field.value)
    except ValueError as error:
        raise ClaimError(f"{field.path}: {error}; {_AGAIN}") from error
    if least <= value <= most and (value - least) % step == 0:
        return value
    shown = f"{field.path} is {quantity.render(value)}"
    if value > most:
        raise ClaimError(
            f"{shown}, over the {quantity.render(most)} of device {device.name}; {_AGAIN}"
        )
    if value < least:
        raise ClaimError(f"{shown}; a share has at least {quantity.render(least)}; {_AGAIN}")
    raise ClaimError(f"{shown}, no multiple of {quantity.render(step)}; {_AGAIN}")


def _refuse_duplicates(shares: Sequence[Share]) -> None:
    seen: dict[tuple[DeviceName, str | None], Share] = {}
    for share in shares:
        other = seen.setdefault((share.device, share.share_id), share)
        if other is not share:
            raise ClaimError(
                f"requests {other.request} and {share.request} have the same share "
                f"{share.share_id or 'without an ID'} of device {share.device}; {_AGAIN}"
            )


def _pods(reserved: Field) -> tuple[str, ...]:
    """Return the names of the pods in status.reservedFor, sorted."""
    found = set()
    for consumer in reserved.entries():
        group = consumer.get("apiGroup").value or ""
        if group == "" and consumer.get("resource").text() == "pods":
            found.add(consumer.get("name").text())
    return tuple(sorted(found))
