"""Events at a real API server: what kubectl would show of a plugin's troubles."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
from apportion import kube
from apportion.errors import KubeConflictError, KubeNotFoundError
from apportion.events import Recorder
from apportion.model import ClaimRef, ClaimUid

from tests.node.support.apiserver import ApiServer
from tests.node.support.claims import allocated, share

_CORE = "/api/v1/namespaces/default/events"
_NUMBER = itertools.count(1)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def events_of(server: ApiServer, name: str) -> list[dict[str, Any]]:
    """Return the events on an object as kubectl reads them, in the core group's old shape."""
    items = server.call("GET", f"{_CORE}?fieldSelector=involvedObject.name={name}")["items"]
    return sorted(items, key=lambda item: str(item["message"]))


@pytest.fixture
def api(api_server: ApiServer) -> kube.Kube:
    return kube.connect(str(api_server.kubeconfig()), 10)


def test_a_repeated_fault_is_one_event_whose_count_grows(
    api_server: ApiServer, api: kube.Kube, node: str
) -> None:
    clock = Clock()
    for _process in range(2):
        notes = Recorder(api, driver="apportion.gpu", node=node, clock=clock)
        for _ in range(4):
            notes.on_node("GpuLost", "GPU-1 does not answer; look at nvidia-smi")
            clock.seconds += 2000
            assert notes.step() is None
    (event,) = events_of(api_server, node)
    assert event["series"]["count"] == 8
    assert (event["type"], event["reason"]) == ("Warning", "GpuLost")
    assert event["involvedObject"]["uid"] == node
    assert event["reportingComponent"] == "apportion.gpu"


def test_the_pods_of_a_claim_get_it_and_their_claim_is_related(
    api_server: ApiServer, api: kube.Kube, node: str
) -> None:
    name = f"events-{next(_NUMBER)}"
    claim = allocated(api_server, name, share(node, "gpu-0"))
    ref = ClaimRef(ClaimUid(claim["uid"]), "default", name)
    notes = Recorder(api, driver="apportion.gpu", node=node)
    notes.on_pods(ref, "PrepareRefused", "ü" * 1000)
    notes.on_claim(ref, "Moved", "words", warning=False)
    assert notes.step() is None
    (event,) = events_of(api_server, f"pod-of-{name}")
    assert event["involvedObject"]["kind"] == "Pod"
    assert event["related"]["uid"] == claim["uid"]
    (event,) = events_of(api_server, name)
    assert (event["involvedObject"]["kind"], event["type"]) == ("ResourceClaim", "Normal")


def test_what_the_api_server_will_never_take_is_left(api: kube.Kube, node: str) -> None:
    notes = Recorder(api, driver="apportion.gpu", node=node)
    uid = ClaimUid(str(uuid.uuid4()))
    for namespace, name in (("no-such-namespace", "c"), ("default", "No Name"), ("..", "c")):
        notes.on_pods(ClaimRef(uid, namespace, name), "Reason", "words")
    assert notes.step() is None


def test_events_that_are_there_or_are_gone_are_told_apart(api: kube.Kube, node: str) -> None:
    notes = Recorder(api, driver="apportion.gpu", node=node)
    notes.on_node("Reason", "words")
    notes.step()
    ((key, series),) = notes._series.items()
    (name,) = series.events
    with pytest.raises(KubeNotFoundError):
        api.patch_event("default", name + "0", {})
    body = notes._body(key, series, notes._regarding(key)[0], 1)
    with pytest.raises(KubeConflictError):
        api.create_event(body | {"metadata": {"namespace": "default", "name": name}})
