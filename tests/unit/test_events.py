"""What is noted, against an API server of one dictionary."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from apportion import events
from apportion.errors import (
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from apportion.model import ClaimRef, ClaimUid

_REF = ClaimRef(ClaimUid("uid-c"), "team", "c")


class Api:
    """Keeps events as an API server does; raises what it is told to."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.error: KubeError | None = None
        self.once: KubeError | None = None
        self.created = threading.Event()

    def reserve(self, ref: ClaimRef, *users: dict[str, Any]) -> None:
        meta = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
        self.claims[ref.name] = {"metadata": meta, "status": {"reservedFor": list(users)}}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        once, self.once = self.once, None
        if once or self.error:
            raise once or self.error or KubeError("")

    def get_claim(self, ref: ClaimRef) -> dict[str, Any]:
        self._called("get")
        if ref.name not in self.claims:
            raise KubeNotFoundError("no such claim", 404)
        return self.claims[ref.name]

    def create_event(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._called("create")
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        if key in self.events:
            raise KubeConflictError("already exists", 409)
        self.events[key] = copy.deepcopy(dict(body))
        self.created.set()
        return self.events[key]

    def patch_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._called("patch")
        if (namespace, name) not in self.events:
            raise KubeNotFoundError("no such event", 404)
        self.events[namespace, name] |= body
        return self.events[namespace, name]

    def counts(self) -> list[int]:
        return [event.get("series", {}).get("count", 1) for event in self.events.values()]


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def recorder(api: Api, clock: Clock) -> events.Recorder:
    return events.Recorder(api, driver="apportion.gpu", node="node-a", clock=clock, now=clock)


def test_an_event_on_the_node_has_all_that_the_api_server_wants(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    notes.on_node("SelfTestFailed", "shares are not enforced; look at the log")
    assert notes.step() is None
    ((place, event),) = api.events.items()
    assert place[0] == "default"
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-a",
        "uid": "node-a",
    }
    assert event["type"] == "Warning"
    assert event["reason"] == event["action"] == "SelfTestFailed"
    assert event["note"] == "shares are not enforced; look at the log"
    assert event["eventTime"] == "1970-01-01T00:16:40.000000Z"
    assert (event["reportingController"], event["reportingInstance"]) == (
        "apportion.gpu",
        "node-a",
    )
    assert "series" not in event


def test_a_fault_that_lasts_is_one_event_whose_count_grows_ever_more_rarely(
    api: Api, clock: Clock
) -> None:
    notes = recorder(api, clock)
    for _minute in range(6 * 60):
        notes.on_node("GpuLost", "GPU-1 does not answer")
        notes.step()
        clock.seconds += 60
    assert len(api.events) == 1
    assert 300 < api.counts()[0] <= 360
    assert len(api.calls) < 20
    (event,) = api.events.values()
    assert event["eventTime"] < event["series"]["lastObservedTime"]


def test_the_next_plugin_counts_on_from_what_the_last_one_told(api: Api, clock: Clock) -> None:
    for times in (1, 3):
        notes = recorder(api, clock)
        for _ in range(times):
            notes.on_node("GpuLost", "GPU-1 does not answer")
        notes.step()
    assert api.counts() == [4]
    notes.on_node("GpuLost", "GPU-1 does not answer")
    clock.seconds += 100
    notes.step()
    assert api.counts() == [5]


def test_an_event_that_the_api_server_has_forgotten_is_made_again_with_its_count(
    api: Api, clock: Clock
) -> None:
    notes = recorder(api, clock)
    notes.on_node("GpuLost", "GPU-1 does not answer")
    notes.step()
    api.events.clear()
    notes.on_node("GpuLost", "GPU-1 does not answer")
    clock.seconds += 100
    notes.step()
    assert api.counts() == [2]


def test_pods_are_those_that_the_claim_is_reserved_for(api: Api, clock: Clock) -> None:
    api.reserve(
        _REF,
        {"resource": "pods", "name": "b", "uid": "uid-b"},
        {"resource": "podgroups", "name": "g", "uid": "uid-g"},
        {"resource": "pods", "name": "a", "uid": "uid-a"},
    )
    notes = recorder(api, clock)
    notes.on_pods(_REF, "PrepareRefused", "cannot prepare")
    notes.step()
    found = [event["regarding"] for event in api.events.values()]
    assert [(pod["kind"], pod["name"], pod["uid"]) for pod in found] == [
        ("Pod", "a", "uid-a"),
        ("Pod", "b", "uid-b"),
    ]
    assert {place[0] for place in api.events} == {"team"}
    assert all(event["related"]["name"] == "c" for event in api.events.values())


@pytest.mark.parametrize("there", ["gone", "another", "nobody"])
def test_without_pods_it_is_an_event_on_the_claim(api: Api, clock: Clock, there: str) -> None:
    if there == "another":
        api.reserve(ClaimRef(ClaimUid("other"), "team", "c"), {"resource": "pods", "name": "x"})
    if there == "nobody":
        api.reserve(_REF)
    notes = recorder(api, clock)
    notes.on_pods(_REF, "PrepareRefused", "cannot prepare")
    notes.step()
    (event,) = api.events.values()
    assert (event["regarding"]["kind"], event["regarding"]["uid"]) == ("ResourceClaim", "uid-c")


def test_while_the_api_server_is_away_things_are_counted_and_told_later(
    api: Api, clock: Clock
) -> None:
    api.error = KubeUnavailableError("away")
    notes = recorder(api, clock)
    for _ in range(5):
        notes.on_claim(_REF, "Reason", "words")
        wait = notes.step()
        assert wait is not None
        assert wait > 0
    api.error = None
    notes.step()
    assert api.counts() == [5]


def test_what_fails_for_one_object_holds_up_no_other(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    notes.on_claim(_REF, "First", "words")
    clock.seconds += 1
    notes.on_node("Second", "words")
    api.once = KubeUnavailableError("a webhook does not answer", 500)
    wait = notes.step()
    assert [event["reason"] for event in api.events.values()] == ["Second"]
    assert wait is not None
    assert wait > 0
    clock.seconds += wait
    assert notes.step() is None
    assert [event["reason"] for event in api.events.values()] == ["Second", "First"]


@pytest.mark.parametrize(
    "error",
    [KubeForbiddenError("may not", 403), KubeUnavailableError("namespaces: not found", 404)],
)
def test_what_is_refused_holds_up_nothing_else(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture, error: KubeError
) -> None:
    notes = recorder(api, clock)
    api.error = error
    for n in range(3):
        notes.on_claim(_REF, f"Reason{n}", "words")
    with caplog.at_level(logging.WARNING):
        assert notes.step() is None
    assert len(api.calls) == 3
    assert len(caplog.records) == (1 if error.status == 403 else 0)
    api.error = None
    notes.on_node("Other", "words")
    notes.step()
    assert len(api.events) == 1


def test_a_message_that_never_says_the_same_is_a_few_events(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    for n in range(100):
        notes.on_claim(_REF, "Reason", f"took {n} ms")
    notes.on_claim(_REF, "AnotherReason", "words")
    notes.step()
    assert sorted(api.counts()) == [1, 1, 1, 1, 1, 96]


def test_the_rate_is_bounded(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    for n in range(200):
        notes.on_claim(_REF, f"Reason{n}", "words")
    wait = notes.step()
    assert len(api.events) == 25
    assert wait == 2.0
    clock.seconds += 20
    notes.step()
    assert len(api.events) == 35


def test_the_number_is_bounded_and_what_was_told_makes_room(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    notes = recorder(api, clock)
    for n in range(300):
        notes.on_claim(_REF, f"Reason{n}", "words")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    clock.seconds += 3600
    notes.step()
    notes.on_claim(_REF, "New", "words")
    clock.seconds += 3600
    while notes.step() is not None:
        clock.seconds += 2
    assert len(api.events) == 257


def test_what_is_silent_for_long_is_forgotten(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    notes.on_node("Reason", "words")
    notes.step()
    clock.seconds += 4000
    notes.step()
    assert notes._series == {}


def test_a_long_message_is_cut_at_a_whole_character(api: Api, clock: Clock) -> None:
    notes = recorder(api, clock)
    notes.on_node("Reason", "ü" * 2000 + "\udcff")
    notes.step()
    (event,) = api.events.values()
    assert 1020 < len(event["note"].encode()) <= 1024
    assert event["note"].endswith("ü…")


def test_names_are_such_as_the_api_server_takes(api: Api, clock: Clock) -> None:
    long = ClaimRef(ClaimUid("u"), "team", "a" * 199 + "." + "b" * 53)
    notes = recorder(api, clock)
    notes.on_claim(long, "Reason", "words")
    notes.on_claim(long, "Reason", "other words", warning=False)
    notes.step()
    names = [name for _namespace, name in api.events]
    assert len(set(names)) == 2
    assert all(len(name) <= 253 and ".." not in name for name in names)
    assert [event["type"] for event in api.events.values()] == ["Warning", "Normal"]


def test_the_loop_sends_at_once_and_ends_when_told(api: Api) -> None:
    notes = events.Recorder(api, driver="apportion.gpu", node="node-a")
    thread = threading.Thread(target=notes.run)
    thread.start()
    notes.on_node("Reason", "words")
    assert api.created.wait(20)
    notes.stop()
    thread.join(20)
    assert not thread.is_alive()
