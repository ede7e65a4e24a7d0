"""A Kubernetes with every feature gate off that can be: the plugin says so, and does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from apportion import features
from apportion.features import Feature

from tests.cluster.support import DAEMONSET, SHARE, SYSTEM, end, start
from tests.fakes.fakegpu import DEFAULT_GPUS, FakeDriver
from tests.harness import Cluster
from tests.harness.versions import DEFAULT_KUBERNETES, KUBERNETES
from tests.lab import testbed
from tests.lab.walk import Walk

GATES = KUBERNETES[DEFAULT_KUBERNETES].gateless
OFF = [feature for feature in features.ALL if GATES.get(feature.gate) is False]
WHOLE = SHARE.replace("gpu-share.", "gpu.").replace(
    'capacity: {{requests: {{cores: "10", memory: 1Gi}}}}', "count: 1"
)
TOTAL = f"{DEFAULT_GPUS[0].memory_mib} MiB"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("gates") / "fakegpu"
    return folder


@pytest.fixture(scope="module")
def walk(gpus: Path) -> Iterator[Walk]:
    options = dataclasses.replace(testbed.options(gpus, name="gates"), feature_gates=GATES)
    with Cluster(options) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        # And so it is ready, though its slices are not what it would have them.
        walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=100s")
        yield walk


def lines(walk: Walk, feature: Feature) -> list[str]:
    """Return what the plugin's log says of a feature."""
    text = walk.kubectl("logs", "-n", SYSTEM, DAEMONSET, "--tail=-1")
    return [line for line in text.splitlines() if f"feature gate {feature.gate} " in line]


def memory(walk: Walk, pod: str) -> str:
    words = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader")
    return walk.kubectl("exec", pod, "--", *words).strip()


def published(walk: Walk) -> int:
    return sum(len(body["spec"]["devices"]) for body in walk.get("resourceslices")["items"])


def test_cards_are_given_whole_and_each_to_one_claim(walk: Walk) -> None:
    walk.cluster.apply(WHOLE.format(name="whole", config=""))
    walk.kubectl("wait", "--for=condition=Ready", "pod/whole", "--timeout=100s")
    start(walk, "part")  # whose capacity the API server has dropped
    assert [memory(walk, name) for name in ("whole", "part")] == [TOTAL, TOTAL]
    uuids = {walk.kubectl("exec", name, "--", "nvidia-smi", "-L") for name in ("whole", "part")}
    assert len(uuids) == 2
    walk.cluster.apply(WHOLE.format(name="third", config=""))
    pending = ("wait", "--for=condition=PodScheduled=false", "pod/third", "--timeout=60s")
    walk.kubectl(*pending)
    end(walk, "whole")
    walk.kubectl("wait", "--for=condition=Ready", "pod/third", "--timeout=100s")
    shares = [share for card in walk.status("apportion.gpu")["cards"] for share in card["shares"]]
    assert sorted((s["claim"], s["access"]) for s in shares) == [
        ("part", "whole"),
        ("third", "whole"),
    ]
    for name in ("part", "third"):
        end(walk, name)
    walk.until("specs", lambda: walk.on_node("find", "/var/run/cdi", "-name", "*claim*"), "")


def test_an_unhealthy_card_is_kept_from_pods(walk: Walk, gpus: Path) -> None:
    FakeDriver(gpus).set_xid(0, 79)
    walk.until("devices", lambda: published(walk), 1)


@pytest.mark.parametrize("feature", OFF, ids=lambda feature: feature.gate)
def test_one_line_of_the_log_says_what_is_off(walk: Walk, gpus: Path, feature: Feature) -> None:
    if feature is features.TAINTS:
        FakeDriver(gpus).set_xid(0, 79)
    if feature is features.CLAIM_STATUS:
        pod = "told"
        start(walk, pod)
        end(walk, pod)
    walk.until("lines", lambda: len(lines(walk, feature)), 1, timeout=100)
    (line,) = lines(walk, feature)
    assert feature.without in line
    assert feature.rest in line
