"""What `apportion status` shows: cards, and the shares that are given of them. Pure.

Amounts are bytes and percent of a card's cores; None means "not known from here".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apportion import claimstatus, names, quantity
from apportion.ledger.schema import Record, State
from apportion.model import Allowance, Device, Share, ShareKey, Usage

PREPARED = "prepared"
PREPARING = "preparing"
BEFORE_REBOOT = "before reboot"
NO_LIMITS = "no limits"
ALLOCATED = "allocated"
RESERVED = "allocated,reserved"
OK = "ok"


@dataclass(frozen=True, slots=True)
class ShareView:
    """One share.

    Attributes:
        node: node of the card.
        device: name of the card in the slice.
        uuid: GPU, empty where unknown.
        namespace: of the claim.
        claim: name of the claim.
        uid: of the claim.
        request: request of the claim that this share answers.
        pods: names of the pods that it is for.
        share_id: as allocated, None for a card given whole.
        state: one of the words above.
        memory: limit in bytes.
        cores: limit in percent.
        usage: what the ledger says, where it can be read; in the cluster as the node told it.
        observed: when the node saw that, in RFC 3339, empty where it was seen now.
        age: seconds since then.
    """

    node: str
    device: str
    uuid: str
    namespace: str
    claim: str
    uid: str
    request: str
    pods: tuple[str, ...]
    share_id: str | None
    state: str
    memory: int | None
    cores: int | None
    usage: Usage | None = None
    observed: str = ""
    age: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the share takes part of its card now."""
        return self.state != BEFORE_REBOOT

    @property
    def used(self) -> int | None:
        """Bytes charged to processes that live now."""
        return None if self.usage is None else self.usage.held

    @property
    def peak(self) -> int | None:
        """Most bytes that were ever charged."""
        return None if self.usage is None else self.usage.peak

    @property
    def refused(self) -> int | None:
        """Allocations that were refused."""
        return None if self.usage is None else self.usage.denied

    @property
    def processes(self) -> int | None:
        """Processes that use the share now."""
        return None if self.usage is None else self.usage.processes


@dataclass(frozen=True, slots=True)
class CardView:
    """One card.

    Attributes:
        node: its node.
        device: its name in the slice.
        uuid: NVML's UUID, empty where unknown.
        product: for example "Tesla T4", empty where unknown.
        pci: PCI address, empty where unknown.
        memory: bytes that can be given.
        cores: percent that can be given.
        used: bytes allocated on it now, by whomever.
        shares: what is given of it.
        health: "ok", or what is wrong with it, the worst first; empty where unknown.
    """

    node: str
    device: str
    uuid: str = ""
    product: str = ""
    pci: str = ""
    memory: int | None = None
    cores: int | None = None
    used: int | None = None
    shares: tuple[ShareView, ...] = ()
    health: str = ""

    @property
    def memory_given(self) -> int:
        """Bytes of all shares together."""
        return sum(share.memory or 0 for share in self.shares if share.counts)

    @property
    def cores_given(self) -> int:
        """Percent of all shares together."""
        return sum(share.cores or 0 for share in self.shares if share.counts)


@dataclass(frozen=True, slots=True)
class View:
    """All of it.

    Attributes:
        driver: name of the DRA driver.
        source: "node" or "cluster".
        cards: by node, then in the order of the slices.
        problems: what a person should know, each with what to do.
        complete: whether everything could be read.
    """

    driver: str
    source: str
    cards: tuple[CardView, ...]
    problems: tuple[str, ...] = ()
    complete: bool = True

    @property
    def shares(self) -> tuple[ShareView, ...]:
        """All shares, in the order of their cards."""
        return tuple(share for card in self.cards for share in card.shares)


def of_node(
    driver: str,
    node: str,
    *,
    boot: str,
    records: Iterable[Record],
    devices: Sequence[Device],
    allowances: Iterable[Allowance],
    usages: Mapping[ShareKey, Usage],
    used: Mapping[str, int],
) -> View:
    """Return what one node says of itself.

    Args:
        driver: name of the DRA driver.
        node: name of the node.
        boot: the present boot ID.
        records: the prepared claims.
        devices: the GPUs as they are published; none where NVML could not be asked.
        allowances: the limits that are in force.
        usages: ledgers by share; a missing one could not be read.
        used: bytes allocated on each GPU, by UUID.
    """
    limits = {allowance.key: allowance for allowance in allowances}
    shares = [
        replace(
            _recorded(record, share, boot=boot, limited=share.key in limits),
            node=node,
            usage=usages.get(share.key),
        )
        for record in records
        for share in record.shares
    ]
    # The plugin may name devices by other settings than the command's; the present boot's go first.
    named = {share.uuid: share.device for share in sorted(shares, key=lambda share: share.counts)}
    cards = [
        CardView(
            node=node,
            device=named.get(device.gpu.uuid, device.name),
            uuid=device.gpu.uuid,
            product=device.gpu.product_name,
            pci=device.gpu.pci_bus_id,
            memory=device.capacity.memory,
            cores=device.capacity.cores,
            used=used.get(device.gpu.uuid),
        )
        for device in devices
    ]
    known = {share.key for record in records for share in record.shares}
    problems = [
        f"{share.namespace}/{share.claim} has no limits in force, so its containers get no memory: "
        "delete its pods, and look for errors of this claim in the plugin's log"
        for share in shares
        if share.state == NO_LIMITS
    ]
    problems += [
        f"share {key} belongs to no prepared claim; the plugin removes it once nothing uses it"
        for key in sorted(limits.keys() - known)
    ]
    return View(driver, "node", _joined(cards, shares), tuple(dict.fromkeys(problems)))


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
    shares: list[ShareView] = []
    problems: list[str] = []
    for claim in claims:
        for result in _results(claim):
            if result.get("driver") == driver:
                share, problem = _allocated(claim, result)
                told = _told(claim, result)
                if told is not None:
                    share = replace(
                        share, usage=told.usage, observed=told.observed, age=age(told.observed)
                    )
                shares.append(share)
                problems += [*problem, *_conditions(share, told)]
    have = {(card.node, card.device) for card in cards}
    problems += [
        f"{share.namespace}/{share.claim} holds {share.device} of node {share.node}, which is not "
        "published: is the plugin running there, and the GPU alive?"
        for share in shares
        if (share.node, share.device) not in have
    ]
    return View(driver, "cluster", _joined(cards, shares), tuple(sorted(set(problems))))


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


def _joined(cards: Iterable[CardView], shares: Iterable[ShareView]) -> tuple[CardView, ...]:
    """Put each share to its card, by UUID where it is known; cards of shares alone come last."""
    found = {(card.node, card.uuid or card.device): card for card in cards}
    by_name = {(card.node, card.device): place for place, card in found.items()}
    by_card: dict[tuple[str, str], list[ShareView]] = {}
    for share in shares:
        name = (share.node, share.device)
        place = (share.node, share.uuid) if share.uuid else by_name.get(name, name)
        by_card.setdefault(place, []).append(share)
        found.setdefault(place, CardView(share.node, share.device, share.uuid))
    whole = [
        replace(
            card,
            shares=tuple(
                replace(share, uuid=share.uuid or card.uuid)
                for share in sorted(
                    by_card.get(place, []), key=lambda s: (s.namespace, s.claim, s.request, s.uid)
                )
            ),
        )
        for place, card in found.items()
    ]
    # A stable sort: within a node the order of the slices stays.
    return tuple(sorted(whole, key=lambda card: card.node))


def _recorded(record: Record, share: Share, *, boot: str, limited: bool) -> ShareView:
    if record.boot != boot:
        state = BEFORE_REBOOT
    elif record.state is State.STARTED:
        state = PREPARING
    else:
        state = PREPARED if limited else NO_LIMITS
    return ShareView(
        node=share.pool,
        device=share.device,
        uuid=share.uuid,
        namespace=record.ref.namespace,
        claim=record.ref.name,
        uid=record.ref.uid,
        request=share.request,
        pods=record.pods,
        share_id=share.share_id,
        state=state,
        memory=share.capacity.memory,
        cores=share.capacity.cores,
    )


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
    claim: Mapping[str, Any], result: Mapping[str, Any]
) -> tuple[ShareView, tuple[str, ...]]:
    meta, status = claim["metadata"], claim["status"]
    consumed = result.get("consumedCapacity") or {}
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
        memory=_amount(consumed.get(names.MEMORY)),
        cores=_amount(consumed.get(names.CORES)),
    )
    if share.memory is not None and share.cores is not None:
        return share, ()
    problem = (
        f"{share.namespace}/{share.claim} was allocated without an amount of memory and cores, so "
        "no node prepares it: switch on the feature gate DRAConsumableCapacity everywhere, then "
        "delete and create the claim"
    )
    return share, (problem,)


def _amount(value: object) -> int | None:
    try:
        return quantity.parse(value)
    except ValueError:
        return None
