"""`apportion status` and `apportion doctor` beside a plugin that runs, with its own settings."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.support.apiserver import NOBODY, ApiServer
from tests.node.support.claims import allocated, share, told
from tests.node.support.kubelet import FakeKubelet, until
from tests.node.support.plugin import Host, PluginProcess

_FIRST = "gpu-0000-3b-00-0"
_GIB = 1 << 30


class Node:
    """A plugin that serves, and what one can ask beside it."""

    def __init__(self, plugin: PluginProcess, kubelet: FakeKubelet) -> None:
        self.plugin = plugin
        self.kubelet = kubelet
        content = Path(f"/proc/{plugin.process.pid}/environ").read_text()
        self._environ = dict(line.split("=", 1) for line in content.split("\0") if line)

    def ask(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run `apportion …` as `kubectl exec` does: with the plugin's environment."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "apportion", *argv],
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ask_json(self, *argv: str) -> dict[str, Any]:
        found = self.ask(*argv, "-o", "json")
        assert found.returncode == 0, found.stdout + found.stderr
        content: dict[str, Any] = json.loads(found.stdout)
        return content


@pytest.fixture
def beside(api_server: ApiServer, node: str, short: Path) -> Iterator[Node]:
    host = Host(short)
    settings = {"kubeconfig": str(api_server.kubeconfig())}
    with (
        FakeKubelet(host.registry) as kubelet,
        PluginProcess(host, node, str(uuid.uuid4()), settings) as plugin,
    ):
        until(lambda: bool(kubelet.plugins) or plugin.process.poll() is not None, 60)
        assert kubelet.plugins, plugin.text()
        until(lambda: plugin.health("readiness") == "SERVING")
        yield Node(plugin, kubelet)


def test_status_shows_what_was_prepared(beside: Node, api_server: ApiServer, node: str) -> None:
    empty = beside.ask("status")
    assert empty.returncode == 0, empty.stderr
    assert empty.stdout.endswith("\n\nNo shares.\n")

    claim = allocated(api_server, "status-claim", share(node, _FIRST))
    assert not beside.kubelet.prepare(claim).claims[claim["uid"]].error
    found = beside.ask_json("status")
    assert (found["complete"], found["problems"]) == (True, [])
    first, second = found["cards"]
    assert (first["device"], first["node"], first["product"]) == (_FIRST, node, "Tesla T4")
    assert (first["memoryBytes"], first["memoryUsedBytes"]) == (14917 << 20, 0)
    assert (first["memoryGivenBytes"], first["coresGiven"]) == (4 * _GIB, 30)
    assert second["shares"] == []
    (held,) = first["shares"]
    assert (held["namespace"], held["claim"]) == ("default", "status-claim")
    assert (held["claimUID"], held["pods"]) == (claim["uid"], ["pod-of-status-claim"])
    assert (held["state"], held["memoryLimitBytes"]) == ("prepared", 4 * _GIB)
    assert (held["memoryUsedBytes"], held["processes"], held["refused"]) == (0, 0, 0)

    text = beside.ask("status", "-o", "wide").stdout
    assert f"default/status-claim  pod-of-status-claim  gpu      {held['shareID']}" in text


def test_status_works_while_the_plugin_is_down(
    beside: Node, api_server: ApiServer, node: str
) -> None:
    claim = allocated(api_server, "down-claim", share(node, _FIRST))
    beside.kubelet.prepare(claim)
    beside.plugin.kill()
    shares = beside.ask_json("status")["cards"][0]["shares"]
    assert [held["claim"] for held in shares] == ["down-claim"]


def test_status_of_the_cluster_agrees(beside: Node, api_server: ApiServer, node: str) -> None:
    claim = allocated(api_server, "cluster-claim", share(node, _FIRST))
    beside.kubelet.prepare(claim)
    until(lambda: bool(told(api_server, "cluster-claim")))
    cards = [c for c in beside.ask_json("status", "--cluster")["cards"] if c["node"] == node]
    shares = [held for card in cards for held in card["shares"]]
    own = [held for card in beside.ask_json("status")["cards"] for held in card["shares"]]
    same = ("claim", "claimUID", "shareID", "pods", "memoryLimitBytes", "coresLimit")
    use = ("memoryUsedBytes", "memoryPeakBytes", "refused", "processes")
    for field in (*same, *use):
        assert [held[field] for held in shares] == [held[field] for held in own]
    assert [held["state"] for held in shares] == ["allocated,reserved"]
    (held,) = shares
    assert held["useAgeSeconds"] is not None
    assert f"0 / {4 * _GIB >> 20}MiB" in beside.ask("status", "--cluster").stdout


def test_status_of_the_cluster_without_the_right(beside: Node, api_server: ApiServer) -> None:
    kubeconfig = str(api_server.kubeconfig(token=NOBODY))
    found = beside.ask("status", "--cluster", "--kubeconfig", kubeconfig)
    assert found.returncode == 1
    assert "an administrator's kubeconfig" in found.stderr


def test_doctor_is_content(beside: Node) -> None:
    checks = beside.ask_json("doctor")["checks"]
    assert {check["state"] for check in checks} == {"good"}, checks


def test_doctor_finds_what_is_wrong(beside: Node) -> None:
    beside.plugin.kill()
    beside.plugin.host.remove_driver()
    found = beside.ask("doctor", "-o", "json")
    assert found.returncode == 1
    bad = [check["name"] for check in json.loads(found.stdout)["checks"] if check["state"] == "bad"]
    assert bad == ["driver files", "NVML", "plugin"]
