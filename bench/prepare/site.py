"""A node for the measurement: 16 simulated T4s, a real API server, kubelet played, the plugin."""

from __future__ import annotations

import itertools
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fakes.fakegpu import MAX_GPUS, T4
from tests.node.support.apiserver import ADMIN, ApiServer, add_node
from tests.node.support.claims import allocated, share
from tests.node.support.kubelet import FakeKubelet, until
from tests.node.support.plugin import DRIVER, Host, PluginProcess

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_NODE = "bench-node"
_FIRST_BUS = 0x10
_START_S = 120.0
# As the DaemonSet runs it, so no loop is busier than there.
_DEFAULTS = {"scan_interval_s": "60", "sweep_interval_s": "60", "api_timeout_s": "10"}

Claim = dict[str, str]


class Site:
    """Everything around the plugin, and the plugin."""

    def __init__(self, server: ApiServer, disk: Path, memory: Path) -> None:
        """Lay the node out as a real one is: records on disk, CDI specs and shares in memory.

        Args:
            server: the API server.
            disk: a folder on a disk, with a short path, for sockets.
            memory: a folder on a tmpfs, as /run is.
        """
        self.server = server
        self.host = Host(disk)
        self.host.cdi, self.host.shares = memory / "cdi", memory / "shares"
        buses = [f"{_FIRST_BUS + index:02x}" for index in range(MAX_GPUS)]
        self.host.gpus.write_config(
            [
                T4(uuid=f"GPU-00000000-0000-4000-8000-{index:012x}", pci=f"00000000:{bus}:00.0")
                for index, bus in enumerate(buses)
            ]
        )
        for index in range(MAX_GPUS):
            (self.host.driver_root / "dev" / f"nvidia{index}").touch()
        self.devices = [f"gpu-0000-{bus}-00-0" for bus in buses]
        self.kubelet = FakeKubelet(self.host.registry)
        add_node(server, _NODE)
        self._numbers = itertools.count()
        self.plugin: PluginProcess | None = None

    def start(self) -> float:
        """Start the plugin; return the seconds from exec to the slice with all devices."""
        began = time.perf_counter()
        self._exec()
        until(self._published, _START_S)
        return time.perf_counter() - began

    def restart(self, old: Claim) -> float:
        """Kill the plugin and start it; return the seconds until it answers for an old claim."""
        assert self.plugin
        self.plugin.kill()
        began = time.perf_counter()
        self._exec()
        until(self._connected, _START_S)
        self.prepare(old)
        return time.perf_counter() - began

    def _exec(self) -> None:
        """Start the plugin with what a pod finds of its ServiceAccount."""
        account = self.host.root / "account"
        account.mkdir(exist_ok=True)
        shutil.copy(self.server.certificate, account / "ca.crt")
        (account / "token").write_text(ADMIN)
        settings = {"service_account_dir": str(account)} | _DEFAULTS
        address = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.server.port),
        }
        self.plugin = PluginProcess(self.host, _NODE, str(uuid.uuid4()), settings, address)

    def _connected(self) -> bool:
        assert self.plugin
        own = f"{DRIVER}-{self.plugin.pod}-reg.sock"
        return any(plugin.socket.name == own for plugin in self.kubelet.plugins)

    def _published(self) -> bool:
        found = self.server.call("GET", f"{_SLICES}?fieldSelector=spec.nodeName={_NODE}")
        return sum(len(body["spec"]["devices"]) for body in found["items"]) == MAX_GPUS

    def claims(self, count: int) -> list[Claim]:
        """Create claims of 8 MiB and 1 core, spread over the cards."""

        def one(number: int) -> Claim:
            device = self.devices[number % len(self.devices)]
            result = share(_NODE, device, memory="8Mi", cores="1")
            return allocated(self.server, f"bench-{number}", result)

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(one, [next(self._numbers) for _ in range(count)]))

    def prepare(self, *claims: Claim) -> float:
        """Prepare claims by one call; return its seconds. Raises RuntimeError by an error."""
        return _timed(self.kubelet.prepare, claims)

    def unprepare(self, *claims: Claim) -> float:
        """The same for unprepare."""
        return _timed(self.kubelet.unprepare, claims)

    def cpu(self) -> float:
        """Return the plugin's CPU seconds so far."""
        assert self.plugin
        stat = Path(f"/proc/{self.plugin.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def close(self, log: Path) -> None:
        """End the plugin; leave its log at `log`."""
        if self.plugin is not None:
            self.plugin.__exit__(None, None, None)
            log.parent.mkdir(exist_ok=True)
            shutil.copy(self.plugin.log, log)


def _timed(call: Any, claims: Sequence[Claim]) -> float:
    began = time.perf_counter()
    answer = call(*claims)
    seconds = time.perf_counter() - began
    errors = [answer.claims[claim["uid"]].error for claim in claims]
    bad = next((error for error in errors if error), "")
    if bad:
        raise RuntimeError(bad)
    return seconds
