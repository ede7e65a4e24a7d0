"""The guard: NVML's truth about each process against its share, and an end to what is over it.

It sees what the front libraries in the containers cannot: programs that load the driver past them,
static ones, graphics, nested containers. It acts on what two readings in a row show, so within two
intervals and the time of two readings.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from apportion import log
from apportion.enforce import Enforcer
from apportion.errors import ApportionError, NvmlError
from apportion.inventory.nvml import GpuProcess
from apportion.model import Allowance, Charge, GpuUuid, ShareKey
from apportion.watch import verdict
from apportion.watch.attribution import Place
from apportion.watch.processes import Processes, Seen
from apportion.watch.report import Report
from apportion.watch.verdict import Group, Holder, Keys, Margin

_LOG = logging.getLogger(__name__)

HOST, POD, MPS, UNKNOWN = "host", "pod", "mps", "unknown"
"""Where a process without a share lives; mps: it serves the shares of its GPU; unknown: it has
ended, or cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the guard does with what it finds.

    Attributes:
        kill: whether it ends processes; else it only reports.
        kill_strangers: whether it also ends those in pods that have no share of the card.
        margin: what is within the limit.
    """

    kill: bool
    kill_strangers: bool
    margin: Margin


@dataclass(frozen=True, slots=True)
class View:
    """What the last reading showed.

    Attributes:
        blind: why nothing can be seen, empty where it can.
        at: when NVML last told of any GPU, monotonic seconds; None: it has not yet.
        seconds: how long it took.
        shares: bytes of each share's processes; of one with several shares, at the first of them.
        strangers: bytes of processes without a share, by GPU and where they live.
    """

    blind: str = ""
    at: float | None = None
    seconds: float = 0.0
    shares: Mapping[ShareKey, int] = field(default_factory=dict)
    strangers: Mapping[tuple[GpuUuid, str], int] = field(default_factory=dict)


_Stranger = tuple[GpuUuid, int, int]
# Readings in a row before anything is done: what a process holds for the moment of a call, or a
# dying one until the driver has taken it back, is nobody's excess.
_TWICE = 2


@dataclass(slots=True)
class _Card:
    """One GPU in one reading."""

    uuid: GpuUuid
    limits: dict[ShareKey, int]
    holders: list[Holder] = field(default_factory=list)
    seen: dict[int, Seen] = field(default_factory=dict)
    strangers: list[tuple[Seen, int]] = field(default_factory=list)
    leaving: set[tuple[int, int]] = field(default_factory=set)
    serving: int = 0
    unknown: int = 0


class Guard:
    """Looks when it is told to (`scan`), from one thread.

    Args:
        policy: what to do.
        cards: the GPUs of this node that are shared.
        listing: asks NVML for the processes on a GPU.
        enforcer: knows limits and ledgers.
        processes: the node's processes.
        reserved: the shares of a pod, by its UID; None: not known yet.
        report: tells people.
        servers: PID and start of the processes that serve shares.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        cards: Callable[[], Collection[GpuUuid]],
        listing: Callable[[GpuUuid], tuple[GpuProcess, ...]],
        enforcer: Enforcer,
        processes: Processes,
        reserved: Callable[[str], frozenset[ShareKey] | None],
        report: Report,
        servers: Callable[[], Collection[tuple[int, int]]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._cards, self._listing = policy, cards, listing
        self._servers = servers
        self._enforcer, self._processes, self._reserved = enforcer, processes, reserved
        self._report, self._clock = report, clock
        self._blindness = log.Trouble(_LOG, "the guard is blind")
        self._troubles: dict[GpuUuid, log.Trouble] = {}
        self._suspects: dict[GpuUuid, dict[Keys, bool]] = {}
        self._reported: set[tuple[GpuUuid, Keys]] = set()
        self._strangers: dict[_Stranger, int] = {}
        self._ended: set[tuple[int, int]] = set()
        self.view = View()

    def scan(self) -> None:
        """Read, judge, act.

        Raises:
            StorageError: the share folders cannot be read.
        """
        began = self._clock()
        # What this reading does not find begins anew, whyever it does not.
        before, self._suspects = self._suspects, {}
        lately, self._strangers = self._strangers, {}
        blind = self._processes.blindness()
        if blind:
            self._blindness.begin(blind, f"{blind}; nobody who goes around a share is caught")
            if not self.view.blind:
                self._report.blind(blind)
            self.view = View(blind=blind)
            return
        self._blindness.end()
        allowances = self._enforcer.allowances()
        place = self._processes.place()
        cards = []
        uuids = sorted({*self._cards(), *(allowance.uuid for allowance in allowances)})
        for uuid in uuids:
            card = self._read(uuid, allowances, place)
            if card is not None:
                cards.append(card)
                self._judge(card, before.get(uuid, {}))
        self._judge_strangers(cards, lately)
        self._ended &= {leaver for card in cards for leaver in card.leaving}
        ended = self._clock()
        told = ended if cards or not uuids else self.view.at
        self.view = _view(cards, told, ended - began)

    def _read(
        self, uuid: GpuUuid, allowances: tuple[Allowance, ...], place: Place | None
    ) -> _Card | None:
        """Return the processes on a GPU by whose they are; None where NVML does not say."""
        trouble = self._troubles.setdefault(uuid, log.Trouble(_LOG, f"the guard at {uuid}"))
        card = _Card(uuid, {a.key: a.capacity.memory for a in allowances if a.uuid == uuid})
        try:
            listed = self._listing(uuid)
        except NvmlError as error:
            trouble.begin(str(error), str(error))
            return None
        silent = [str(process.pid) for process in listed if process.memory is None]
        if silent:
            pids = ", ".join(silent)
            trouble.begin("silent", f"NVML does not say what processes hold; not guarded: {pids}")
        else:
            trouble.end()
        for process in listed:
            if process.memory is not None:
                self._sort(card, process.pid, process.memory, place)
        return card

    def _sort(self, card: _Card, pid: int, memory: int, place: Place | None) -> None:
        seen = self._processes.look(pid, place, card.limits)
        if seen is None:
            card.unknown += memory
            return
        if (seen.pid, seen.start) in self._ended:
            card.leaving.add((seen.pid, seen.start))
            card.unknown += memory
            return
        if (seen.pid, seen.start) in self._servers():
            card.serving += memory
            return
        keys = seen.shares
        if not keys and seen.pod is not None:
            keys = (self._reserved(seen.pod) or frozenset()).intersection(card.limits)
        if keys:
            card.seen[pid] = seen
            card.holders.append(Holder(pid, seen.start, seen.own, keys, memory))
        elif not self._processes.is_own(seen):
            card.strangers.append((seen, memory))

    def _judge(self, card: _Card, before: Mapping[Keys, bool]) -> None:
        """Act on the sets of shares that are over their limits for the second time."""
        charges: dict[ShareKey, tuple[Charge, ...]] = {}
        found = verdict.groups(card.holders, card.limits, charges)
        suspects = [group for group in found if group.memory > group.limit]
        if suspects:
            # Ledgers are read only now: in peace they do not matter.
            for key in sorted(frozenset().union(*(group.keys for group in suspects))):
                charges[key] = self._charges(key)
            found = verdict.groups(card.holders, card.limits, charges)
        margin = self._policy.margin
        suspects = [group for group in found if group.is_over(margin) or group.is_odd(margin)]
        now = {group.keys: group.is_over(margin) for group in suspects}
        self._suspects[card.uuid] = now
        self._reported -= {
            (uuid, keys) for uuid, keys in self._reported if uuid == card.uuid and keys not in now
        }
        ended: set[int] = set()
        for group in suspects:
            if group.keys in before:
                self._act(card, group, ended, was_over=before[group.keys])

    def _charges(self, key: ShareKey) -> tuple[Charge, ...]:
        try:
            return self._enforcer.charges(key)
        except ApportionError as error:
            # What nobody can read excuses nothing.
            _LOG.warning("the guard goes by the limit alone: %s", error, extra={"share": key})
            return ()

    def _act(self, card: _Card, group: Group, ended: set[int], *, was_over: bool) -> None:
        for holder in group.holders:
            if holder.pid in ended:
                group = group.without(holder)
        is_over = group.is_over(self._policy.margin)
        if not is_over and not group.is_odd(self._policy.margin):
            return
        if (card.uuid, group.keys) not in self._reported:
            self._reported.add((card.uuid, group.keys))
            self._report.exceeded(card.uuid, group)
        if not (self._policy.kill and is_over and was_over):
            return
        for holder in verdict.victims(group, self._policy.margin):
            if self._end(card.seen[holder.pid]):
                self._ended.add((holder.pid, holder.start))
                card.leaving.add((holder.pid, holder.start))
                ended.add(holder.pid)
                self._report.killed(card.uuid, group, holder, card.seen[holder.pid].name)

    def _end(self, seen: Seen) -> bool:
        """End a process; that one cannot be ended keeps nobody else from it."""
        try:
            return self._processes.kill(seen)
        except ApportionError as error:
            self._report.unkillable(seen.pid, str(error))
            return False

    def _judge_strangers(self, cards: list[_Card], lately: Mapping[_Stranger, int]) -> None:
        """Report, once, who holds memory without a share for the second time."""
        rounds: dict[_Stranger, int] = {}
        for card in cards:
            for seen, memory in card.strangers:
                who = (card.uuid, seen.pid, seen.start)
                rounds[who] = lately.get(who, 0) + 1
                if rounds[who] == _TWICE:
                    self._report.stranger(card.uuid, seen.pid, seen.name, seen.pod, memory)
                if rounds[who] >= _TWICE and self._may_end(card, seen) and self._end(seen):
                    self._ended.add((seen.pid, seen.start))
                    card.leaving.add((seen.pid, seen.start))
                    self._report.stranger_killed(card.uuid, seen.pid, seen.name, seen.pod, memory)
        self._strangers = rounds

    def _may_end(self, card: _Card, seen: Seen) -> bool:
        policy = self._policy
        if not (policy.kill and policy.kill_strangers and card.limits) or seen.privileged:
            return False
        # A pod of which the API server has not told yet may have a share.
        return seen.pod is not None and self._reserved(seen.pod) is not None


def _view(cards: list[_Card], at: float | None, seconds: float) -> View:
    shares: Counter[ShareKey] = Counter()
    strangers: Counter[tuple[GpuUuid, str]] = Counter()
    for card in cards:
        shares.update(dict.fromkeys(card.limits, 0))
        for holder in card.holders:
            shares[min(holder.keys)] += holder.memory
        for kind in (HOST, POD):
            strangers[card.uuid, kind] = 0
        strangers[card.uuid, UNKNOWN] = card.unknown
        if card.serving:
            strangers[card.uuid, MPS] = card.serving
        for seen, memory in card.strangers:
            strangers[card.uuid, HOST if seen.pod is None else POD] += memory
    return View("", at, seconds, dict(shares), dict(strangers))
