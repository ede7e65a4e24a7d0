"""MPS in the whole plugin: a daemon's trouble is in slices and metrics, and no time is made up."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apportion.model import GpuUuid
from apportion.mps import control, places
from apportion.mps.control import PROGRAM

from tests.fakes.fakegpu import DEFAULT_GPUS
from tests.node.support.apiserver import ApiServer, free_ports
from tests.node.support.claims import share
from tests.node.support.kubelet import until
from tests.node.support.plugin import DRIVER, PluginProcess
from tests.node.support.site import Site, error_of, site_of

_FIRST = "gpu-0000-3b-00-0"
_UUID = GpuUuid(DEFAULT_GPUS[0].uuid)
_WAIT_S = 90


@pytest.fixture
def site(api_server: ApiServer, node: str, short: Path) -> Iterator[Site]:
    with site_of(api_server, node, short) as made:
        host = made.host
        # The daemons lie beside the shares.
        host.shares = host.shares / "shares"
        host.shares.mkdir()
        yield made
    # Of a test that failed; else the plugin has ended it.
    for found in control.running(Path("/proc"), lambda _cgroup: False):
        if found.pipe.startswith(f"{host.shares.parent}/"):
            os.kill(found.pid, signal.SIGKILL)


class Plugin:
    """A plugin that has MPS divide the first GPU, and what is seen of that."""

    def __init__(self, site: Site) -> None:
        self._site, (self._port,) = site, free_ports(1)
        self.process: PluginProcess = site.start(
            cores_modes=f"{_UUID}=mps", metrics_address=f"127.0.0.1:{self._port}"
        )
        site.ready(self.process)
        self._place = places.place(site.host.shares.parent / "mps", DRIVER, _UUID)

    def daemon(self) -> int:
        return int((self._place.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def taints(self) -> list[dict[str, Any]]:
        """Return those of the first GPU, as published."""
        devices = [device for body in self._site.slices() for device in body["spec"]["devices"]]
        (found,) = (device.get("taints", []) for device in devices if device["name"] == _FIRST)
        return [{key: taint[key] for key in ("key", "effect")} for taint in found]

    def metrics(self) -> dict[str, float]:
        """Return all series by name and labels."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if "{" in line)
        return {name: float(value) for name, _, value in pairs}

    def ended(self) -> float:
        """Return how often a daemon was counted to have ended."""
        series = f'apportion_mps_events_total{{reason="MpsDaemonEnded",uuid="{_UUID}"}}'
        return self.metrics().get(series, 0)


def test_a_daemon_that_ends_is_counted_and_its_gpu_tainted_while_there_is_none(site: Site) -> None:
    plugin = Plugin(site)
    claim = site.claim(share(site.node, _FIRST))
    until(lambda: not error_of(site.kubelet.prepare(claim), claim), _WAIT_S)
    assert (plugin.taints(), plugin.ended()) == ([], 0)
    program = site.host.driver_root / "usr/bin" / PROGRAM
    away = program.with_suffix(".away")
    program.rename(away)
    os.kill(plugin.daemon(), signal.SIGKILL)
    until(lambda: plugin.taints() != [], _WAIT_S)
    assert plugin.taints() == [{"key": f"{DRIVER}/mps", "effect": "NoSchedule"}]
    assert plugin.ended() == 1
    away.rename(program)
    until(lambda: plugin.taints() == [], _WAIT_S)
    assert plugin.ended() == 1
    assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert plugin.process.terminate() == 0
    assert "MPS daemon ended" in plugin.process.text(), "with the plugin, as no share needs it"


def test_time_on_the_gpu_is_no_zero_where_nothing_counts_it(site: Site) -> None:
    plugin = Plugin(site)
    claim = site.claim(share(site.node, _FIRST, cores="30"))
    until(lambda: not error_of(site.kubelet.prepare(claim), claim), _WAIT_S)
    found = {name.partition("{")[0] for name in plugin.metrics() if "share_cores" in name}
    assert found == {"apportion_share_cores_limit_ratio"}
    assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert plugin.process.terminate() == 0
