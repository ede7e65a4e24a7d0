"""From the slices that are there to those that should be: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion import slices

Body = dict[str, Any]
Desired = Callable[[int], Sequence[Body] | None]
"""Slices for a pool generation; None while it is not known what should be there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order; all bodies are complete."""

    generation: int
    delete: tuple[Body, ...] = ()
    update: tuple[Body, ...] = ()
    create: tuple[Body, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan(
    found: Sequence[Body],
    desired: Desired,
    *,
    pool: str,
    owner: Mapping[str, Any],
    floor: int = 0,
    accept_dropped: bool = False,
) -> Plan | None:
    """Return how to get from the slices found to those desired; None: nothing is desired yet.

    The pool's generation stays where one update is all there is to do. Else it grows, and all
    slices with it: readers use a pool only when all its slices have the newest generation.

    Args:
        found: all slices of this driver and node.
        desired: bodies without metadata of the server's.
        pool: the only pool; slices of others are removed.
        owner: reference that each slice must have, so that they go with the node.
        floor: a generation that was used already, and whose slices somebody may have deleted.
        accept_dropped: leave slices alone that only lack what the server dropped.
    """
    newest = max((_generation(there) for there in found if _pool(there) == pool), default=0)
    current = sorted(
        (there for there in found if _pool(there) == pool and _generation(there) == newest),
        key=_name,
    )
    generation = max(newest, floor)
    bodies = desired(generation)
    if bodies is None:
        return None
    matched, spare = match(bodies, current)
    changed = [
        n
        for n, there in matched.items()
        if _wrong(bodies[n], there, accept_dropped=accept_dropped) or not _owned(there, owner)
    ]
    missing = [n for n in range(len(bodies)) if n not in matched]
    if missing or len(changed) > 1:
        generation += 1
        bodies = desired(generation) or ()
        changed = sorted(matched)
    kept = {_name(there) for there in current} - {_name(there) for there in spare}
    return Plan(
        generation,
        delete=tuple(sorted((there for there in found if _name(there) not in kept), key=_name)),
        update=tuple(_updated(matched[n], bodies[n], owner) for n in changed),
        create=tuple(_created(bodies[n], owner) for n in missing),
    )


def match(
    bodies: Sequence[Body], current: Sequence[Body]
) -> tuple[dict[int, Body], tuple[Body, ...]]:
    """Return the slice for each body by the body's index, and the slices that are left over.

    A body gets the slice that has its devices already, else any that is left.
    """
    left = list(current)
    matched: dict[int, Body] = {}
    for n, body in enumerate(bodies):
        same = next((there for there in left if device_names(there) == device_names(body)), None)
        if same is not None:
            left.remove(same)
            matched[n] = same
    for n in range(len(bodies)):
        if n not in matched and left:
            matched[n] = left.pop(0)
    return matched, tuple(left)


def device_names(body: Body) -> list[str]:
    """Return the names of a slice's devices, sorted."""
    return sorted(str(device.get("name")) for device in body["spec"].get("devices") or ())


def _name(there: Body) -> str:
    return str(there["metadata"]["name"])


def _pool(there: Body) -> str:
    return str(there["spec"]["pool"]["name"])


def _generation(there: Body) -> int:
    return int(there["spec"]["pool"]["generation"])


def _wrong(body: Body, there: Body, *, accept_dropped: bool) -> bool:
    difference = slices.differs(body, there)
    return bool(difference.changed) if accept_dropped else bool(difference)


def _owned(there: Body, owner: Mapping[str, Any]) -> bool:
    return owner in (there["metadata"].get("ownerReferences") or ())


def _created(body: Body, owner: Mapping[str, Any]) -> Body:
    return body | {"metadata": body["metadata"] | {"ownerReferences": [dict(owner)]}}


def _updated(there: Body, body: Body, owner: Mapping[str, Any]) -> Body:
    """Return `there` with our spec: labels and annotations of others stay."""
    return there | {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": there["metadata"] | {"ownerReferences": [dict(owner)]},
        "spec": body["spec"],
    }
