"""The guard in the whole plugin: real API server, real record of the claim, one who goes around."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.node.support.apiserver import ApiServer, free_ports
from tests.node.support.kubelet import until
from tests.node.support.site import Site, error_of, site_of
from tests.node.watch.node import CUDAMEM, REAL, lives, start
from tests.shim import support

_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture
def site(api_server: ApiServer, node_name: str, short: Path) -> Iterator[Site]:
    with site_of(api_server, node_name, short) as made:
        yield made


def _metrics(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _events(site: Site) -> list[tuple[str, str, str]]:
    return sorted(
        (event["reason"], event["regarding"]["kind"], event["regarding"]["name"])
        for event in site.server.call("GET", _EVENTS)["items"]
        if site.node in event["note"] or event["reportingInstance"] == site.node
    )


def test_who_goes_around_is_killed_told_and_counted(site: Site) -> None:
    (port,) = free_ports(1)
    plugin = site.start(guard_interval_s="1", metrics_address=f"127.0.0.1:{port}")
    site.ready(plugin)
    claim = site.claim()
    assert error_of(site.kubelet.prepare(claim), claim) == ""
    container = support.Container(site.host.root, site.host.gpus.state_dir)
    container.shares = [support.Share(path) for path in site.host.share_folders()]
    with ExitStack() as stack:

        def run(*arguments: str) -> subprocess.Popen[str]:
            command = container.command(str(CUDAMEM), *arguments, "--hold", "600")
            return start(command, site.host.gpus.state_dir, stack)

        honest = run("alloc", "1GiB")
        rogue = run(*REAL, "alloc", "5GiB")
        assert rogue.wait(60) == -9
        plugin.wait_for("killed a process of a share that holds more than is its own")
        until(lambda: "apportion_share_truth_bytes{" in _metrics(port))
        assert lives(honest)
        said = _metrics(port)
        labels = 'device="gpu-0000-3b-00-0",namespace="default"'
        assert f"apportion_guard_kills_total{{{labels}" in said
        assert "apportion_guard_sees 1.0" in said
    (line,) = [one for one in plugin.text().splitlines() if "killed a process" in one]
    for word in (f"claim=default/{claim['name']}", f"pid={rogue.pid}", "program=cudamem", "limit="):
        assert word in line
    pod = f"pod-of-{claim['name']}"
    expected = [
        (reason, kind, name)
        for reason in ("ShareExceeded", "ShareProcessKilled")
        for kind, name in (("Node", site.node), ("Pod", pod))
    ]
    until(lambda: set(expected) <= set(_events(site)))
    assert plugin.terminate() == 0
