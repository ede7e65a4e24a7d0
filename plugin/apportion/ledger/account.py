"""The proof against over-commit: what is held of each GPU, by whom, and what is left. Pure.

The scheduler's arithmetic decides; this one makes sure. A claim is proved in time that does not
depend on how many claims there are; only a refusal looks at them, to name those in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from apportion import quantity
from apportion.cores.slots import cells_of
from apportion.errors import OverCommitError
from apportion.model import ADMIN, WHOLE, Capacity, ClaimUid, GpuUuid, Share

Amounts = Mapping[GpuUuid, Capacity]
"""What one claim holds of each GPU."""

_NOTHING = Capacity(cores=0, memory=0)


def amounts(parts: Iterable[tuple[GpuUuid, Capacity]]) -> dict[GpuUuid, Capacity]:
    """Return the sums per GPU of the parts of one claim; admin access takes nothing.

    A share of 0 cores counts as 1: it has that much of the GPU's time, since it must have some.
    """
    found: dict[GpuUuid, Capacity] = {}
    for uuid, part in parts:
        if part != ADMIN:
            counted = Capacity(cores=cells_of(part.cores), memory=part.memory)
            found[uuid] = _plus(found.get(uuid, _NOTHING), counted)
    return found


def of_shares(shares: Iterable[Share]) -> dict[GpuUuid, Capacity]:
    """Return what a claim's shares hold of each GPU."""
    return amounts((share.uuid, share.allowed) for share in shares)


class Account:
    """What the claims on this node hold."""

    def __init__(self) -> None:
        self._held: dict[GpuUuid, Capacity] = {}
        self._claims: dict[ClaimUid, tuple[str, Amounts]] = {}

    def put(self, uid: ClaimUid, label: str, held: Amounts) -> None:
        """Note what a claim holds, in place of what was noted before.

        Args:
            uid: the claim.
            label: how to name it to a person, `namespace/name`.
            held: its sums per GPU.
        """
        self.drop(uid)
        self._claims[uid] = (label, dict(held))
        for uuid, part in held.items():
            self._held[uuid] = _plus(self._held.get(uuid, _NOTHING), part)

    def drop(self, uid: ClaimUid) -> None:
        """Forget a claim; an unknown one is no error."""
        _label, held = self._claims.pop(uid, ("", {}))
        for uuid, part in held.items():
            left = _minus(self._held[uuid], part)
            if left == _NOTHING:
                del self._held[uuid]
            else:
                self._held[uuid] = left

    def held(self, uuid: GpuUuid) -> Capacity:
        """Return what all claims together hold of a GPU."""
        return self._held.get(uuid, _NOTHING)

    def holds(self, uid: ClaimUid) -> Amounts:
        """Return what one claim holds, empty for an unknown one."""
        return self._claims.get(uid, ("", {}))[1]

    def prove(self, uid: ClaimUid, asked: Amounts, capacities: Amounts) -> None:
        """Return when `asked` fits beside what all other claims hold.

        Args:
            uid: the claim; what it holds already does not count against it.
            asked: its sums per GPU.
            capacities: what each GPU has.

        Raises:
            OverCommitError: names the GPU, what is asked, what is left and who holds the rest.
        """
        own = self.holds(uid)
        for uuid, part in sorted(asked.items()):
            held = _minus(self.held(uuid), own.get(uuid, _NOTHING))
            left = _minus(capacities.get(uuid, _NOTHING), held)
            # A card is whole while nobody else has any of it, whatever its capacity is today; and
            # one that is held whole has less than nothing left.
            fits = (
                held == _NOTHING and uuid in capacities
                if part == WHOLE
                else part.memory <= left.memory and part.cores <= left.cores
            )
            if not fits:
                raise OverCommitError(self._refusal(uid, uuid, part, left))

    def _refusal(self, uid: ClaimUid, uuid: GpuUuid, asked: Capacity, left: Capacity) -> str:
        others = sorted(
            f"{label} ({_words(held[uuid])})"
            for other, (label, held) in self._claims.items()
            if other != uid and uuid in held
        )
        holders = f"held by {', '.join(others)}" if others else "no other claim holds any of it"
        few = left.cores < asked.cores < WHOLE.cores
        least = " (a share of 0 cores counts as 1)" if few else ""
        return (
            f"GPU {uuid} has {_words(left)} left and this claim was given {_words(asked)}"
            f"{least}: "
            f"{holders}; the scheduler allocated more than the node has, so delete the pods of "
            "one of these claims and it allocates anew"
        )


def _words(amount: Capacity) -> str:
    if amount.memory >= WHOLE.memory:
        return "the whole card" if amount == WHOLE else "the whole card and more"
    return f"{quantity.mib(max(amount.memory, 0))} and {max(amount.cores, 0)} cores"


def _plus(one: Capacity, other: Capacity) -> Capacity:
    return Capacity(cores=one.cores + other.cores, memory=one.memory + other.memory)


def _minus(one: Capacity, other: Capacity) -> Capacity:
    return Capacity(cores=one.cores - other.cores, memory=one.memory - other.memory)
