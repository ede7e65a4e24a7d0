from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from apportion.errors import (
    KubeConflictError,
    KubeError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from apportion.kube import Kube, SliceList, Watch
from apportion.publisher import Publisher
from apportion.publisher.plan import Body

from tests.fakes import samples
from tests.unit.publisher.test_plan import NODE, bodies

DRIVER = samples.DRIVER


class Stream(Watch):
    """A watch whose events a test lays down."""

    def __init__(
        self, events: Iterable[tuple[str, Body]] = (), error: KubeError | None = None
    ) -> None:
        self.events = list(events)
        self.error = error
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[tuple[str, Body]]:
        yield from self.events
        if self.error:
            raise self.error

    def close(self) -> None:
        self.closed.set()


class Server(Kube):
    """The API server's part in publishing, in memory; `failures` come first, one a call."""

    def __init__(self) -> None:
        self.slices: dict[str, Body] = {}
        self.calls: list[str] = []
        self.failures: list[KubeError] = []
        self.streams: list[Stream] = []
        self.drops = False
        self.node_uid = "u1"
        self._version = 0

    def list_slices(self, driver: str, node: str = "") -> SliceList:
        assert (driver, node) == (DRIVER, NODE)
        self._count("list")
        return SliceList(tuple(copy.deepcopy(list(self.slices.values()))), str(self._version))

    def watch_slices(self, driver: str, node: str, version: str) -> Watch:
        assert (driver, node) == (DRIVER, NODE)
        self._count(f"watch {version}")
        return self.streams.pop(0) if self.streams else Stream()

    def create_slice(self, body: Mapping[str, Any]) -> Body:
        self._count("create")
        name = f"slice-{self._version}"
        return self._store(dict(body), {"name": name, "uid": f"uid-{name}"})

    def update_slice(self, body: Mapping[str, Any]) -> Body:
        self._count("update")
        there = self.slices[body["metadata"]["name"]]
        if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise KubeConflictError("changed", 409)
        return self._store(dict(body), {})

    def delete_slice(self, found: Mapping[str, Any]) -> None:
        self._count("delete")
        del self.slices[found["metadata"]["name"]]

    def get_node(self, name: str) -> Body:
        assert name == NODE
        self._count("node")
        return {"metadata": {"uid": self.node_uid}}

    def writes(self) -> list[str]:
        return [call for call in self.calls if call in {"create", "update", "delete"}]

    def _count(self, what: str) -> None:
        self.calls.append(what)
        if self.failures:
            raise self.failures.pop(0)

    def _store(self, body: Body, meta: dict[str, str]) -> Body:
        self._version += 1
        body = copy.deepcopy(body)
        body["metadata"] |= meta | {"resourceVersion": str(self._version)}
        if self.drops:
            for device in body["spec"]["devices"]:
                device.pop("allowMultipleAllocations", None)
        self.slices[body["metadata"]["name"]] = body
        return copy.deepcopy(body)


class Scene:
    def __init__(self) -> None:
        self.server = Server()
        self.now = 1000.0
        self.groups = 1
        self.published: list[int] = []
        self.told: list[str] = []
        self.errors = 0
        self.known = True
        self.publisher = Publisher(
            self.server,
            driver=DRIVER,
            node=NODE,
            desired=lambda n: bodies(n, self.groups) if self.known else None,
            on_published=self.published.append,
            on_error=self._count,
            on_dropped=self.told.append,
            clock=lambda: self.now,
        )

    def _count(self) -> None:
        self.errors += 1

    def settle(self) -> float:
        """Step until there is nothing left to do at once; return what it would wait."""
        for _ in range(10):
            wait = self.publisher.step()
            if wait > 0:
                return wait
        raise AssertionError("it never settles")

    def only(self) -> Body:
        (body,) = self.server.slices.values()
        return body


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_publishes_and_then_rests(scene: Scene) -> None:
    assert scene.settle() == 300
    assert scene.server.writes() == ["create"]
    assert scene.published == [1]
    scene.settle()
    assert scene.server.writes() == ["create"]


def test_while_nothing_is_known_nothing_is_touched(scene: Scene) -> None:
    scene.settle()
    scene.known = False
    scene.groups = 0
    scene.settle()
    assert scene.server.writes() == ["create"]


def test_a_deleted_slice_comes_back_with_a_higher_generation(scene: Scene) -> None:
    scene.settle()
    scene.server.slices.clear()
    scene.settle()
    assert scene.only()["spec"]["pool"]["generation"] == 2


def test_the_owner_of_a_new_slice_is_read_anew(scene: Scene) -> None:
    scene.settle()
    scene.server.slices.clear()
    scene.server.node_uid = "u2"
    scene.settle()
    assert scene.only()["metadata"]["ownerReferences"][0]["uid"] == "u2"


def test_changes_of_others_and_duplicates_are_put_right(scene: Scene) -> None:
    scene.settle()
    found = scene.only()
    scene.server.slices["copy"] = copy.deepcopy(found) | {
        "metadata": found["metadata"] | {"name": "zz-copy"}
    }
    scene.server.slices["zz-copy"] = scene.server.slices.pop("copy")
    found["spec"]["devices"][0]["attributes"] = {}
    scene.settle()
    assert scene.only()["spec"] == bodies(1)[0]["spec"]


def test_new_devices_are_published_when_the_bell_rings(scene: Scene) -> None:
    scene.settle()
    scene.groups = 2
    scene.publisher.wake()
    scene.settle()
    assert {s["spec"]["pool"]["generation"] for s in scene.server.slices.values()} == {2}
    assert scene.published[-1] == 2


def test_no_gpus_withdraw_the_slices(scene: Scene) -> None:
    scene.settle()
    scene.groups = 0
    scene.settle()
    assert scene.server.slices == {}
    assert scene.published[-1] == 0


def _messages(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == level]


def test_i2_dropped_fields_are_one_loud_error_and_tried_again_on_a_timer(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.server.drops = True
    assert scene.settle() == 60
    (error,) = _messages(caplog, "ERROR")
    assert "DRAConsumableCapacity" in error
    assert scene.published == [1]
    before = len(scene.server.writes())
    scene.settle()
    assert len(scene.server.writes()) == before
    scene.now += 60
    assert scene.settle() == 60
    assert len(scene.server.writes()) == before + 1
    assert _messages(caplog, "ERROR") == [f"slices are incomplete: {scene.told[0]}"]
    assert len(scene.told) == 2


def test_d25_a_gate_that_is_switched_on_is_noticed_without_a_restart(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.server.drops = True
    scene.settle()
    scene.server.drops = False
    scene.now += 60
    assert scene.settle() == 300
    assert scene.published[-1] == 1
    assert scene.only()["spec"]["devices"][0]["allowMultipleAllocations"] is True
    assert "slices are incomplete: all is well again" in _messages(caplog, "INFO")


def test_a_field_that_somebody_took_out_is_put_back_at_once(scene: Scene) -> None:
    scene.settle()
    del scene.only()["spec"]["devices"][0]["allowMultipleAllocations"]
    scene.settle()
    assert scene.only()["spec"] == bodies(1)[0]["spec"]


def test_trouble_is_logged_once_and_its_end_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.server.failures = [KubeUnavailableError("away", 0)] * 5
    waits = [scene.publisher.step() for _ in range(5)]
    assert 0 < waits[0] <= 0.5
    assert waits[4] > waits[0]
    assert scene.errors == 5
    assert _messages(caplog, "WARNING") == ["slices cannot be published: away; tried again later"]
    scene.settle()
    assert "slices cannot be published: all is well again" in _messages(caplog, "INFO")


def test_another_trouble_is_logged_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.server.failures = [KubeUnavailableError("away", 0), KubeForbiddenError("no right", 403)]
    scene.publisher.step()
    scene.publisher.step()
    assert len(_messages(caplog, "WARNING")) == 1
    (error,) = _messages(caplog, "ERROR")
    assert error.startswith("slices cannot be published: no right; does the plugin's ServiceAcc")


def test_a_node_that_is_not_there_is_an_error_with_what_to_do(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.server.failures = [KubeNotFoundError("404", 404)]
    scene.server.list_slices = lambda _driver, _node="": SliceList((), "1")  # type: ignore[method-assign,assignment]
    scene.publisher.step()
    assert "node_name must be its name" in _messages(caplog, "ERROR")[0]


def test_a_conflict_is_looked_at_again_without_a_word(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.settle()
    scene.only()["spec"]["devices"][0]["attributes"] = {}
    found = scene.server.list_slices

    def raced(driver: str, node: str = "") -> SliceList:
        listed = found(driver, node)
        scene.only()["metadata"]["resourceVersion"] = "changed since"
        scene.server.list_slices = found  # type: ignore[method-assign]
        return listed

    scene.server.list_slices = raced  # type: ignore[method-assign]
    assert scene.publisher.step() > 0
    scene.settle()
    assert scene.only()["spec"] == bodies(1)[0]["spec"]
    assert scene.errors == 0
    assert _messages(caplog, "WARNING") == []


def test_two_who_correct_each_other_do_not_load_the_api_server(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.settle()
    for _ in range(20):
        scene.only()["spec"]["devices"][0]["attributes"] = {}
        wait = scene.settle()
    # What it publishes of its own accord, and five repairs.
    assert len(scene.server.writes()) == 1 + 5
    assert 0 < wait <= 30
    assert len(_messages(caplog, "WARNING")) == 1
    scene.now += 30
    scene.settle()
    assert scene.only()["spec"] == bodies(1)[0]["spec"]


def _watch(scene: Scene, streams: list[Stream], until: Callable[[], bool]) -> None:
    """Run the watching loop until a condition holds, with no time between its tries."""
    scene.server.streams = streams
    stop = scene.publisher._stop
    stop.wait = lambda _seconds=None: until() and not stop.set()  # type: ignore[assignment,method-assign,func-returns-value]
    scene.publisher.watch()


def _event(kind: str, version: str) -> tuple[str, Body]:
    return kind, {"metadata": {"resourceVersion": version}}


def test_the_watch_goes_on_where_it_ended_and_rings_for_changes_only(scene: Scene) -> None:
    rings: list[int] = []
    scene.publisher.wake = lambda: rings.append(len(scene.server.calls))  # type: ignore[method-assign]
    first = Stream([_event("ADDED", "11"), _event("BOOKMARK", "12")])
    second = Stream([_event("DELETED", "13")])
    _watch(scene, [first, second], lambda: len(scene.server.calls) >= 4)
    assert scene.server.calls == ["list", "watch 0", "watch 12", "watch 13"]
    assert len(rings) == 3
    assert first.closed.is_set()


def test_an_expired_version_is_answered_by_a_new_list(scene: Scene) -> None:
    expired = Stream(error=KubeExpiredError("gone", 410))
    _watch(scene, [expired], lambda: scene.server.calls.count("list") == 2)
    assert scene.server.calls == ["list", "watch 0", "list", "watch 0"]


def test_a_broken_watch_lists_again_and_says_so_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [Stream(error=KubeUnavailableError("cut", 0)) for _ in range(3)]
    _watch(scene, list(broken), lambda: scene.server.calls.count("list") == 4)
    assert _messages(caplog, "WARNING") == ["slices cannot be watched: cut; tried again later"]


def test_stop_ends_a_watch_that_is_silent(scene: Scene) -> None:
    class Silent(Stream):
        def __iter__(self) -> Iterator[tuple[str, Body]]:
            assert self.closed.wait(20)
            yield from ()

    scene.server.streams = [Silent()]
    thread = threading.Thread(target=scene.publisher.watch)
    thread.start()
    while "watch 0" not in scene.server.calls or scene.publisher._stream is None:
        thread.join(0.01)
    scene.publisher.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_a_watch_that_opens_during_the_stop_is_closed_and_read_out(scene: Scene) -> None:
    read: list[bool] = []

    class Late(Stream):
        def __iter__(self) -> Iterator[tuple[str, Body]]:
            read.append(self.closed.is_set())
            yield from ()

    def watch_slices(driver: str, node: str, version: str) -> Watch:
        assert (driver, node, version) == (DRIVER, NODE, "0")
        scene.publisher.stop()
        return Late()

    scene.server.watch_slices = watch_slices  # type: ignore[method-assign]
    scene.publisher.watch()
    assert read == [True]


def test_the_loop_ends_when_stopped_and_leaves_the_slices(scene: Scene) -> None:
    thread = threading.Thread(target=scene.publisher.run)
    thread.start()
    while not scene.published:
        thread.join(0.01)
    scene.publisher.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert len(scene.server.slices) == 1
