"""MPS in a real cluster: a daemon on the node that outlives the plugin, and clients in pods."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.support import DAEMONSET, SHARE, SYSTEM, start_from
from tests.fakes.fakegpu import FakeDriver
from tests.harness import Cluster
from tests.lab import testbed
from tests.lab.walk import Walk

PROGRAM = testbed.REPO / "tests" / "shim" / "inside_mps.py"
PID = "cat /run/apportion/mps/*/pipe/nvidia-cuda-mps-control.pid"
PROCESSORS = 4  # of a T4's 40, for 10 cores
OK, RPC_FAILURE = 0, 806


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    driver = FakeDriver(tmp_path_factory.mktemp("mps") / "fakegpu")
    with Cluster(testbed.options(driver.state_dir, name="mps", cards=1)) as cluster:
        walk = Walk(cluster)
        walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        roll(walk, "APPORTION_CORES_MODE=mps")
        start_from(walk, SHARE.format(name="app", config=""), "app")
        walk.kubectl("cp", str(PROGRAM), "app:/tmp/program.py")
        yield walk


def roll(walk: Walk, *settings: str) -> None:
    walk.kubectl("set", "env", "-n", SYSTEM, DAEMONSET, *settings)
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)


def daemon(walk: Walk) -> int:
    return int(walk.on_node("sh", "-c", PID))


def program(walk: Walk, *words: str) -> list[Any]:
    """Run the program in the pod with these words, and return its answers."""
    said = "".join(f"{word}\\n" for word in words)
    command = ("sh", "-c", f"printf '{said}' | python3 /tmp/program.py")
    return [json.loads(line) for line in walk.kubectl("exec", "app", "--", *command).splitlines()]


def start(walk: Walk) -> None:
    """Leave the program running in the pod, with a context."""
    walk.kubectl(
        "exec", "app", "--", "sh", "-c",
        "mkfifo /tmp/in; { sleep infinity >/tmp/in & "
        "nohup python3 /tmp/program.py </tmp/in >/tmp/out & } >/dev/null 2>&1",
    )  # fmt: skip
    assert ask(walk, "init") == OK
    assert ask(walk, "context") == OK


def ask(walk: Walk, word: str) -> Any:
    """Give that one a word, and return the answer."""
    before = len(walk.kubectl("exec", "app", "--", "cat", "/tmp/out").splitlines())
    walk.kubectl("exec", "app", "--", "sh", "-c", f"echo {word} >/tmp/in")
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while len(lines) <= before:
        assert time.monotonic() < deadline
        lines = walk.kubectl("exec", "app", "--", "cat", "/tmp/out").splitlines()
    return json.loads(lines[before])


def test_a_pod_has_its_part_and_a_new_plugin_ends_nobodys_work(walk: Walk) -> None:
    (body,) = walk.get("resourceslices")["items"]
    (device,) = body["spec"]["devices"]
    assert device["attributes"]["coresMode"] == {"string": "mps"}
    assert program(walk, "init", "context", "enabled", "processors") == [OK, OK, 1, PROCESSORS]
    start(walk)
    before = daemon(walk)
    roll(walk, "APPORTION_LOG_LEVEL=DEBUG")
    assert daemon(walk) == before
    assert ask(walk, "launch") == OK
    assert program(walk, "init", "context") == [OK, OK]


def test_a_killed_daemon_comes_back_and_the_pods_are_told(walk: Walk) -> None:
    before = daemon(walk)
    walk.on_node("kill", "-9", str(before))
    deadline = time.monotonic() + 60
    while program(walk, "init", "context") != [OK, OK]:
        assert time.monotonic() < deadline
    assert daemon(walk) != before
    assert ask(walk, "launch") == RPC_FAILURE
    events: list[str] = []
    while "MpsDaemonEnded" not in events:
        assert time.monotonic() < deadline
        found = walk.get("events", "--field-selector", "involvedObject.name=app")["items"]
        events = [event["reason"] for event in found]
