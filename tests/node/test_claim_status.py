"""Claims that are told of their shares, at a real API server with the rights of deploy/base."""

from __future__ import annotations

import itertools
import re
import urllib.error
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apportion import claimstatus, kube
from apportion.errors import KubeForbiddenError, KubeInvalidError, KubeNotFoundError
from apportion.ledger.schema import Record, State
from apportion.ledger.store import Store
from apportion.model import (
    Capacity,
    ClaimRef,
    ClaimUid,
    DeviceName,
    GpuUuid,
    Share,
    ShareKey,
    Usage,
)
from apportion.reporter import Reporter
from apportion.reporter.look import Look
from apportion.reporter.marks import Marks

from tests.node.support import base
from tests.node.support.apiserver import ApiServer, add_node, token_of_pod
from tests.node.support.claims import DRIVER, allocated, deallocated, deleted, share, told
from tests.node.support.kubelet import until

NODE, ELSEWHERE = "status-node", "elsewhere"
OTHER = {"driver": "net.example.com", "pool": NODE, "device": "nic-0", "shareID": str(uuid.uuid4())}
_NUMBER = itertools.count(1)
GIB = 1 << 30


# Until Kubernetes 1.35 only the policy of deploy/base says whose entries a plugin may change.
_BEFORE = {"DRAResourceClaimGranularStatusAuthorization": False}


@pytest.fixture(scope="module", params=[{}, _BEFORE], ids=["1.36", "as-1.34"])
def server(
    kubernetes_programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("status")
    with ApiServer(kubernetes_programs, folder, request.param) as running:
        base.install(running)
        for name in (NODE, ELSEWHERE):
            add_node(running, name)
        yield running


def plugin_of(server: ApiServer, node: str) -> kube.Kube:
    """Return the API server as the plugin's pod on a node has it."""
    token = token_of_pod(server, node, base.ACCOUNT, base.NAMESPACE)
    return kube.connect(str(server.kubeconfig(token=token)), 10)


class Scene:
    """A node's files with claims that were prepared, and its reporter."""

    def __init__(self, server: ApiServer, api: kube.Kube, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.seconds = 10_000.0
        self.usages: dict[ShareKey, Usage] = {}
        self.store = Store(folder, "boot", tuple)
        self.said: list[str] = []
        self.reporter = Reporter(
            api,
            store=self.store,
            look=Look(node=NODE, usage=self._usage, limited=self._limited),
            marks=Marks(folder / "told"),
            driver=DRIVER,
            node=NODE,
            interval_s=30,
            on_dropped=self.said.append,
            clock=lambda: self.seconds,
        )

    def _usage(self, key: ShareKey) -> Usage:
        return self.usages.get(key, Usage(0, 0, 0, 0, 0))

    def _limited(self) -> list[ShareKey]:
        return [share.key for record in self.store.records() for share in record.shares]

    def claim(self, *results: dict[str, Any]) -> Record:
        """Return the record of a claim that was allocated and prepared."""
        name = f"status-{next(_NUMBER)}"
        results = results or (share(NODE, "gpu-0"),)
        uid = ClaimUid(allocated(self.server, name, *results)["uid"])
        shares = tuple(
            Share(
                key=ShareKey(f"{uid}-{n}"),
                request=item["request"],
                pool=NODE,
                device=DeviceName(item["device"]),
                share_id=item.get("shareID"),
                uuid=GpuUuid("GPU-1"),
                capacity=Capacity(30, 4 * GIB),
            )
            for n, item in enumerate(results)
            if item["driver"] == DRIVER
        )
        ref = ClaimRef(uid, "default", name)
        record = Record("boot", State.COMPLETED, ref, (), "build", shares)
        (self.folder / "claims").mkdir(exist_ok=True)
        self.store.commit(record)
        self.reporter.prepared(record)
        return record

    def removed(self, record: Record) -> None:
        (self.folder / "claims" / f"{record.ref.uid}.json").unlink()
        self.reporter.removed(record.ref.uid)

    def rest(self, seconds: float = 0) -> None:
        self.seconds += seconds
        for _ in range(100):
            wait = self.reporter.step()
            if wait >= 1:
                return
            self.seconds += wait
        raise AssertionError("it never rests")


@pytest.fixture(scope="module")
def own(server: ApiServer) -> kube.Kube:
    return plugin_of(server, NODE)


@pytest.fixture
def scene(server: ApiServer, own: kube.Kube, tmp_path: Path) -> Scene:
    return Scene(server, own, tmp_path)


def _used(server: ApiServer, name: str) -> list[int]:
    return [item["data"]["memoryUsedBytes"] for item in told(server, name)]


def test_entries_are_those_of_the_allocation_and_change_with_the_use(
    server: ApiServer, scene: Scene
) -> None:
    whole = share(NODE, "gpu-1", request="whole")
    del whole["shareID"]
    results = (share(NODE, "gpu-0"), share(NODE, "gpu-0", request="b"), whole)
    record = scene.claim(*results)
    scene.rest()
    found = told(server, record.ref.name)
    keys = ("driver", "pool", "device", "shareID")
    assert [[item.get(key) for key in keys] for item in found] == [
        [item.get(key) for key in keys] for item in results
    ]
    assert [item["conditions"][0]["status"] for item in found] == ["True"] * 3
    scene.usages[record.shares[1].key] = Usage(GIB, GIB, 1, GIB, 0)
    scene.rest(30)
    assert _used(server, record.ref.name) == [0, GIB, 0]
    version = server.call("GET", f"{base.CLAIMS}/{record.ref.name}")["metadata"]["resourceVersion"]
    scene.rest(3000)
    after = server.call("GET", f"{base.CLAIMS}/{record.ref.name}")["metadata"]["resourceVersion"]
    assert after == version


def test_entries_of_other_drivers_stay_when_ours_come_and_go(
    server: ApiServer, scene: Scene
) -> None:
    record = scene.claim(share(NODE, "gpu-0"), share(NODE, "nic-0", request="nic") | OTHER)
    theirs = {"devices": [OTHER | {"data": {"mtu": 9000}}]}
    kube.connect(str(server.kubeconfig()), 10).apply_claim_status(record.ref, theirs, "theirs")
    scene.rest()
    assert sorted(item["driver"] for item in told(server, record.ref.name)) == [
        DRIVER,
        OTHER["driver"],
    ]
    scene.removed(record)
    scene.rest()
    (left,) = told(server, record.ref.name)
    assert left["data"] == {"mtu": 9000}


def test_an_unprepared_claim_that_is_still_allocated_is_cleaned(
    server: ApiServer, scene: Scene
) -> None:
    record = scene.claim()
    scene.rest()
    assert len(told(server, record.ref.name)) == 1
    scene.removed(record)
    scene.rest()
    assert told(server, record.ref.name) == []
    assert list((scene.folder / "told").iterdir()) == []


def test_deallocation_clears_by_itself_and_deletion_is_no_trouble(
    server: ApiServer, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = scene.claim(), scene.claim()
    scene.rest()
    deallocated(server, first.ref.name)
    assert told(server, first.ref.name) == []
    deleted(server, second.ref.name)
    for record in (first, second):
        scene.usages[record.shares[0].key] = Usage(GIB, GIB, 1, GIB, 0)
    scene.rest(30)
    scene.rest(30)
    assert told(server, first.ref.name) == []
    for record in (first, second):
        scene.removed(record)
    scene.rest()
    assert list((scene.folder / "told").iterdir()) == []
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def _entry(record: Record, **place: str) -> dict[str, Any]:
    status = claimstatus.ShareStatus(
        NODE, record.shares[0].key, GpuUuid("GPU-1"), Capacity(1, 1), None, "2026-01-01T00:00:00Z"
    )
    return claimstatus.entry(DRIVER, record.shares[0], status) | place


_NOT_YOURS = r"may only tell of devices of driver apportion\.gpu|resourceclaims/driver"


def _refused(api: kube.Kube, record: Record, status: dict[str, Any], words: str) -> bool:
    """Whether a write is refused by these words; a policy is in force moments after it was made."""
    try:
        api.apply_claim_status(record.ref, status, "m")
        # By now the policy may be in force.
        api.apply_claim_status(record.ref, {}, "m")
    except (KubeInvalidError, KubeForbiddenError) as error:
        if not re.search(words, str(error)):
            raise
        return True
    return False


def test_the_plugin_of_another_node_may_not_speak_for_this_one(
    server: ApiServer, own: kube.Kube, scene: Scene
) -> None:
    record = scene.claim()
    body = {"devices": [_entry(record)]}
    elsewhere = plugin_of(server, ELSEWHERE)
    until(lambda: _refused(elsewhere, record, body, _NOT_YOURS))
    assert claimstatus.own(own.apply_claim_status(record.ref, body, "m"), driver=DRIVER, pool=NODE)
    assert len(told(server, record.ref.name)) == 1


def test_the_plugin_changes_nothing_else_of_a_claim(
    server: ApiServer, own: kube.Kube, scene: Scene
) -> None:
    record = scene.claim(share(NODE, "gpu-0"), share(NODE, "nic-0", request="nic") | OTHER)
    until(lambda: _refused(own, record, {"devices": [OTHER]}, _NOT_YOURS))
    found = server.call("GET", f"{base.CLAIMS}/{record.ref.name}")
    pod = {"resource": "pods", "name": "more", "uid": str(uuid.uuid4())}
    more = {"reservedFor": [*found["status"]["reservedFor"], pod]}
    until(lambda: _refused(own, record, more, "nothing of a claim's status|resourceclaims/binding"))
    token = token_of_pod(server, NODE, base.ACCOUNT, base.NAMESPACE)
    for path in (f"{base.CLAIMS}/{record.ref.name}", f"{base.CLAIMS}/{record.ref.name}/status"):
        with pytest.raises(urllib.error.HTTPError, match="403") as raised:
            server.call("PUT", path, found, token)
        raised.value.close()


def test_a_claim_of_another_uid_or_none_is_refused(own: kube.Kube, scene: Scene) -> None:
    record = scene.claim()
    other = ClaimRef(ClaimUid(str(uuid.uuid4())), "default", record.ref.name)
    with pytest.raises(KubeInvalidError, match="immutable"):
        own.apply_claim_status(other, {"devices": [_entry(record)]}, "m")
    for namespace, name in (("default", "none"), ("nowhere", "none")):
        with pytest.raises(KubeNotFoundError):
            own.apply_claim_status(ClaimRef(record.ref.uid, namespace, name), {}, "m")


def test_a_gate_that_is_off_is_said_once_and_noticed_when_it_is_on(
    kubernetes_programs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path_factory.mktemp("gate")
    gates = {
        "DRAResourceClaimDeviceStatus": False,
        "DRAResourceClaimGranularStatusAuthorization": False,
        "DRADeviceBindingConditions": False,
    }
    (folder / "plugin").mkdir()
    with ApiServer(kubernetes_programs, folder / "api", gates) as server:
        scene = Scene(server, kube.connect(str(server.kubeconfig()), 10), folder / "plugin")
        first, second = scene.claim(), scene.claim()
        scene.rest()
        assert told(server, first.ref.name) == []
        assert len(scene.said) == 1
        assert "DRAResourceClaimDeviceStatus" in scene.said[0]
        server.stop()
        server._gates = {}
        server.start()
        scene.rest(600)
        scene.rest(30)
        until(lambda: [*_used(server, first.ref.name), *_used(server, second.ref.name)] == [0, 0])
        assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
