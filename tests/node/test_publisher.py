"""Slices at a real API server: kept true whatever others do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from apportion import kube, slices
from apportion.publisher import Publisher

from tests.fakes import samples
from tests.node.support.apiserver import ApiServer, add_node
from tests.node.support.kubelet import until
from tests.node.support.proxy import Fault, Proxy, containing, method

DRIVER = samples.DRIVER
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Publishing:
    """A publisher with both its loops running, and what it told."""

    def __init__(self, server: ApiServer, node: str, url: str = "") -> None:
        self.server = server
        self.node = node
        self.gpus = 2
        self.published: list[int] = []
        self.errors = 0
        policy = slices.Policy(driver=DRIVER, node=node)
        self.publisher = Publisher(
            kube.connect(str(server.kubeconfig(url)), 5),
            driver=DRIVER,
            node=node,
            desired=lambda generation: slices.slices(
                list(samples.devices(self.gpus).values()), policy, generation=generation
            ),
            on_published=self.published.append,
            on_error=self._count,
        )
        self._threads = [
            threading.Thread(target=self.publisher.run),
            threading.Thread(target=self.publisher.watch),
        ]
        for thread in self._threads:
            thread.start()

    def _count(self) -> None:
        self.errors += 1

    def stop(self) -> None:
        self.publisher.stop()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def found(self) -> list[dict[str, Any]]:
        selector = f"?fieldSelector=spec.nodeName={self.node}"
        return list(self.server.call("GET", _SLICES + selector)["items"])

    def right(self) -> bool:
        """Whether there is one slice, complete, and as it should be."""
        found = self.found()
        return len(found) == 1 and not slices.differs(self.wanted(found[0]), found[0])

    def wanted(self, found: dict[str, Any]) -> dict[str, Any]:
        policy = slices.Policy(driver=DRIVER, node=self.node)
        (body,) = slices.slices(
            list(samples.devices(self.gpus).values()),
            policy,
            generation=found["spec"]["pool"]["generation"],
        )
        return body


@pytest.fixture
def publishing(api_server: ApiServer, node: str) -> Iterator[Publishing]:
    running = Publishing(api_server, node)
    until(running.right)
    yield running
    running.stop()


def test_a_slice_appears_that_goes_with_the_node(
    publishing: Publishing, api_server: ApiServer, node: str
) -> None:
    (found,) = publishing.found()
    uid = api_server.call("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    ]
    assert found["spec"]["pool"] == {"name": node, "generation": 1, "resourceSliceCount": 1}
    assert [device["allowMultipleAllocations"] for device in found["spec"]["devices"]] == [True] * 2


def test_a_deleted_slice_is_made_again(publishing: Publishing) -> None:
    (before,) = publishing.found()
    publishing.server.call("DELETE", f"{_SLICES}/{before['metadata']['name']}")
    until(publishing.right)
    (after,) = publishing.found()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]


def test_i25_kubelets_wipe_at_its_start_is_answered(publishing: Publishing) -> None:
    publishing.server.call("DELETE", f"{_SLICES}?fieldSelector=spec.nodeName={publishing.node}")
    until(publishing.right)


def test_a_changed_slice_is_put_right(publishing: Publishing) -> None:
    (found,) = publishing.found()
    found["spec"]["devices"].pop()
    found["spec"]["devices"][0]["attributes"]["brand"] = {"string": "Forged"}
    publishing.server.call("PUT", f"{_SLICES}/{found['metadata']['name']}", found)
    until(publishing.right)


def test_a_duplicate_is_removed(publishing: Publishing) -> None:
    (found,) = publishing.found()
    copy = found | {"metadata": {"name": f"{publishing.node}-copy"}}
    publishing.server.call("POST", _SLICES, copy)
    until(publishing.right)


def test_new_gpus_are_published_and_gone_ones_withdrawn(publishing: Publishing) -> None:
    for gpus in (3, 1):
        publishing.gpus = gpus
        publishing.publisher.wake()
        until(publishing.right)
    publishing.gpus = 0
    publishing.publisher.wake()
    until(lambda: publishing.found() == [])


def test_slices_of_other_nodes_are_left_alone(publishing: Publishing) -> None:
    (found,) = publishing.found()
    other = f"{publishing.node}-other"
    spec = found["spec"] | {"nodeName": other, "pool": found["spec"]["pool"] | {"name": other}}
    publishing.server.call("POST", _SLICES, found | {"metadata": {"name": other}, "spec": spec})
    publishing.publisher.wake()
    until(publishing.right)
    selector = f"{_SLICES}?fieldSelector=spec.nodeName={other}"
    assert len(publishing.server.call("GET", selector)["items"]) == 1


def test_more_gpus_than_fit_in_one_slice(publishing: Publishing) -> None:
    publishing.gpus = slices.MAX_DEVICES + 2
    publishing.publisher.wake()
    until(lambda: len(publishing.found()) == 2)
    pools = [found["spec"]["pool"] for found in publishing.found()]
    assert pools[0] == pools[1]
    assert pools[0]["resourceSliceCount"] == 2


def test_nothing_is_withdrawn_when_it_stops(api_server: ApiServer, node: str) -> None:
    running = Publishing(api_server, node)
    until(running.right)
    running.stop()
    assert running.right()


def test_a_second_publisher_of_the_same_finds_nothing_to_do(publishing: Publishing) -> None:
    (before,) = publishing.found()
    second = Publishing(publishing.server, publishing.node)
    until(lambda: bool(second.published))
    second.stop()
    assert publishing.found() == [before]


def test_an_api_server_that_is_away_at_the_start(
    proxy: Proxy, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = proxy.url
    proxy.away()
    running = Publishing(proxy.server, node, url)
    until(lambda: running.errors >= 2)
    proxy.back()
    until(running.right)
    running.stop()
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len([text for text in said if text.startswith("slices cannot be published")]) == 1


def test_an_api_server_that_goes_and_comes_back(proxy: Proxy, node: str) -> None:
    running = Publishing(proxy.server, node, proxy.url)
    until(running.right)
    proxy.away()
    (found,) = running.found()
    running.server.call("DELETE", f"{_SLICES}/{found['metadata']['name']}")
    proxy.back()
    until(running.right)
    running.stop()


@pytest.mark.parametrize("status", [429, 500, 409])
def test_writes_that_fail_for_a_while(proxy: Proxy, node: str, status: int) -> None:
    proxy.faults = [Fault(method("POST"), status=status, times=3)]
    running = Publishing(proxy.server, node, proxy.url)
    until(running.right)
    running.stop()


def test_a_watch_that_is_cut_again_and_again_loads_nobody(proxy: Proxy, node: str) -> None:
    running = Publishing(proxy.server, node, proxy.url)
    until(running.right)
    proxy.faults = [Fault(containing("watch=true"))]
    proxy.cut()
    until(lambda: sum("watch=true" in path for _verb, path in proxy.requests) >= 4)
    proxy.faults = []
    (found,) = running.found()
    running.server.call("DELETE", f"{_SLICES}/{found['metadata']['name']}")
    until(running.right)
    running.stop()
    assert len(proxy.requests) < 60


def test_quiet_is_quiet(proxy: Proxy, node: str) -> None:
    """A publisher with nothing to do asks for nothing but its watch."""
    running = Publishing(proxy.server, node, proxy.url)
    until(running.right)
    until(lambda: sum("watch=true" in path for _verb, path in proxy.requests) == 1)
    threading.Event().wait(1)
    asked = len(proxy.requests)
    threading.Event().wait(2)
    assert len(proxy.requests) == asked
    running.stop()


def test_i2_without_the_feature_gate_it_says_so_loudly_and_publishes_what_is_possible(
    gateless_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    add_node(gateless_server, "gateless")
    running = Publishing(gateless_server, "gateless")
    until(lambda: bool(running.published))
    running.stop()
    assert set(running.published) == {2}
    (error,) = (r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    assert "whole cards, admin access and the GPUs' health go on" in error
    assert "DRAConsumableCapacity" in error
    (found,) = running.found()
    assert "allowMultipleAllocations" not in found["spec"]["devices"][0]
