"""A GPU that falls ill, as pods, scheduler and kubelet of a real cluster see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support import DAEMONSET, SHARE, SYSTEM, start_from
from tests.cluster.test_restarts import enforced, kill_plugin
from tests.fakes.fakegpu import FakeDriver
from tests.harness import Cluster
from tests.harness.versions import DEFAULT_KUBERNETES
from tests.lab import testbed
from tests.lab.walk import Walk

DRIVER = "apportion.gpu"
TAINT = (f"{DRIVER}/xid", "79", "NoSchedule")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("health") / "fakegpu"
    return folder


@pytest.fixture(scope="module")
def walk(gpus: Path) -> Iterator[Walk]:
    with Cluster(testbed.options(gpus, cards=1, name="health")) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=60s")
        start_from(walk, watched("running"), "running", "cudamem")
        yield walk


def watched(name: str) -> str:
    """Return a pod with a share of which kubelet shows how its GPU is.

    That of 1.34 does so only where the pod's own name for a claim is the claim's, that of 1.35 only
    for a claim that was made from a template, newer ones for any.
    """
    claim, pod = yaml.safe_load_all(SHARE.format(name=name, config=""))
    (entry,) = pod["spec"]["resourceClaims"]
    if DEFAULT_KUBERNETES == "1.34":
        (used,) = pod["spec"]["containers"][0]["resources"]["claims"]
        entry["name"] = used["name"] = name
    elif DEFAULT_KUBERNETES == "1.35":
        claim |= {"kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}
        entry["resourceClaimTemplateName"] = entry.pop("resourceClaimName")
    return f"{json.dumps(claim)}\n---\n{json.dumps(pod)}"


def settings(walk: Walk, **changes: str) -> None:
    """Change the plugin's settings and wait until the new pod has taken over."""
    named = [f"APPORTION_{name.upper()}={value}" for name, value in changes.items()]
    walk.kubectl("set", "env", "-n", SYSTEM, DAEMONSET, *named)
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)


def taints(walk: Walk) -> list[tuple[str, str, str]]:
    (body,) = walk.get("resourceslices")["items"]
    (device,) = body["spec"]["devices"]
    return [(t["key"], t.get("value", ""), t["effect"]) for t in device.get("taints", ())]


def health(walk: Walk, pod: str) -> list[tuple[str, str]]:
    """Return resource ID and health of what kubelet says a pod was given."""
    statuses = walk.get("pod", pod)["status"].get("containerStatuses", ())
    return [
        (resource["resourceID"], resource["health"])
        for status in statuses
        for allocated in status.get("allocatedResourcesStatus", ())
        for resource in allocated["resources"]
    ]


def healths(walk: Walk, pod: str) -> list[str]:
    return [state for _identity, state in health(walk, pod)]


def why_pending(walk: Walk, pod: str) -> str:
    conditions: list[dict[str, Any]] = walk.get("pod", pod)["status"].get("conditions", [])
    return " ".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")


def test_kubelet_shows_a_pods_gpu_as_healthy(walk: Walk) -> None:
    walk.until("health", lambda: healths(walk, "running"), ["Healthy"])
    (claim,) = [item["metadata"]["uid"] for item in walk.get("resourceclaims")["items"]]
    # The share's own CDI name: two shares of one GPU stay two lines.
    assert health(walk, "running")[0][0].startswith(f"k8s.{DRIVER}/claim={claim}-")


def test_xid_79_keeps_new_pods_away_and_leaves_running_ones_alone(walk: Walk, gpus: Path) -> None:
    FakeDriver(gpus).set_xid(0, 79)
    walk.until("taints", lambda: taints(walk), [TAINT])
    walk.until("health", lambda: healths(walk, "running"), ["Unhealthy"])
    walk.cluster.apply(SHARE.format(name="new", config=""))
    walk.until("told why", lambda: "cannot allocate" in why_pending(walk, "new"), True)
    assert enforced(walk, "running")
    for kind, name in (("pod", "running"), ("node", "node-a")):
        said = walk.kubectl("describe", kind, name)
        assert "GpuUnhealthy" in said
        assert "Xid 79: the GPU fell off the bus; reboot the node" in said


def test_d23_a_restart_of_the_plugin_keeps_it(walk: Walk) -> None:
    kill_plugin(walk)
    walk.until("health", lambda: healths(walk, "running"), ["Unhealthy"])
    assert taints(walk) == [TAINT]
    assert walk.get("pod", "new")["status"]["phase"] == "Pending"
    assert enforced(walk, "running")


def test_i17_a_gpu_that_has_proven_itself_gets_pods_again(walk: Walk) -> None:
    settings(walk, health_quiet_s="5")
    walk.until("taints", lambda: taints(walk), [], timeout=60)
    walk.until("health", lambda: healths(walk, "running"), ["Healthy"])
    walk.kubectl("wait", "--for=condition=Ready", "pod/new", "--timeout=100s")
    walk.kubectl("cp", str(testbed.BUILD / "fakes/bin/cudamem"), "new:/tmp/cudamem")
    assert enforced(walk, "new")
    assert "GpuHealthy" in walk.kubectl("describe", "node", "node-a")


def test_where_it_is_wished_pods_of_a_lost_gpu_are_evicted(walk: Walk, gpus: Path) -> None:
    settings(walk, taint_lost="NoExecute", health_quiet_s="3600")
    FakeDriver(gpus).set_xid(0, 79)
    walk.until("taints", lambda: taints(walk), [(f"{DRIVER}/xid", "79", "NoExecute")])
    walk.until("pods", lambda: walk.get("pods")["items"], [], timeout=90)
    # And all of the shares is gone from the node: kubelet could unprepare them.
    walk.until("specs", lambda: walk.on_node("find", "/var/run/cdi", "-name", "*claim*"), "")


def test_a_taint_for_information_is_there_where_kubernetes_knows_of_such(
    walk: Walk, gpus: Path
) -> None:
    settings(walk, taint_note="None")
    FakeDriver(gpus).set_option(0, "remap_pending", "1")
    note = (f"{DRIVER}/remap-pending", "", "None")
    if DEFAULT_KUBERNETES != "1.34":
        walk.until("taint", lambda: note in taints(walk), True)
        return
    words = "does not know the effect None of taints"
    walk.until("said", lambda: words in walk.kubectl("logs", "-n", SYSTEM, DAEMONSET), True)
    FakeDriver(gpus).set_xid(0, 74)
    # All others are kept true.
    walk.until("taints", lambda: (f"{DRIVER}/xid", "74", "NoSchedule") in taints(walk), True)
    assert note not in taints(walk)
