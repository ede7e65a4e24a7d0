"""SIGTERM ends the plugin within the 30 s that the DaemonSet gives it, whatever hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.support.kubelet import until
from tests.node.support.plugin import PluginProcess
from tests.node.support.site import Site, error_of

_LONG_MS = 600_000
_GRACE_S = 30


def children(plugin: PluginProcess) -> list[str]:
    """Return the processes that the plugin started and that still run."""
    lists = Path(f"/proc/{plugin.process.pid}/task").glob("*/children")
    return [pid for path in lists for pid in path.read_text().split()]


def ends(plugin: PluginProcess) -> None:
    plugin.signal_stop()
    assert plugin.process.wait(_GRACE_S) == 0, plugin.text()
    assert "stopped; shares and slices stay" in plugin.text()
    assert "Traceback" not in plugin.text()


def test_while_nvml_hangs_at_the_first_scan(site: Site) -> None:
    for gpu in (0, 1):
        site.host.gpus.hang(gpu, "nvmlDeviceGetUUID", _LONG_MS)
    plugin = site.start()
    plugin.wait_for("NVML is open")
    ends(plugin)
    assert "a loop does not end loop=scan" in plugin.text()
    assert site.kubelet.registrations == 0


def test_while_nvml_hangs_claims_come_and_go(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    one, two = site.claim(), site.claim()
    assert error_of(site.kubelet.prepare(one), one) == ""
    for gpu in (0, 1):
        site.host.gpus.hang(gpu, "nvmlDeviceGetUUID", _LONG_MS)
        site.host.gpus.hang(gpu, "nvmlDeviceGetMemoryInfo_v2", _LONG_MS)
    assert error_of(site.kubelet.prepare(two), two) == ""
    for claim in (one, two):
        assert error_of(site.kubelet.unprepare(claim), claim) == ""
    assert site.clean()
    ends(plugin)


@pytest.mark.parametrize("function", ["cuInit", "cuDevicePrimaryCtxRetain"])
def test_while_the_self_test_hangs(site: Site, function: str) -> None:
    for gpu in (None, 0, 1):
        site.host.gpus.hang(gpu, function, _LONG_MS)
    plugin = site.start()
    until(lambda: bool(children(plugin)))
    (child,) = children(plugin)
    ends(plugin)
    until(lambda: not Path(f"/proc/{child}").exists())
    assert "broken off: the plugin ends" in plugin.text()
