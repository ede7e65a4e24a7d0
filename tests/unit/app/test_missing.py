"""What is said of a Kubernetes that lacks something; API server and kubelet are played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from apportion.app.missing import Missing
from apportion.errors import KubeError, KubeForbiddenError, KubeNotFoundError, KubeUnavailableError


class Scene:
    """A Kubernetes that has all, and may lose some."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {"extendedResourceName": "nvidia.com/gpu"}
        self.error: KubeError | None = None
        self.asked: list[str] = []
        self.watched = self.registered = True
        self.missing = Missing(
            "apportion.gpu",
            get_class=self._get_class,
            watched=lambda: self.watched,
            registered=lambda: self.registered,
        )

    def _get_class(self, name: str) -> Mapping[str, Any]:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return {"spec": self.spec}

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.missing.look()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_where_nothing_is_missing_nothing_is_said(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.look(50)
    assert not caplog.records
    assert scene.asked == ["gpu.apportion.gpu"] * 3


def test_a_class_whose_name_for_limits_was_dropped_is_one_line_and_so_is_its_return(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.spec = {}
    scene.look(50)
    (record,) = caplog.records
    text = record.getMessage()
    assert record.levelname == "WARNING"
    for word in ("gpu.apportion.gpu", "nvidia.com/gpu", "claims", "DRAExtendedResource"):
        assert word in text
    scene.spec = {"extendedResourceName": "nvidia.com/gpu"}
    scene.look(20)
    assert caplog.records[-1].getMessage() == "cards by limits: all is well again"


@pytest.mark.parametrize(
    "error",
    [KubeNotFoundError("", 404), KubeForbiddenError("", 403), KubeUnavailableError("", 0)],
)
def test_where_no_such_class_is_read_nothing_is_said_of_it(
    scene: Scene, caplog: pytest.LogCaptureFixture, error: KubeError
) -> None:
    caplog.set_level("INFO")
    scene.error = error
    scene.look(50)
    assert not caplog.records


def test_a_kubelet_that_never_asks_how_gpus_are_is_said_at_the_second_look(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.watched = scene.registered = False
    scene.look(5)
    scene.registered = True
    scene.look()
    assert not caplog.records
    scene.look(5)
    (record,) = caplog.records
    assert "ResourceHealthStatus of kube-apiserver and kubelet" in record.getMessage()
    assert "taints, events and the claims' conditions go on" in record.getMessage()
    scene.watched = True
    scene.look()
    assert caplog.records[-1].getMessage().endswith("all is well again")


def test_a_kubelet_that_has_the_plugin_only_now_and_then_is_given_time(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.watched = False
    for scene.registered in (True, False) * 5:
        scene.look()
    assert not caplog.records
