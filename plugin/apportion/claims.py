"""A ResourceClaim as the API gave it in, our shares of it out; whatever is odd is refused. Pure.

Fail closed: a limit that is missing, unknown or not one that the published policy can give is
never guessed. Source: resource.k8s.io/v1 ResourceClaim, `status.allocation` above all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import names, quantity
from apportion.errors import ClaimError
from apportion.model import (
    Capacity,
    ClaimRef,
    CoresPolicy,
    Device,
    DeviceName,
    ResolvedClaim,
    Share,
    ShareKey,
)

_SOURCES = ("FromClass", "FromClaim")
"""In rising precedence: what a claim says goes over what its class says."""

_AGAIN = "delete the claim and its pod, so that they are scheduled again"
_MAX_SHOWN = 64


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
        return _resolve(_Field("", claim), ref, offer)
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
    found = _Field("", claim)
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


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of the object with its path: every wrong type is an error that names its place.

    JSON's null is an absent field, as it is to the API.
    """

    path: str
    value: Any

    def get(self, key: str) -> _Field:
        """Return the field `key` of this object; absent ones have the value None."""
        return _Field(f"{self.path}.{key}".lstrip("."), self.mapping().get(key))

    def mapping(self) -> Mapping[str, Any]:
        """Return this object, empty where absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.wrong("an object")
        return self.value

    def entries(self) -> list[_Field]:
        """Return the entries of this list, empty where absent."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [_Field(f"{self.path}[{n}]", entry) for n, entry in enumerate(self.value)]

    def text(self) -> str:
        """Return this text, which must be there and not be empty."""
        if not isinstance(self.value, str) or self.value == "":
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        """Return this truth value, false where absent."""
        if self.value is not None and not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return bool(self.value)

    def known(self, *keys: str, what: str = "field") -> None:
        """Refuse an object with any other key: a misspelt limit must not be a missing one."""
        for key in sorted(set(self.mapping()) - set(keys)):
            raise ClaimError(
                f"{self.path}.{_plain(key)} is an unknown {what}; "
                f"known here: {', '.join(sorted(keys))}"
            )

    def wrong(self, expected: str) -> ClaimError:
        """Return the error for a value of another type than `expected`."""
        return ClaimError(f"{self.path or 'the object'} is {self.shown()}; expected {expected}")

    def shown(self) -> str:
        """Return the value as a message can bear it."""
        if self.value is None:
            return "missing"
        if isinstance(self.value, str):
            return repr(self.value[:_MAX_SHOWN])
        return (
            f"a JSON {'object' if isinstance(self.value, Mapping) else type(self.value).__name__}"
        )


def _plain(text: str) -> str:
    """Return what somebody wrote as one short line."""
    return repr(text[:_MAX_SHOWN])[1:-1]


def _resolve(claim: _Field, ref: ClaimRef, offer: _Offer) -> ResolvedClaim:
    allocation = _allocation(claim, ref).get("devices")
    configs = _configs(allocation.get("config"), offer.driver)
    results = allocation.get("results").entries()
    ours = [
        (index, result)
        for index, result in enumerate(results)
        if result.get("driver").text() == offer.driver
    ]
    if not ours:
        drivers = ", ".join(sorted({_plain(r.get("driver").text()) for r in results})) or "none"
        raise ClaimError(
            f"no device of driver {offer.driver} in its allocation (drivers there: {drivers}); "
            "nothing is to be prepared here: look at the DeviceClass of its requests"
        )
    shares = tuple(_share(result, index, ref, offer, configs) for index, result in ours)
    _refuse_duplicates(shares)
    return ResolvedClaim(ref, shares, _pods(claim.get("status").get("reservedFor")))


def _allocation(claim: _Field, ref: ClaimRef) -> _Field:
    uid = claim.get("metadata").get("uid").text()
    if uid != ref.uid:
        raise ClaimError(
            f"its UID is {uid[:_MAX_SHOWN]!r}, kubelet asked for {ref.uid!r}: it was deleted and "
            "made again under the same name; delete the pod if it does not go by itself"
        )
    if not names.is_uid(uid):
        raise ClaimError(f"metadata.uid is {uid[:_MAX_SHOWN]!r}, which cannot name a file")
    allocation = claim.get("status").get("allocation")
    if allocation.value is None:
        deleted = claim.get("metadata").get("deletionTimestamp").value is not None
        state = "being deleted and no longer allocated" if deleted else "not allocated"
        raise ClaimError(f"it is {state} (no status.allocation); {_AGAIN}")
    return allocation


def _share(
    result: _Field, index: int, ref: ClaimRef, offer: _Offer, configs: Sequence[_Config]
) -> Share:
    request = _request(result.get("request"))
    if result.get("adminAccess").flag():
        raise ClaimError(
            f"{result.path}.adminAccess is true, which this driver does not give: such a share "
            "would have no limit; take adminAccess from the request"
        )
    device = _device(result, offer)
    return Share(
        key=names.share_key(ref.uid, index),
        request=request,
        pool=offer.pool,
        device=device.name,
        share_id=_share_id(result.get("shareID")),
        uuid=device.gpu.uuid,
        capacity=_capacity(result.get("consumedCapacity"), device, offer.cores_min),
        policy=_policy(request, configs),
    )


def _request(field: _Field) -> str:
    """Return the request's name; it becomes part of CDI device names, so its form is checked."""
    request = field.text()
    parts = request.split("/")
    if len(parts) > 2 or not all(names.is_label(part) for part in parts):  # noqa: PLR2004 - request/subrequest
        raise field.wrong("a request's name, or request/subrequest")
    return request


def _device(result: _Field, offer: _Offer) -> Device:
    pool = result.get("pool").text()
    if pool != offer.pool:
        raise ClaimError(
            f"{result.path}.pool is {pool[:_MAX_SHOWN]!r}, and this node publishes only "
            f"{offer.pool!r}: the claim was allocated for another node; {_AGAIN}"
        )
    name = result.get("device").text()
    device = offer.devices.get(DeviceName(name))
    if device is None:
        known = ", ".join(sorted(offer.devices)) or "none"
        raise ClaimError(
            f"{result.path}.device is {name[:_MAX_SHOWN]!r}, which this node does not publish "
            f"(published: {known}); if its GPU is lost or in MIG mode, mend that; else {_AGAIN}"
        )
    return device


def _share_id(field: _Field) -> str:
    """Return the share's ID: the scheduler gives one for each result of a shareable device."""
    if field.value is None:
        raise ClaimError(f"{field.path} is missing; {_gate()}")
    share_id = field.text()
    if not names.is_uid(share_id):
        raise field.wrong("letters, digits and dashes")
    return share_id


def _gate() -> str:
    return (
        "the scheduler or the API server runs without the feature gate DRAConsumableCapacity: "
        f"switch it on, then {_AGAIN}"
    )


def _capacity(field: _Field, device: Device, cores_min: int) -> Capacity:
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


def _amount(field: _Field, least: int, most: int, step: int, device: Device) -> int:
    """Return a quantity that the published policy could have produced: least..most by step.

    The scheduler rounds every request up to the policy; another value comes from a policy that is
    no longer published, or from no scheduler at all, and rounding it here would change a limit.
    """
    try:
        value = quantity.parse(field.value)
    except ValueError as error:
        raise ClaimError(f"{field.path}: {error}; {_AGAIN}") from error
    shown = f"{field.path} is {quantity.render(value)}"
    if value > most:
        raise ClaimError(
            f"{shown}, over the {quantity.render(most)} of device {device.name}; {_AGAIN}"
        )
    if value < least:
        raise ClaimError(f"{shown}; a share has at least {quantity.render(least)}; {_AGAIN}")
    if (value - least) % step:
        raise ClaimError(f"{shown}, no multiple of {quantity.render(step)}; {_AGAIN}")
    return value


def _refuse_duplicates(shares: Sequence[Share]) -> None:
    seen: dict[tuple[DeviceName, str | None], Share] = {}
    for share in shares:
        other = seen.setdefault((share.device, share.share_id), share)
        if other is not share:
            raise ClaimError(
                f"requests {other.request} and {share.request} have the same share "
                f"{share.share_id} of device {share.device}; {_AGAIN}"
            )


def _pods(reserved: _Field) -> tuple[str, ...]:
    """Return the names of the pods in status.reservedFor, sorted."""
    found = set()
    for consumer in reserved.entries():
        group = consumer.get("apiGroup").value or ""
        if group == "" and consumer.get("resource").text() == "pods":
            found.add(consumer.get("name").text())
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class _Config:
    """One ShareConfig of ours: the requests it is for (none: all), and what it sets."""

    requests: tuple[str, ...]
    policy: CoresPolicy | None

    def covers(self, request: str) -> bool:
        """Return whether it is for `request`; the name of a parent covers its subrequests."""
        parent = request.split("/", maxsplit=1)[0]
        return not self.requests or request in self.requests or parent in self.requests


def _configs(config: _Field, driver: str) -> list[_Config]:
    """Return the configurations for our driver, in rising precedence.

    All of them are checked, also those for requests that got no device: what is refused must not
    depend on which alternative the scheduler took.
    """
    found: dict[str, list[_Config]] = {source: [] for source in _SOURCES}
    for entry in config.entries():
        opaque = entry.get("opaque")
        if opaque.value is None or opaque.get("driver").text() != driver:
            continue
        source = entry.get("source").text()
        if source not in found:
            raise entry.get("source").wrong(" or ".join(_SOURCES))
        requests = tuple(request.text() for request in entry.get("requests").entries())
        found[source].append(_Config(requests, _parameters(opaque.get("parameters"))))
    return [config for source in _SOURCES for config in found[source]]


def _parameters(parameters: _Field) -> CoresPolicy | None:
    """Return the cores policy of a ShareConfig, None where it sets none."""
    for key, expected in (("apiVersion", names.CONFIG_API), ("kind", names.CONFIG_KIND)):
        if parameters.get(key).value != expected:
            raise parameters.get(key).wrong(repr(expected))
    parameters.known("apiVersion", "kind", names.CORES)
    cores = parameters.get(names.CORES)
    cores.known("policy")
    policy = cores.get("policy")
    if "policy" not in cores.mapping():
        return None
    try:
        return CoresPolicy(policy.text())
    except ValueError as error:
        raise policy.wrong(" or ".join(CoresPolicy)) from error


def _policy(request: str, configs: Sequence[_Config]) -> CoresPolicy:
    """Return the last policy set for a request; without one, idle cores are not taken."""
    found = CoresPolicy.CAP
    for config in configs:
        if config.policy is not None and config.covers(request):
            found = config.policy
    return found
