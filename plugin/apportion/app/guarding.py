"""The guard, wired into the plugin: its loops, and what is told of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from apportion import log, quantity
from apportion.app.loops import Loops
from apportion.config import Config
from apportion.enforce import Enforcer
from apportion.inventory.nvml import Nvml
from apportion.ledger.schema import Record
from apportion.ledger.store import Store
from apportion.metrics import GuardSample
from apportion.model import ClaimRef, GpuUuid, ShareKey
from apportion.watch.guard import Guard, Policy
from apportion.watch.processes import Processes
from apportion.watch.report import Counts, Events, Report
from apportion.watch.reservations import Reservations
from apportion.watch.verdict import Margin

_LOG = logging.getLogger(__name__)

_ASK_S = 1.0
_CHECK_S = 5.0
# A reading takes milliseconds; NVML that another call keeps busy is given up after a second.
_LATE_INTERVALS, _LATE_S = 3, 10.0
_SILENT = (
    "NVML does not answer; does nvidia-smi on the node? If it does not either, reboot the node"
)


class Guarding:
    """The guard and its loops: one reads and judges, one asks the API server about pods.

    Args:
        config: the settings.
        cards: the GPUs that are published.
        nvml: the gate to NVML.
        enforcer: knows limits and ledgers.
        store: knows the claims.
        fetch: reads a claim from the API server.
        events: where events go.
        counts: where counts go.
        servers: PID and start of the processes that serve shares.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        config: Config,
        cards: Callable[[], Collection[GpuUuid]],
        nvml: Nvml,
        enforcer: Enforcer,
        store: Store,
        fetch: Callable[[ClaimRef], Mapping[str, Any]],
        events: Events,
        counts: Counts,
        servers: Callable[[], Collection[tuple[int, int]]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on = config.guard != "off"
        self._interval = config.guard_interval_s
        self._clock = clock
        self._started = clock()
        self._late = log.Trouble(_LOG, "the guard does not look")

        def records() -> list[Record]:
            return [record for record in store.records() if record.boot == store.boot]

        self._report = Report(records, events, counts)
        self._reservations = Reservations(records, store.uids, fetch, clock)
        self._guard = Guard(
            policy=_policy(config),
            cards=cards,
            listing=nvml.processes,
            enforcer=enforcer,
            processes=Processes(config.proc, config.driver_shares_dir),
            reserved=self._reservations.of,
            report=self._report,
            servers=servers,
            clock=clock,
        )

    def start(self, loops: Loops) -> None:
        """Start the loops, unless the guard is off."""
        if self._on:
            self._started = self._clock()
            loops.every("guard", lambda: self._interval, self._guard.scan)
            stopping = loops.stopping.is_set
            loops.every(
                "reservations", lambda: _ASK_S, lambda: self._reservations.refresh(stopping)
            )
            loops.every("guard-watchdog", lambda: _CHECK_S, self.check)

    def check(self) -> None:
        """Say it once when no reading ends, and once when that is over."""
        if not self._guard.view.blind and self._is_late():
            self._late.begin("late", f"{_SILENT}; nobody who goes around a share is caught")
            self._report.blind(_SILENT)
        else:
            self._late.end()

    def sample(self) -> GuardSample | None:
        """Return the last reading for a scrape, None where the guard is off."""
        if not self._on:
            return None
        view = self._guard.view
        sees = view.at is not None and not self._is_late()
        return GuardSample(
            sees=sees,
            seconds=view.seconds,
            unattributed={(str(u), where): n for (u, where), n in view.strangers.items() if sees},
        )

    def truth(self, key: ShareKey) -> int | None:
        """Return the bytes that a share's processes held at the last reading."""
        return None if self._is_late() else self._guard.view.shares.get(key)

    def _is_late(self) -> bool:
        at = self._guard.view.at
        passed = self._clock() - (self._started if at is None else at)
        return passed > _LATE_INTERVALS * self._interval + _LATE_S


def _policy(config: Config) -> Policy:
    return Policy(
        kill=config.guard == "kill",
        kill_strangers=config.guard_strangers == "kill",
        margin=Margin(
            slack=config.guard_slack_mib * quantity.MIB,
            overhead=config.guard_overhead_mib * quantity.MIB,
            recorded=config.guard_recorded_mib * quantity.MIB,
        ),
    )
