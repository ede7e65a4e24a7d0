"""What `apportion status` shows: cards, and the shares that are given of them. Pure.

Amounts are bytes and percent of a card's cores; None means "not known from here".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apportion.cores.slots import Slot
from apportion.ledger.schema import Record, State
from apportion.model import Access, Allowance, CoresMode, CoresUse, Device, Share, ShareKey, Usage

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
        mode: how its cores are held, None where that is not known from here.
        slot: its part of each period, in percent, where it has one.
        access: how much of the card it is.
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
    mode: CoresMode | None = None
    slot: Slot | None = None
    access: Access = Access.SHARE

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
    def time(self) -> CoresUse | None:
        """Its time on the GPU."""
        return None if self.usage is None else self.usage.cores

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
    slots: Mapping[ShareKey, Slot],
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
        slots: parts of the GPUs' periods, by share that has one.
    """
    limits = {allowance.key: allowance for allowance in allowances}
    every = [(record, share) for record in records for share in record.shares]
    shares = [
        replace(
            _recorded(record, share, boot, limits.get(share.key)),
            node=node,
            usage=_usage(share, usages),
            slot=slots.get(share.key),
        )
        for record, share in every
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
    strays = sorted(limits.keys() - {share.key for _record, share in every})
    problems = tuple(dict.fromkeys((*_unlimited(shares), *map(_stray, strays))))
    return View(driver, "node", joined(cards, shares), problems)


def _unlimited(shares: Iterable[ShareView]) -> list[str]:
    return [
        f"{share.namespace}/{share.claim} has no limits in force, so its containers get no memory: "
        "delete its pods, and look for errors of this claim in the plugin's log"
        for share in shares
        if share.state == NO_LIMITS
    ]


def _stray(key: ShareKey) -> str:
    return f"share {key} belongs to no prepared claim; the plugin removes it once nothing uses it"


def joined(cards: Iterable[CardView], shares: Iterable[ShareView]) -> tuple[CardView, ...]:
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


def _usage(share: Share, usages: Mapping[ShareKey, Usage]) -> Usage | None:
    # The ledger of a whole card knows nothing of containers without the front libraries.
    return usages.get(share.key) if share.access is Access.SHARE else None


def _recorded(record: Record, share: Share, boot: str, limits: Allowance | None) -> ShareView:
    if record.boot != boot:
        state = BEFORE_REBOOT
    elif record.state is State.STARTED:
        state = PREPARING
    else:
        state = PREPARED if limits is not None else NO_LIMITS
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
        mode=None if limits is None else limits.mode,
        access=share.access,
    )
