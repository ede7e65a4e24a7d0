"""Who uses what, and what went wrong, as a user finds it at the API server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.support import DAEMONSET, SHARE, SYSTEM, end, start
from tests.harness import Cluster
from tests.lab import testbed
from tests.lab.walk import Walk

DRIVER = "apportion.gpu"
MIB = 1 << 20
CONTEXT = 100  # MiB, a T4's of the simulated driver
# A setting of a share that no version of the driver knows.
UNKNOWN = """
    config:
    - requests: [gpu]
      opaque:
        driver: apportion.gpu
        parameters: {apiVersion: apportion.gpu/v1alpha1, kind: ShareConfig, colour: blue}"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder: Path = tmp_path_factory.mktemp("status")
    with Cluster(testbed.options(folder / "fakegpu", name="status")) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        soon = "APPORTION_STATUS_INTERVAL_S=3"
        walk.kubectl("set", "env", "-n", SYSTEM, DAEMONSET, soon)
        walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=60s")
        yield walk


def hold(walk: Walk, name: str, mib: int) -> None:
    """Let a process of the pod hold memory until the pod ends."""
    script = (
        f"/tmp/cudamem alloc {mib}MiB --hold 600 >/tmp/held 2>&1 & "
        "until grep -q cuMemAlloc /tmp/held; do sleep 0.1; done"
    )
    walk.kubectl("exec", name, "--", "sh", "-c", script)


def shares(walk: Walk) -> dict[str, dict[str, Any]]:
    """Return what `apportion status --cluster` says of each claim."""
    return {
        share["claim"]: share for card in walk.status(DRIVER)["cards"] for share in card["shares"]
    }


def used(walk: Walk) -> dict[str, int | None]:
    return {claim: share["memoryUsedBytes"] for claim, share in shares(walk).items()}


def told(walk: Walk, claim: str) -> list[dict[str, Any]]:
    return list(walk.get("resourceclaim", claim)["status"].get("devices", ()))


def test_the_use_of_all_shares_is_seen_from_a_desk_and_nothing_stays(walk: Walk) -> None:
    for name, mib in (("one", 512), ("two", 256)):
        start(walk, name)
        hold(walk, name, mib)
    walk.until(
        "use", lambda: used(walk), {"one": (512 + CONTEXT) * MIB, "two": (256 + CONTEXT) * MIB}
    )
    for name, share in shares(walk).items():
        assert share["memoryLimitBytes"] == 1024 * MIB
        assert share["memoryPeakBytes"] == share["memoryUsedBytes"]
        assert (share["processes"], share["refused"], share["pods"]) == (1, 0, [name])
        assert 0 <= share["useAgeSeconds"] < 300
    text = walk.apportion("status", "--cluster")
    assert f"{512 + CONTEXT} / 1024MiB" in text
    (entry,) = told(walk, "one")
    (result,) = walk.get("resourceclaim", "one")["status"]["allocation"]["devices"]["results"]
    assert all(entry[key] == result[key] for key in ("driver", "pool", "device", "shareID"))
    (condition,) = [c for c in entry["conditions"] if c["type"] == "Ready"]
    assert (condition["status"], condition["reason"]) == ("True", "Prepared")
    # Its claim lives on, and says nothing more of a share that is no more.
    walk.kubectl("delete", "pod/one", "--timeout=60s")
    walk.until("told of one", lambda: told(walk, "one"), [])
    end(walk, "two")
    walk.kubectl("delete", "resourceclaim/one", "--timeout=60s")
    walk.until("shares", lambda: shares(walk), {})
    folder = f"/var/lib/kubelet/plugins/{DRIVER}/told"
    walk.until("marks", lambda: walk.cluster.node_exec(["ls", folder]).stdout, "")


def test_why_a_pod_does_not_start_is_an_event_on_it(walk: Walk) -> None:
    # As a claim from before the policy that refuses it at once.
    walk.kubectl("delete", "validatingadmissionpolicybinding", "apportion-shareconfig")
    odd = SHARE.format(name="odd", config=UNKNOWN)
    apply = partial(walk.cluster.kubectl, "apply", "-f", "-", input=odd, check=False)
    walk.until("taken", lambda: apply().returncode, 0)
    walk.until(
        "events",
        lambda: "PrepareRefused" in walk.kubectl("describe", "pod", "odd"),
        True,
    )
    events = walk.get("events", "--field-selector=involvedObject.name=odd")["items"]
    ours = [event for event in events if event["reason"] == "PrepareRefused"]
    assert len(ours) == 1
    assert "colour" in ours[0]["message"]
    theirs = [e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"]
    assert any(ours[0]["message"] in message for message in theirs)
    assert "PrepareRefused" in walk.kubectl("get", "events")
    end(walk, "odd")
