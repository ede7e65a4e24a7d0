"""The plugin's side of kubelet's APIs on real sockets, before a real Preparer with real files."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apportion.kubelet import Kubelet, instance
from apportion.kubelet.server import Action
from apportion.model import (
    ClaimOutcome,
    ClaimRef,
    ClaimUid,
    DeviceHealth,
    DeviceName,
    HealthState,
)

from tests.node.prepare import world
from tests.node.support.kubelet import FakeKubelet

DRIVER = world.DRIVER
UID = "11111111-2222-4333-8444-{:012d}"
POD = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
_NAME = re.compile(r"claim-([0-9]+)")


def claim(number: int = 0, name: str = "") -> dict[str, str]:
    """Return what kubelet says of a claim; those without a name are at the API server."""
    return {"uid": UID.format(number), "namespace": "default", "name": name or f"claim-{number}"}


class Claims:
    """The way of a call to the Preparer; `errors` and `gates` let it have a bad day before."""

    def __init__(self) -> None:
        self.errors: dict[str, str | Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.entered = threading.Semaphore(0)

    def __call__(self, real: Action, ref: ClaimRef) -> ClaimOutcome:
        self.entered.release()
        if ref.uid in self.gates:
            self.gates[ref.uid].wait(30)
        error = self.errors.get(ref.uid)
        if isinstance(error, Exception):
            raise error
        return ClaimOutcome(error=error) if error else real(ref)


class Site:
    """A node's folders, and plugins on it."""

    def __init__(self, root: Path) -> None:
        self.world = world.World(root)
        self.plugin_dir = self.world.config.plugin_dir
        self.registry = root / "plugins_registry"
        self.registry.mkdir(parents=True)
        self.claims = Claims()
        self.statuses: list[bool] = []
        self._threads = ThreadPoolExecutor(4)

    def hold(self, uid: str) -> threading.Event:
        """Let calls for a claim wait until the event is set."""
        return self.claims.gates.setdefault(uid, threading.Event())

    def in_thread(self, action: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(action)

    def create(self, number: int, name: str) -> dict[str, str]:
        """Put a claim at the API server, in the place of one of its name; return what it is."""
        found = claim(number, name)
        ref = ClaimRef(ClaimUid(found["uid"]), found["namespace"], found["name"])
        share = world.result(number % 2, memory="64Mi", cores="1", share_id=f"share-of-{ref.uid}")
        self.world.claims[ref.name] = world.claim(ref, share)
        return found

    def plugin(self, pod: str = POD, *, health: str = "") -> Kubelet:
        """Build a plugin as a new process has it, with its instance lock taken; not started."""
        own = instance(DRIVER, self.plugin_dir, self.registry, pod)
        own.acquire()
        preparer = self.world.restarted().preparer(fetch=self._fetch)
        return Kubelet(
            own,
            prepare=functools.partial(self.claims, preparer.prepare),
            unprepare=functools.partial(self.claims, preparer.unprepare),
            observe=lambda _method, _failed, _seconds: None,
            on_status=self.statuses.append,
            devices=lambda: (
                DeviceHealth(world.NODE, DeviceName("gpu-0"), HealthState.HEALTHY, 1),
            ),
            health_address=health,
        )

    def inodes(self) -> dict[str, int]:
        """Return all that containers of prepared claims have mounted, file by file."""
        found = sorted(self.world.config.shares_dir.rglob("*"))
        return {str(path): path.stat().st_ino for path in found}

    def _fetch(self, ref: ClaimRef) -> dict[str, Any]:
        number = _NAME.fullmatch(ref.name)
        if number and ref.name not in self.world.claims:
            self.create(int(number[1]), ref.name)
        return self.world.fetch(ref)


@pytest.fixture
def site(short: Path) -> Iterator[Site]:
    made = Site(short)
    yield made
    made._threads.shutdown()


@pytest.fixture
def plugin(site: Site) -> Iterator[Kubelet]:
    built = site.plugin(health="127.0.0.1:0")
    built.start_health()
    built.serve()
    built.register()
    yield built
    built.stop(5)


@pytest.fixture
def kubelet(site: Site, plugin: Kubelet) -> Iterator[FakeKubelet]:  # noqa: ARG001 - it must run
    with FakeKubelet(site.registry) as running:
        running.wait_for(1)
        yield running
