"""Who holds more than a share allows, and which processes must go for that to end. Pure.

A process may have several shares of a card, and several processes one share, so limits hold for
sets: the processes that have no share outside a set may together hold what the set's limits add up
to. That is asked of every set that a process has, and of those that hang together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from apportion.model import Charge, Own, ShareKey

Keys = frozenset[ShareKey]


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of one card and has shares of it.

    Attributes:
        pid: as the host sees it.
        start: clock ticks after boot; with the PID it names one process.
        own: as it sees itself; what the ledger has of it is told by that.
        keys: its shares of the card.
        memory: bytes, by NVML.
    """

    pid: int
    start: int
    own: Own
    keys: Keys
    memory: int


@dataclass(frozen=True, slots=True)
class Margin:
    """What more than its limit a set of shares may hold, in bytes.

    Attributes:
        slack: for each process: what the front library may have in flight.
        overhead: in all, of what no ledger has: what the driver takes without asking anybody, as
            for code at a kernel's first launch, until the front charges it.
        recorded: in all, though the ledgers have it: the front charged it afterwards, and grants
            nothing more until the share is below its limit again.
    """

    slack: int
    overhead: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Group:
    """A set of shares of one card and the processes that have none outside it.

    Attributes:
        keys: the shares.
        limit: bytes, of all of them.
        ledgered: bytes that their ledgers say, of live processes.
        holders: the processes.
        known: bytes that the ledgers say of each of them, by PID.
    """

    keys: Keys
    limit: int
    ledgered: int
    holders: tuple[Holder, ...]
    known: Mapping[int, int] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Bytes that the processes hold, by NVML."""
        return sum(holder.memory for holder in self.holders)

    def is_over(self, margin: Margin) -> bool:
        """Return whether they hold more than limit and margin allow."""
        excess = self.memory - self.limit
        most = max(margin.slack * len(self.holders), margin.overhead)
        # By process: what a ledger says of one too much excuses none of the others.
        hidden = min(excess, sum(map(self.unrecorded, self.holders)))
        return hidden > most or excess > max(most, margin.recorded)

    def is_odd(self, margin: Margin) -> bool:
        """Return whether they hold more than the limit that the ledgers do not have either."""
        slack = margin.slack * len(self.holders)
        return min(self.memory - self.limit, self.memory - self.ledgered) > slack

    def unrecorded(self, holder: Holder) -> int:
        """Return the bytes of a process that no ledger has."""
        return max(0, holder.memory - self.known.get(holder.pid, 0))

    def without(self, gone: Holder) -> Group:
        """Return what is left when a process ends."""
        left = tuple(holder for holder in self.holders if holder is not gone)
        ledgered = max(0, self.ledgered - self.known.get(gone.pid, 0))
        return Group(self.keys, self.limit, ledgered, left, self.known)


def groups(
    holders: Sequence[Holder],
    limits: Mapping[ShareKey, int],
    charges: Mapping[ShareKey, Sequence[Charge]],
) -> tuple[Group, ...]:
    """Return the sets whose limits must hold, the small ones first.

    Args:
        holders: all processes with a share of the card.
        limits: bytes of each share.
        charges: what the live processes of each share are charged; a share whose ledger cannot be
            read is not there.
    """
    sets = {holder.keys for holder in holders}
    known = recorded(holders, charges)
    found = []
    for keys in sorted(sets | _unions(sets), key=lambda keys: (len(keys), sorted(keys))):
        inside = tuple(
            sorted((h for h in holders if h.keys <= keys), key=lambda holder: holder.pid)
        )
        ledgered = sum(charge.bytes for key in keys for charge in charges.get(key, ()))
        found.append(Group(keys, sum(limits[key] for key in keys), ledgered, inside, known))
    return tuple(found)


def recorded(
    holders: Iterable[Holder], charges: Mapping[ShareKey, Sequence[Charge]]
) -> dict[int, int]:
    """Return what the ledgers say of each process, in bytes by the host's PID."""
    of: dict[tuple[ShareKey, Own], int] = defaultdict(int)
    for key, found in charges.items():
        for charge in found:
            of[key, charge.own] += charge.bytes
    return {h.pid: sum(of.get((key, h.own), 0) for key in h.keys) for h in holders}


def victims(group: Group, margin: Margin) -> tuple[Holder, ...]:
    """Return whom to end so that the rest is within the limit, in that order.

    First who holds most that no ledger has: the front library answers for the rest. Of those
    alike, who holds more, then the younger one.
    """
    found = []
    while group.holders and group.is_over(margin):
        worst = min(group.holders, key=lambda h: (-group.unrecorded(h), -h.memory, -h.start, h.pid))
        found.append(worst)
        group = group.without(worst)
    return tuple(found)


def _unions(sets: set[Keys]) -> set[Keys]:
    """Return the unions of the sets that hang together by a share."""
    found: list[Keys] = []
    for keys in sets:
        apart = [other for other in found if not other & keys]
        joined = keys.union(*(other for other in found if other & keys))
        found = [*apart, joined]
    return set(found)
