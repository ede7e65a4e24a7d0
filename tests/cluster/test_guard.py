"""The guard in a real cluster: who goes around the front is ended, and nobody else."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.support import DAEMONSET, SHARE, SYSTEM, start_from
from tests.fakes.fakegpu import MIB, FakeDriver
from tests.harness import Cluster
from tests.lab import testbed
from tests.lab.walk import Walk

AROUND = ("/tmp/cudamem", "--library", "/run/apportion/driver/libcuda.so.1", "alloc")
KILLED = 137
INTERVALS = 15
CONTEXT = 100  # MiB, a T4's of the simulated driver

STRANGER = """
apiVersion: v1
kind: Pod
metadata: {name: stranger}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: python:3.11-slim-bookworm
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
    securityContext: {privileged: true}
"""

# A container in the container: a user, mount and root of its own, in which nothing of ours is seen.
NESTED = """
set -e
mkdir -p /tmp/root && mount -t tmpfs none /tmp/root && cd /tmp/root
mkdir -p run/fakegpu dev proc
for folder in run/fakegpu dev proc; do mount --rbind /$folder $folder; done
cp /tmp/cudamem-static .
exec chroot . /cudamem-static alloc 2GiB --hold 600
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("guard") / "fakegpu")


@pytest.fixture(scope="module")
def walk(driver: FakeDriver) -> Iterator[Walk]:
    options = testbed.options(driver.state_dir, name="guard")
    with Cluster(options) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        roll(walk, "APPORTION_GUARD_INTERVAL_S=1")
        start(walk, SHARE.format(name="neighbour", config=""), "neighbour")
        start(walk, SHARE.format(name="rogue", config=""), "rogue")
        yield walk


def roll(walk: Walk, *settings: str) -> None:
    walk.kubectl("set", "env", "-n", SYSTEM, DAEMONSET, *settings)
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)


def start(walk: Walk, manifest: str, name: str) -> None:
    start_from(walk, manifest, name, "cudamem", "cudamem-static")


def run(walk: Walk, pod: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a pod to its end."""
    return walk.cluster.kubectl("exec", pod, "--", *command, check=False, timeout=120)


@contextmanager
def running(walk: Walk, pod: str, *command: str) -> Iterator[list[int]]:
    """Run a program in a pod beside the block; the list gets its exit status when it ends."""
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(run(walk, pod, *command).returncode))
    thread.start()
    try:
        yield status
    finally:
        run(walk, pod, "python", "-c", _END)
        thread.join()


# What `pkill cudamem` would be, if the image had it.
_END = """
import glob, os, signal
for path in glob.glob('/proc/[0-9]*/comm'):
    if open(path).read().startswith('cudamem'):
        os.kill(int(path.split('/')[2]), signal.SIGKILL)
"""


def events(walk: Walk, reason: str) -> list[tuple[str, str]]:
    """Return what such events are about."""
    found: Any = json.loads(walk.kubectl("get", "events", "-A", "-o", "json"))
    return sorted(
        (one["involvedObject"]["kind"], one["involvedObject"]["name"])
        for one in found["items"]
        if one["reason"] == reason
    )


def held(driver: FakeDriver) -> int:
    """Return what all processes hold of both cards, in MiB."""
    return (driver.used(0) + driver.used(1)) // MIB


def test_an_honest_share_filled_by_many_runs_on(walk: Walk, driver: FakeDriver) -> None:
    fill = ("/tmp/cudamem", "alloc", "--until-refused", "2MiB", "--processes", "4", "--hold", "600")
    with running(walk, "neighbour", *fill) as status:
        walk.until("the share is full", lambda: held(driver), 1024)
        time.sleep(INTERVALS)
        assert status == []
    assert events(walk, "ShareExceeded") == []


@pytest.mark.parametrize(
    "program",
    [
        (*AROUND, "2GiB", "--hold", "600"),
        ("/tmp/cudamem-static", "alloc", "2GiB", "--hold", "600"),
        ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", NESTED),
    ],
    ids=["by path", "static", "nested"],
)
def test_who_goes_around_the_front_is_killed(walk: Walk, program: tuple[str, ...]) -> None:
    with running(walk, "neighbour", "/tmp/cudamem", "alloc", "900MiB", "--hold", "600") as status:
        rogue = run(walk, "rogue", *program)
        assert rogue.returncode == KILLED, rogue.stdout + rogue.stderr
        assert "cuMemAlloc 2 GiB -> CUDA_SUCCESS" in rogue.stdout
        assert status == [], "the neighbour runs on"
    walk.until("events", lambda: ("Pod", "rogue") in events(walk, "ShareProcessKilled"), True)
    assert ("Node", "node-a") in events(walk, "ShareProcessKilled")
    assert ("Pod", "neighbour") not in events(walk, "ShareProcessKilled")


def test_doctor_says_that_the_guard_sees(walk: Walk) -> None:
    pod = walk.get("pods", "-n", SYSTEM)["items"][0]["metadata"]["name"]
    said = walk.kubectl("exec", "-n", SYSTEM, pod, "--", "apportion", "doctor")
    assert "sees the node's processes; kill every 1 s" in said


def test_a_pod_without_a_claim_is_reported_and_lives(walk: Walk) -> None:
    start(walk, STRANGER, "stranger")
    take = ("/tmp/cudamem-static", "alloc", "1GiB", "--hold", "600")
    with running(walk, "stranger", *take) as status:
        walk.until("event", lambda: events(walk, "ProcessWithoutShare"), [("Node", "node-a")])
        assert status == []
    walk.kubectl("delete", "pod/stranger", "--timeout=60s")


def test_observing_kills_nobody(walk: Walk, driver: FakeDriver) -> None:
    roll(walk, "APPORTION_GUARD=observe")
    before = len(events(walk, "ShareProcessKilled"))
    with running(walk, "rogue", *AROUND, "3GiB", "--hold", "600") as status:
        walk.until("it has its memory", lambda: held(driver), 3072 + CONTEXT)
        time.sleep(INTERVALS)
        assert status == []
    assert len(events(walk, "ShareProcessKilled")) == before


def test_hc112_without_hostpid_the_guard_says_that_it_is_blind_and_kills_nobody(walk: Walk) -> None:
    patch = '{"spec": {"template": {"spec": {"hostPID": false}}}}'
    walk.kubectl("patch", "-n", SYSTEM, DAEMONSET, "--patch", patch)
    roll(walk, "APPORTION_GUARD=kill")
    with running(walk, "rogue", *AROUND, "3GiB", "--hold", "600") as status:
        walk.until("it says so", lambda: events(walk, "GuardBlind"), [("Node", "node-a")])
        time.sleep(INTERVALS)
        assert status == []
    pod = walk.get("pods", "-n", SYSTEM)["items"][0]["metadata"]["name"]
    said = walk.kubectl("exec", "-n", SYSTEM, pod, "--", "apportion", "doctor", ok=False)
    assert "set hostPID: true" in said
