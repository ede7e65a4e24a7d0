"""The shares of a pod by its UID, asked for only when it is not known."""

from __future__ import annotations

from typing import Any

import pytest
from apportion.errors import KubeInvalidError, KubeNotFoundError, KubeUnavailableError
from apportion.ledger.schema import Record, State
from apportion.model import Capacity, ClaimRef, ClaimUid, DeviceName, GpuUuid, Share, ShareKey
from apportion.watch.reservations import Reservations


class Node:
    """Claims on record and at the API server, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[str] = []
        self.pods: dict[str, list[str] | Exception] = {"a": ["pod-1"], "b": ["pod-1", "pod-2"]}
        self.records = [self.record("a"), self.record("b")]
        self.reads = 0
        self.reservations = Reservations(
            self.read,
            lambda: frozenset(record.ref.uid for record in self.records),
            self.fetch,
            lambda: self.now,
        )

    def read(self) -> list[Record]:
        self.reads += 1
        return self.records

    @staticmethod
    def record(name: str) -> Record:
        share = Share(
            key=ShareKey(f"{name}-0"),
            request="r",
            pool="n",
            device=DeviceName("d"),
            share_id=None,
            uuid=GpuUuid("GPU-1"),
            capacity=Capacity(1, 1),
        )
        ref = ClaimRef(ClaimUid(name), "default", name)
        return Record("boot", State.COMPLETED, ref, (), "build", (share,))

    def fetch(self, ref: ClaimRef) -> dict[str, Any]:
        self.asked.append(ref.name)
        pods = self.pods[ref.name]
        if isinstance(pods, Exception):
            raise pods
        users = [{"resource": "pods", "name": f"name-of-{uid}", "uid": uid} for uid in pods]
        return {
            "metadata": {"uid": ref.uid},
            "status": {"reservedFor": [*users, {"resource": "x"}]},
        }

    def learned(self, pod: str) -> frozenset[str] | None:
        self.reservations.of(pod)
        self.now += 1
        self.reservations.refresh()
        return self.reservations.of(pod)


def test_a_pod_has_the_shares_of_all_its_claims() -> None:
    node = Node()
    assert node.learned("pod-1") == frozenset({"a-0", "b-0"})
    assert node.reservations.of("pod-2") == frozenset({"b-0"})


def test_the_api_server_is_asked_only_for_pods_that_are_not_known() -> None:
    node = Node()
    node.reservations.refresh()
    assert node.asked == []
    node.learned("pod-1")
    node.learned("pod-2")
    node.learned("pod-1")
    assert node.asked == ["a", "b"]
    assert node.reads == 1


def test_a_pod_without_claims_is_asked_for_again_after_a_while() -> None:
    node = Node()
    assert node.reservations.of("stranger") is None
    assert node.learned("stranger") == frozenset()
    assert node.learned("stranger") == frozenset()
    assert node.asked == ["a", "b"]
    node.now += 61
    node.pods["a"] = ["stranger"]
    assert node.learned("stranger") == frozenset({"a-0"})


def test_a_claim_that_cannot_be_read_is_asked_for_again_and_keeps_its_pods() -> None:
    node = Node()
    node.learned("pod-1")
    node.pods["a"] = KubeUnavailableError("away", 0)
    node.reservations.of("new")
    node.now += 1
    with pytest.raises(KubeUnavailableError):
        node.reservations.refresh()
    assert node.reservations.of("pod-1") == frozenset({"a-0", "b-0"})
    node.pods["a"] = ["new"]
    node.now += 31
    node.reservations.refresh()
    assert node.reservations.of("new") == frozenset({"a-0"})


def test_a_claim_that_is_gone_is_no_trouble() -> None:
    node = Node()
    node.pods["a"] = KubeNotFoundError("gone", 404)
    assert node.learned("pod-1") == frozenset({"b-0"})


def test_another_claim_of_that_name_says_nothing() -> None:
    node = Node()
    node.records = [node.record("a")]
    node.reservations = Reservations(
        lambda: node.records,
        lambda: frozenset({ClaimUid("a")}),
        lambda _ref: {"metadata": {"uid": "other"}, "status": None},
    )
    assert node.learned("pod-1") == frozenset()


def test_shares_that_are_no_longer_on_record_are_forgotten() -> None:
    node = Node()
    node.learned("pod-2")
    node.records = [node.record("a")]
    node.learned("new")
    assert node.learned("pod-2") == frozenset()


def test_an_api_server_that_is_away_is_asked_once_and_less_and_less_often() -> None:
    node = Node()
    node.pods = dict.fromkeys("ab", KubeUnavailableError("away", 0))
    node.reservations.of("pod-1")
    for _ in range(100):
        node.now += 1
        try:
            node.reservations.refresh()
        except KubeUnavailableError:
            continue
    assert set(node.asked) == {"a"}
    assert 2 < len(node.asked) < 20


def test_after_many_calls_there_is_a_pause() -> None:
    node = Node()
    node.pods = {str(n): [] for n in range(100)}
    node.records = [node.record(name) for name in node.pods]
    node.learned("stranger")
    for n in range(9):
        node.learned(f"stranger-{n}")
    assert len(node.asked) == 100
    node.learned("stranger-9")
    assert len(node.asked) == 200


def test_nothing_is_asked_or_learned_once_the_plugin_stops() -> None:
    node = Node()
    node.reservations.of("pod-1")
    node.reservations.refresh(lambda: len(node.asked) == 1)
    assert node.asked == ["a"]
    assert node.reservations.of("pod-1") is None


@pytest.mark.parametrize("error", [KubeUnavailableError("away", 0), KubeInvalidError("odd", 422)])
def test_part_of_an_answer_is_not_a_pods_whole_truth(error: Exception) -> None:
    node = Node()
    node.pods["b"] = error
    node.reservations.of("pod-1")
    with pytest.raises(type(error)):
        node.reservations.refresh()
    assert node.reservations.of("pod-1") is None
    node.pods["b"] = ["pod-1"]
    node.now += 30
    assert node.learned("pod-1") == frozenset({"a-0", "b-0"})


def test_a_claim_that_is_prepared_later_is_learned_of() -> None:
    node = Node()
    node.records = [node.record("a")]
    assert node.learned("pod-1") == frozenset({"a-0"})
    node.records = [node.record("a"), node.record("b")]
    assert node.learned("pod-1") == frozenset({"a-0", "b-0"})
