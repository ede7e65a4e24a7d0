"""Running shares stay enforced, new ones are prepared, whatever part of the node starts anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.support import DAEMONSET, SYSTEM, end, slot, start
from tests.harness import Cluster
from tests.lab import testbed
from tests.lab.walk import Walk

MISSING_LOOKS = 20  # of ten a second at most
REFUSED = "CUDA_ERROR_OUT_OF_MEMORY"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder: Path = tmp_path_factory.mktemp("restarts")
    # kubelet tries a pod again after this; one that starts before the plugin is back waits for it.
    options = replace(
        testbed.options(folder / "fakegpu", name="restarts"),
        kubelet_config={"syncFrequency": "5s"},
    )
    with Cluster(options) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=60s")
        start(walk, "running")
        yield walk


def enforced(walk: Walk, name: str) -> bool:
    """Whether the pod's share refuses 1.1 GiB and grants all that a context leaves of 1 GiB."""
    run = ("exec", name, "--", "/tmp/cudamem", "alloc")
    return REFUSED in walk.kubectl(*run, "1127MiB", ok=False) and REFUSED not in walk.kubectl(
        *run, "all"
    )


def slice_uids(walk: Walk) -> list[str]:
    return sorted(s["metadata"]["uid"] for s in walk.get("resourceslices")["items"])


def plugin_processes(walk: Walk) -> list[int]:
    found = walk.cluster.node_exec(["pgrep", "-f", "apportion plugin"], check=False).stdout
    return [int(word) for word in found.split()]


@contextmanager
def slices_watched(walk: Walk) -> Iterator[list[int]]:
    """Collect how many slices there are, ten times a second, for as long as the block runs."""
    counts: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            counts.append(len(walk.get("resourceslices")["items"]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()


def kill_plugin(walk: Walk) -> None:
    old = plugin_processes(walk)
    assert old, "the plugin runs"
    walk.cluster.node_exec(["kill", "-KILL", *map(str, old)])
    walk.until(
        "plugin is a new process", lambda: bool(set(plugin_processes(walk)) - set(old)), True
    )
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=60s")


def restart_kubelet(walk: Walk) -> None:
    walk.cluster.restart_kubelet()


def roll(walk: Walk) -> None:
    walk.kubectl("rollout", "restart", "-n", SYSTEM, DAEMONSET)
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)
    time.sleep(1)  # the old pod is still on its way out; its stop must take nothing along


def restart_containerd(walk: Walk) -> None:
    walk.cluster.restart_containerd()


@pytest.mark.parametrize("event", [kill_plugin, restart_kubelet, roll, restart_containerd])
def test_shares_survive(walk: Walk, event: Callable[[Walk], None]) -> None:
    before, held = slice_uids(walk), slot(walk, "running")
    with slices_watched(walk) as counts:
        event(walk)
        name = event.__name__.replace("_", "-")
        assert enforced(walk, "running")
        start(walk, name)
        assert enforced(walk, name)
        # Time division: each has its 10 % of the same period, the first one where it had it.
        mode, period, began, length = held
        assert (mode, length) == ("timeslice", period // 10)
        assert slot(walk, "running") == held
        assert slot(walk, name) == (mode, period, began + length, length)
        end(walk, name)
    if event is restart_kubelet:
        # A starting kubelet deletes its node's slices; ours is published anew at once.
        assert counts[-1] == 1
        assert counts.count(0) <= MISSING_LOOKS
        assert len(slice_uids(walk)) == 1
    else:
        assert set(counts) == {1}, "the slice was there all the time"
        assert slice_uids(walk) == before


def test_a_deleted_slice_comes_back(walk: Walk) -> None:
    before = slice_uids(walk)
    walk.kubectl("delete", "resourceslices", "--all")
    walk.until("slices", lambda: len(slice_uids(walk)), 1, timeout=20)
    assert slice_uids(walk) != before


def test_a_reboot_prepares_again(walk: Walk) -> None:
    boot = walk.cluster.boot_id()
    walk.cluster.reboot()
    assert walk.cluster.boot_id() != boot
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)
    walk.kubectl("wait", "--for=condition=Ready", "pod/running", "--timeout=120s", timeout=130)
    walk.kubectl("cp", str(testbed.BUILD / "fakes/bin/cudamem"), "running:/tmp/cudamem")
    assert enforced(walk, "running")
    start(walk, "after-reboot")
    assert enforced(walk, "after-reboot")
    end(walk, "after-reboot")
