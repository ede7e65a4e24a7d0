"""A node of files with claims, and an API server of one dictionary."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apportion.claimstatus import Condition
from apportion.errors import (
    KubeError,
    KubeInvalidError,
    StateError,
)
from apportion.model import ClaimRef, ShareKey, Usage
from apportion.prepare import Preparer
from apportion.reporter import Reporter
from apportion.reporter.look import Look
from apportion.reporter.marks import Marks

from tests.node.prepare.world import DRIVER, NODE, World

MIB = 1 << 20


class Api:
    """The claims of a world; applies as the API server does, by field manager."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[str] = []
        self.errors: list[KubeError] = []
        self.error: KubeError | None = None
        self.drops = False
        self.owned: dict[tuple[str, str], list[tuple[Any, ...]]] = {}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error or self.errors:
            raise self.error or self.errors.pop(0)

    def get_claim(self, wanted: ClaimRef) -> dict[str, Any]:
        self._called("get")
        return copy.deepcopy(self.world.fetch(wanted))

    def apply_claim_status(
        self, wanted: ClaimRef, status: Mapping[str, Any], manager: str
    ) -> dict[str, Any]:
        self._called("apply")
        found = self.world.fetch(wanted)
        if found["metadata"]["uid"] != wanted.uid:
            raise KubeInvalidError("metadata.uid: field is immutable", 422)
        entries = copy.deepcopy(list(status.get("devices", ())))
        had = self.owned.get((wanted.uid, manager), [])
        kept = [item for item in self.devices(wanted.name) if key_of(item) not in had]
        self.owned[wanted.uid, manager] = [key_of(item) for item in entries]
        found["status"]["devices"] = [*kept, *([] if self.drops else entries)]
        return copy.deepcopy(found)

    def devices(self, name: str) -> list[dict[str, Any]]:
        return list(self.world.claims[name]["status"].get("devices", ()))

    def used(self, name: str) -> list[int]:
        return [item["data"]["memoryUsedBytes"] for item in self.devices(name)]


def key_of(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in ("driver", "pool", "device", "shareID"))


class Scene:
    """A node with a reporter, whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.api = Api(self.world)
        self.seconds = 10_000.0
        self.usages: dict[ShareKey, Usage | None] = {}
        self.conditions: tuple[Condition, ...] = ()
        self.said: list[str] = []
        self.reporter = self.started()

    def started(self) -> Reporter:
        """Return the reporter of a new process."""
        self.marks = Marks(self.world.config.plugin_dir / "told")
        look = Look(
            node=NODE,
            usage=self._usage,
            limited=lambda: (each.key for each in self.world.enforcer.allowances()),
            conditions=lambda _share: self.conditions,
            now=lambda: self.seconds,
        )
        self.reporter = Reporter(
            self.api,
            store=self.world.store,
            look=look,
            marks=self.marks,
            driver=DRIVER,
            node=NODE,
            interval_s=30,
            on_dropped=self.said.append,
            clock=lambda: self.seconds,
        )
        return self.reporter

    def _usage(self, key: ShareKey) -> Usage:
        usage = self.usages.get(key, Usage(0, 0, 0, 0, 0))
        if usage is None:
            raise StateError("damaged")
        return usage

    def preparer(self) -> Preparer:
        made = self.world.preparer()
        made._on_prepared = self.reporter.prepared
        made._sweeper._on_removed = self.reporter.removed
        return made

    def prepare(self, name: str = "c", *results: dict[str, Any]) -> ClaimRef:
        wanted = self.world.add(name, *results)
        assert self.preparer().prepare(wanted).error == ""
        return wanted

    def hold(self, name: str, mib: int, denied: int = 0) -> None:
        self.usages[self.world.key(name)] = Usage(mib * MIB, mib * MIB, 1, mib * MIB, denied)

    def rest(self, seconds: float = 0) -> float:
        """Let time pass and do all that is due; return how long nothing is."""
        self.seconds += seconds
        for _ in range(5000):
            wait = self.reporter.step()
            if wait >= 1:
                return wait
            self.seconds += wait
        raise AssertionError("it never rests")

    def writes(self) -> int:
        return self.api.calls.count("apply")
