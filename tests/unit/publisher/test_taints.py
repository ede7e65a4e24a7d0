"""An API server that drops device taints, and one that no longer does."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from apportion.errors import KubeInvalidError
from apportion.publisher import Publisher
from apportion.publisher.plan import Body

from tests.unit.publisher.test_plan import NODE, bodies
from tests.unit.publisher.test_publisher import DRIVER, Server

TAINT = {"key": "apportion.gpu/xid", "effect": "NoSchedule", "timeAdded": "2026-01-31T12:00:00Z"}


NOTE = TAINT | {"key": "apportion.gpu/thermal", "effect": "None"}
# The words of Kubernetes 1.34.
_REFUSAL = (
    'PUT resourceslices/s: 422 ResourceSlice.resource.k8s.io "s" is invalid: spec.devices[{}]'
    '.taints[{}].effect: Unsupported value: "None": supported values: "NoExecute", "NoSchedule"'
)


class Taintless(Server):
    """Removes taints in silence, as with the feature gate off; else may refuse the effect None."""

    gate = False
    knows_none = True

    def create_slice(self, body: Mapping[str, Any]) -> Body:
        return super().create_slice(self._kept(body))

    def update_slice(self, body: Mapping[str, Any]) -> Body:
        return super().update_slice(self._kept(body))

    def _kept(self, body: Mapping[str, Any]) -> Body:
        found: Body = copy.deepcopy(dict(body))
        if not self.gate:
            for device in found["spec"]["devices"]:
                device.pop("taints", None)
        for n, device in enumerate(found["spec"]["devices"]):
            for m, taint in enumerate(device.get("taints", ())):
                if taint["effect"] == "None" and not self.knows_none:
                    raise KubeInvalidError(_REFUSAL.format(n, m), 422)
        return found


class Scene:
    def __init__(self) -> None:
        self.server = Taintless()
        self.now = 1000.0
        self.tainted = self.noted = self.others_know = False
        self.told: list[str] = []
        self.publisher = Publisher(
            self.server,
            driver=DRIVER,
            node=NODE,
            desired=self._desired,
            refresh=self._refresh,
            on_dropped=self.told.append,
            clock=lambda: self.now,
        )

    def _refresh(self) -> None:
        self.tainted |= self.others_know

    def _desired(self, generation: int) -> list[Body]:
        found = bodies(generation, 1)
        if self.tainted:
            found[0]["spec"]["devices"][0]["taints"] = [TAINT]
        if self.noted:
            found[0]["spec"]["devices"][0].setdefault("taints", []).append(NOTE)
        return found

    def settle(self) -> float:
        for _ in range(10):
            wait = self.publisher.step()
            if wait > 0:
                return wait
        raise AssertionError("it never settles")

    def published(self) -> list[list[str]]:
        """Return each device's taints by their effects."""
        return [
            [taint["effect"] for taint in device.get("taints", ())]
            for body in self.server.slices.values()
            for device in body["spec"]["devices"]
        ]


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    found.settle()
    return found


def test_a_tainted_device_is_withdrawn_where_taints_are_dropped(scene: Scene) -> None:
    before = scene.published()
    scene.tainted = True
    wait = scene.settle()
    assert scene.published() == before[1:]
    assert "switch on the feature gate DRADeviceTaints" in scene.told[-1]
    assert wait == 300


def test_without_the_taint_it_is_back_at_once(scene: Scene) -> None:
    before = scene.published()
    scene.tainted = True
    scene.settle()
    scene.tainted = False
    scene.settle()
    assert scene.published() == before


def test_a_gate_that_is_switched_on_is_noticed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.tainted = True
    scene.settle()
    scene.now += 600
    scene.settle()
    assert len(scene.told) == 2, "tried, and dropped again"
    scene.server.gate = True
    scene.now += 600
    scene.settle()
    assert scene.published()[0] == ["NoSchedule"]
    assert "unhealthy GPUs cannot be tainted: all is well again" in caplog.text


@pytest.fixture
def kept() -> Scene:
    found = Scene()
    found.server.gate = True
    found.settle()
    return found


def test_news_of_our_own_waits_for_no_fight(kept: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(20):
        kept.tainted = n % 2 == 0
        assert kept.settle() == 300
        assert kept.published() == [["NoSchedule"] if kept.tainted else []]
    assert not caplog.records


def test_a_taint_is_published_also_while_others_undo_it(kept: Scene) -> None:
    for _ in range(20):
        there = next(iter(kept.server.slices.values()))
        there["spec"]["devices"][0]["attributes"] = {}
        wait = kept.settle()
    assert 0 < wait <= 30
    kept.tainted = True
    kept.settle()
    assert kept.published() == [["NoSchedule"]]


def test_what_another_plugin_knew_is_learned_before_its_slice_is_put_right(kept: Scene) -> None:
    there = next(iter(kept.server.slices.values()))
    there["spec"]["devices"][0]["taints"] = [TAINT]
    kept.others_know = True
    before = len(kept.server.writes())
    assert kept.settle() == 300
    assert kept.published() == [["NoSchedule"]]
    assert len(kept.server.writes()) == before


@pytest.mark.parametrize("tainted", [False, True])
def test_a_server_that_does_not_know_the_effect_none_gets_all_other_taints(
    kept: Scene, caplog: pytest.LogCaptureFixture, *, tainted: bool
) -> None:
    caplog.set_level("INFO")
    kept.server.knows_none = False
    kept.noted, kept.tainted = True, tainted
    assert kept.settle() == 300
    assert kept.published() == [["NoSchedule"] if tainted else []]
    assert "effect None" in kept.told[-1]
    kept.now += 600
    kept.settle()
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    kept.server.knows_none = True
    kept.now += 600
    kept.settle()
    assert kept.published() == [["NoSchedule", "None"] if tainted else ["None"]]
    assert caplog.records[-1].getMessage().endswith("all is well again")


def test_another_refusal_of_a_slice_with_such_a_taint_is_no_reason_to_leave_it_out(
    kept: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    kept.noted = True
    kept.server.failures = [KubeInvalidError("422 spec.devices[0].taints[0].key: too long", 422)]
    assert kept.publisher.step() > 0
    assert "slices cannot be published" in caplog.text
    kept.settle()
    assert kept.published() == [["None"]]
    assert not kept.told
