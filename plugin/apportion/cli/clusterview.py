"""What `apportion status --cluster` shows: what the API server knows of all nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from apportion import claimstatus, names, quantity
from apportion.claims import asks_for_a_part, is_bare
from apportion.cli.view import ALLOCATED, OK, RESERVED, CardView, ShareView, View, joined
from apportion.features import SHARING
from apportion.fields import Field
from apportion.model import Access


def of_cluster(
    driver: str,
    slices: Iterable[Mapping[str, Any]],
    claims: Iterable[Mapping[str, Any]],
    age: Callable[[str], int | None] = lambda _time: None,
) -> View:
    """Return what the API server knows: who was given what, and what nodes told of its use.

    Args:
        driver: name of the DRA driver.
        slices: its ResourceSlices.
        claims: ResourceClaims, of other drivers too.
        age: seconds since a time in RFC 3339, None for what is no time.
    """
    cards = [_published(item, device) for item in _newest(slices) for device in _devices(item)]
    have = {(card.node, card.device): card for card in cards}
    shares: list[ShareView] = []
    problems: list[str] = []
    for claim in claims:
        for result in _results(claim):
            if result.get("driver") == driver:
                card = have.get((result["pool"], result["device"]))
                share, problem = _allocated(claim, result, card)
                told = _told(claim, result)
                if told is not None:
                    share = replace(
                        share,
                        usage=told.usage,
                        observed=told.observed,
                        age=age(told.observed),
                        access=told.access,
                    )
                shares.append(share)
                problems += [*problem, *_conditions(share, told)]
    problems += [
        f"{share.namespace}/{share.claim} holds {share.device} of node {share.node}, which is not "
        "published: is the plugin running there, and the GPU alive?"
        for share in shares
        if (share.node, share.device) not in have
    ]
    return View(driver, "cluster", joined(cards, shares), tuple(sorted(set(problems))))


def _told(claim: Mapping[str, Any], result: Mapping[str, Any]) -> claimstatus.ShareStatus | None:
    """Return what the result's node told of it."""
    found = claimstatus.own(claim, driver=result["driver"], pool=result["pool"])
    return claimstatus.read(found.get((result["device"], result.get("shareID")), {}))


def _conditions(share: ShareView, told: claimstatus.ShareStatus | None) -> list[str]:
    """Return what of a share is not as it should be."""
    return [
        f"{share.namespace}/{share.claim} on {share.device} of node {share.node}: not "
        f"{condition.type} ({condition.reason}): {condition.message}"
        for condition in (told.conditions if told else ())
        if condition.status == "False"
    ]


def _newest(slices: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the slices of the newest generation of each pool, as the scheduler takes them."""
    found = sorted(slices, key=lambda item: str(item["metadata"].get("name", "")))
    newest: dict[str, int] = {}
    for item in found:
        pool = item["spec"]["pool"]
        newest[pool["name"]] = max(newest.get(pool["name"], 0), pool.get("generation", 0))
    return [
        item
        for item in found
        if item["spec"]["pool"].get("generation", 0) == newest[item["spec"]["pool"]["name"]]
    ]


def _devices(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(item["spec"].get("devices") or [])


def _published(item: Mapping[str, Any], device: Mapping[str, Any]) -> CardView:
    attributes = device.get("attributes") or {}
    capacity = device.get("capacity") or {}

    def text(name: str) -> str:
        return str((attributes.get(name) or {}).get("string", ""))

    return CardView(
        node=item["spec"]["pool"]["name"],
        device=device["name"],
        uuid=text("uuid"),
        product=text("productName"),
        pci=text("resource.kubernetes.io/pciBusID"),
        memory=_amount((capacity.get(names.MEMORY) or {}).get("value")),
        cores=_amount((capacity.get(names.CORES) or {}).get("value")),
        health=", ".join(_taint(taint) for taint in device.get("taints") or ()) or OK,
    )


def _taint(taint: Mapping[str, Any]) -> str:
    reason, value = str(taint["key"]).rpartition("/")[2], taint.get("value")
    return f"{reason}-{value}" if value else reason


def _results(claim: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or [])


def _allocated(
    claim: Mapping[str, Any], result: Mapping[str, Any], card: CardView | None
) -> tuple[ShareView, tuple[str, ...]]:
    meta, status = claim["metadata"], claim["status"]
    access, memory, cores = _given(claim, result, card)
    reserved = [item["name"] for item in status.get("reservedFor") or []]
    share = ShareView(
        node=result["pool"],
        device=result["device"],
        uuid="",
        namespace=meta["namespace"],
        claim=meta["name"],
        uid=meta["uid"],
        request=result["request"],
        pods=tuple(sorted(reserved)),
        share_id=result.get("shareID"),
        state=RESERVED if reserved else ALLOCATED,
        memory=memory,
        cores=cores,
        access=access,
    )
    if access is Access.WHOLE or None not in (share.memory, share.cores):
        return share, ()
    problem = (
        f"{share.namespace}/{share.claim} was allocated without an amount of memory and cores, so "
        f"no node prepares it: {SHARING.switch_on()}, then delete and create the claim"
    )
    return share, (problem,)


def _given(
    claim: Mapping[str, Any], result: Mapping[str, Any], card: CardView | None
) -> tuple[Access, int | None, int | None]:
    """Return how much of its card a result is: memory and cores, None where that is not known."""
    if result.get("adminAccess"):
        # Whatever the scheduler wrote down for it, it takes nothing.
        return Access.ADMIN, 0, 0
    request = str(result["request"])
    if is_bare(Field("", result)) and not asks_for_a_part(Field("", claim), request):
        return Access.WHOLE, card.memory if card else None, card.cores if card else None
    consumed = result.get("consumedCapacity") or {}
    return Access.SHARE, _amount(consumed.get(names.MEMORY)), _amount(consumed.get(names.CORES))


def _amount(value: object) -> int | None:
    try:
        return quantity.parse(value)
    except ValueError:
        return None
