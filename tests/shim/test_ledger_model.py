"""The ledger's steps as a model, run through every order and every death there can be.

The model has the steps of shim/src/common/ledger.c and ledger_sweep.c, one atomic operation each.
A checker that finds nothing proves little, so each rule that the argument rests on is also broken
on purpose: then the same search must find the hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

LIMIT = 2


@dataclass(frozen=True)
class Rules:
    """What the argument rests on; one of them false is a ledger that can count too little."""

    second_pass: bool = True
    total_inside: bool = True
    one_recount: bool = True
    reaper_is_seen: bool = True
    total_before_used: bool = True
    move_is_seen: bool = True
    driver_is_asked: bool = True


@dataclass(frozen=True)
class World:
    """The ledger, and where everybody is."""

    total: int
    begun: tuple[int, ...]
    busy: tuple[int, ...]
    used: tuple[int, ...]
    pending: tuple[int, ...]  # in total and not in used, on account of a living operation
    given: tuple[int, ...]  # by the driver, which frees the dead's later
    alive: tuple[bool, ...]
    locked: bool
    at: tuple[int, ...]  # program counter of each actor
    notes: tuple[tuple[int, ...], ...]  # what each actor remembers


def put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return the tuple with one value changed."""
    return (*values[:index], value, *values[index + 1 :])


def seq(world: World, slot: int) -> int:
    """Return what a slot's `seq` shows: operations begun and in flight in one number."""
    return world.begun[slot] * 100 + world.busy[slot]


def begin(world: World, slot: int, busy: int) -> World:
    """Return the world after `seq` began an operation; `busy` are then in flight."""
    begun = put(world.begun, slot, world.begun[slot] + 1)
    return replace(world, begun=begun, busy=put(world.busy, slot, busy))


def mover(world: World, me: int, step: int, rules: Rules) -> World:
    """Do a step of moving 1 from a process's slot to the last one, which it has locked."""
    common = len(world.used) - 1
    if step in {0, 3}:
        by = 1 if step == 0 else -1
        if not rules.move_is_seen:
            return world
        for slot in (me, common):
            busy = world.busy[slot] + by
            world = (
                begin(world, slot, busy)
                if by > 0
                else replace(world, busy=put(world.busy, slot, busy))
            )
        return world
    if step == 1 and world.used[me]:
        used = put(world.used, me, world.used[me] - 1)
        return replace(world, used=used, pending=put(world.pending, me, 1))
    if step == 2 and world.pending[me]:
        used = put(world.used, common, world.used[common] + 1)
        return replace(world, used=used, pending=put(world.pending, me, 0))
    return world


def worker(world: World, me: int, plan: str, rules: Rules) -> tuple[World, int]:
    """Do the next step of a process: `+` reserves 1, `-` releases 1, `>` moves 1 to the last slot.

    Four steps each. A move begins and ends in both slots at once here; in the ledger one after
    the other, the own slot's first and last.
    """
    operation, step = plan[world.at[me] // 4], world.at[me] % 4
    if operation == ">":
        return mover(world, me, step, rules), world.at[me] + 1
    used, total = world.used[me], world.total
    after = world.at[me] + 1
    if step == 0:
        if operation == "-" and world.given[me]:
            world = replace(world, given=put(world.given, me, world.given[me] - 1))
        return begin(world, me, world.busy[me] + 1), after
    if step == 3:
        if operation == "+" and used > world.given[me]:
            world = replace(world, given=put(world.given, me, world.given[me] + 1))
        return replace(world, busy=put(world.busy, me, world.busy[me] - 1)), after
    if operation == "-" and used + world.pending[me] == 0:
        return world, after  # it was refused before: nothing to give back
    first = (step == 1) == rules.total_before_used
    if operation == "+" and first:
        if total + 1 > LIMIT:
            return world, after + (1 if step == 1 else 0)
        return replace(world, total=total + 1, pending=put(world.pending, me, 1)), after
    if operation == "+":
        return replace(
            world, used=put(world.used, me, used + 1), pending=put(world.pending, me, 0)
        ), after
    if step == 1:
        return replace(
            world, used=put(world.used, me, used - 1), pending=put(world.pending, me, 1)
        ), after
    return replace(world, total=total - 1, pending=put(world.pending, me, 0)), after


def recounter(world: World, me: int, rules: Rules) -> tuple[World, int]:
    """Do the next step of a recount; -1 as the place to go to: it is over."""
    slots = len(world.used)
    step, notes = world.at[me], world.notes[me]
    if step == 0:
        if world.locked and rules.one_recount:
            return world, -1
        early = () if rules.total_inside else (world.total,)
        return replace(world, locked=True, notes=put(world.notes, me, early)), 1
    if step <= slots:
        slot = step - 1
        if world.busy[slot]:
            return replace(world, locked=False), -1
        return noted(world, me, (seq(world, slot),)), step + 1
    if step <= 2 * slots:
        return noted(world, me, (world.used[step - slots - 1],)), step + 1
    base = 0 if rules.total_inside else 1
    if step == 2 * slots + 1:
        return (noted(world, me, (world.total,)) if rules.total_inside else world), step + 1
    if step <= 3 * slots + 1:
        slot = step - 2 * slots - 2
        if rules.second_pass and seq(world, slot) != notes[base + slot]:
            return replace(world, locked=False), -1
        return world, step + 1
    total = notes[-1] if rules.total_inside else notes[0]
    if world.total == total:
        world = replace(world, total=sum(notes[base + slots : base + 2 * slots]))
    return replace(world, locked=False), -1


def noted(world: World, me: int, what: tuple[int, ...]) -> World:
    """Return the world after an actor remembered something."""
    return replace(world, notes=put(world.notes, me, world.notes[me] + what))


def reaper(world: World, me: int, rules: Rules) -> tuple[World, int]:
    """Take over the first dead slot that holds anything; its byte's lock keeps others away."""
    step = world.at[me]
    if step == 0:
        dead = [s for s, alive in enumerate(world.alive) if not alive]
        if not dead or not (world.used[dead[0]] or world.busy[dead[0]]):
            return world, 0
        if rules.driver_is_asked and world.given[dead[0]]:
            return world, 0
        return replace(world, notes=put(world.notes, me, (dead[0],))), 1
    slot = world.notes[me][0]
    if step == 1:
        return begin(world, slot, 1 if rules.reaper_is_seen else 0), 2
    if step == 2:
        left = world.used[slot]
        return replace(
            world, used=put(world.used, slot, 0), pending=put(world.pending, me, left)
        ), 3
    if step == 3:
        left = world.pending[me]
        return replace(world, total=world.total - left, pending=put(world.pending, me, 0)), 4
    return replace(world, busy=put(world.busy, slot, 0)), -1


@dataclass(frozen=True)
class Cast:
    """Who takes part: a plan per worker, then so many recounters, then perhaps a reaper."""

    plans: tuple[str, ...]
    recounters: int
    reaper: bool
    mortal: bool

    def start(self) -> World:
        """Return the world before the first step."""
        slots, actors = len(self.plans), len(self.plans) + self.recounters + self.reaper
        zero, empty = (0,) * slots, ((),) * actors
        return World(
            0, zero, zero, zero, (0,) * actors, zero, (True,) * slots, False,
            (0,) * actors, empty,
        )  # fmt: skip

    def moves(self, world: World, rules: Rules) -> Iterator[World]:
        """Yield every world that one step leads to."""
        for me, at in enumerate(world.at):
            if me < len(self.plans):
                if not world.alive[me]:
                    if world.given[me]:
                        yield replace(world, given=put(world.given, me, 0))
                    continue
                if self.mortal and me == 0:
                    gone = put(world.pending, me, 0)
                    yield replace(world, alive=put(world.alive, me, False), pending=gone)
                if at == 4 * len(self.plans[me]):
                    continue
                after, place = worker(world, me, self.plans[me], rules)
            elif at < 0:
                continue
            elif me < len(self.plans) + self.recounters:
                after, place = recounter(world, me, rules)
            else:
                after, place = reaper(world, me, rules)
            if after != world or place != at:
                yield replace(after, at=put(after.at, me, place))


def hole(cast: Cast, rules: Rules) -> World | None:
    """Return a reachable world in which too little is counted, if there is one.

    Total is less than what is held, or the driver has given more than the limit.
    """
    start = cast.start()
    seen, todo = {start}, [start]
    while todo:
        world = todo.pop()
        if world.total < sum(world.used) + sum(world.pending) or world.total > LIMIT:
            return world
        if sum(world.given) > LIMIT:
            return world
        for after in cast.moves(world, rules):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    assert len(seen) > 1000
    return None


BUSY = Cast(("+-+", "+-"), recounters=1, reaper=False, mortal=False)
DYING = Cast(("+-", "+-"), recounters=1, reaper=True, mortal=True)
TWO = Cast(("+", "+"), recounters=2, reaper=True, mortal=True)
KILLED = Cast(("+", "+-++"), recounters=1, reaper=True, mortal=True)
# The last slot is nobody's but what is moved there: it lives as long as a process holds it.
MOVING = Cast(("+>", "+-", ""), recounters=1, reaper=True, mortal=True)


@pytest.mark.parametrize(
    "cast",
    [BUSY, DYING, TWO, KILLED, MOVING],
    ids=["busy", "dying", "two recounts", "killed", "moving"],
)
def test_no_order_of_steps_and_no_death_counts_too_little(cast: Cast) -> None:
    assert hole(cast, Rules()) is None


@pytest.mark.parametrize(
    ("rule", "cast"),
    [
        ("second_pass", BUSY), ("total_inside", BUSY), ("one_recount", TWO),
        ("reaper_is_seen", DYING), ("total_before_used", DYING), ("move_is_seen", MOVING),
        ("driver_is_asked", KILLED),
    ],
)  # fmt: skip
def test_each_rule_is_needed(rule: str, cast: Cast) -> None:
    assert hole(cast, replace(Rules(), **{rule: False})) is not None
