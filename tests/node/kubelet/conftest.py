"""The plugin's side of kubelet's APIs on real sockets, with claims that a test decides about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apportion.kubelet import Kubelet, instance
from apportion.model import ClaimOutcome, ClaimRef, PreparedDevice

from tests.node.support.kubelet import FakeKubelet

DRIVER = "apportion.gpu"
UID = "11111111-2222-4333-8444-{:012d}"
POD = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"


def claim(number: int = 0, name: str = "") -> dict[str, str]:
    return {"uid": UID.format(number), "namespace": "default", "name": name or f"claim-{number}"}


class Claims:
    """Stands for Preparer: idempotent, by UID; `errors` and `gates` play its bad days."""

    def __init__(self) -> None:
        self.prepared: dict[str, ClaimOutcome] = {}
        self.prepares: list[ClaimRef] = []
        self.unprepares: list[ClaimRef] = []
        self.errors: dict[str, str | Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.entered = threading.Semaphore(0)

    def prepare(self, ref: ClaimRef) -> ClaimOutcome:
        self.prepares.append(ref)
        self._play(ref)
        if ref.uid in self.errors:
            return ClaimOutcome(error=str(self.errors[ref.uid]))
        device = PreparedDevice(
            requests=("gpu",),
            pool="node-1",
            device="gpu-0000-3b-00-0",
            cdi_ids=(f"k8s.{DRIVER}/claim={ref.uid}-0", f"k8s.{DRIVER}/driver=all"),
            share_id=f"share-of-{ref.uid}",
        )
        return self.prepared.setdefault(ref.uid, ClaimOutcome((device,)))

    def unprepare(self, ref: ClaimRef) -> ClaimOutcome:
        self.unprepares.append(ref)
        self._play(ref)
        if ref.uid in self.errors:
            return ClaimOutcome(error=str(self.errors[ref.uid]))
        self.prepared.pop(ref.uid, None)
        return ClaimOutcome()

    def _play(self, ref: ClaimRef) -> None:
        self.entered.release()
        if ref.uid in self.gates:
            self.gates[ref.uid].wait(30)
        error = self.errors.get(ref.uid)
        if isinstance(error, Exception):
            raise error


class Site:
    """A node's folders, and plugins on it."""

    def __init__(self, root: Path) -> None:
        self.plugin_dir = root / "plugins" / DRIVER
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

    def plugin(self, pod: str = POD, *, health: str = "") -> Kubelet:
        """Build a plugin with its instance lock taken; not started."""
        own = instance(DRIVER, self.plugin_dir, self.registry, pod)
        own.acquire()
        return Kubelet(
            own,
            prepare=self.claims.prepare,
            unprepare=self.claims.unprepare,
            observe=lambda _method, _failed, _seconds: None,
            on_status=self.statuses.append,
            health_address=health,
        )


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
