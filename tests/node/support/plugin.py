"""The whole plugin as a process, on simulated GPUs, with folders of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2

from tests.fakes import fakegpu
from tests.fakes.fakegpu import FakeDriver
from tests.node.support.kubelet import unary, until
from tests.shim import support

DRIVER = "apportion.gpu"
_FRONTS = ("libcuda.so.1", "libnvidia-ml.so.1", "apportion-ldcache")
_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1")


class Host:
    """A node's folders below `root`: driver, kubelet's, CDI, shares; and simulated GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shim = _shim(root / "shim")
        self.plugins = root / "plugins"
        self.registry = root / "registry"
        self.cdi = root / "cdi"
        # On a tmpfs, as on a node: else the plugin refuses to use it.
        self.shares = Path(tempfile.mkdtemp(prefix="apportion-", dir="/dev/shm"))
        weakref.finalize(self, shutil.rmtree, self.shares, ignore_errors=True)
        self.registry.mkdir()
        self.gpus = FakeDriver(root / "gpus")
        self.gpus.write_config()
        self.driver_root = root / "driver"
        self.install_driver()

    def install_driver(self) -> None:
        shutil.copytree(fakegpu.build() / "rootfs", self.driver_root, symlinks=True)
        (self.driver_root / "dev").mkdir()
        for name in _NODES:
            (self.driver_root / "dev" / name).touch()

    def remove_driver(self) -> None:
        shutil.rmtree(self.driver_root)

    def checkpoints(self) -> list[Path]:
        return sorted((self.plugins / DRIVER / "claims").glob("*.json"))

    def cdi_specs(self) -> list[Path]:
        return sorted(self.cdi.glob("*claim*.json"))

    def share_folders(self) -> list[Path]:
        folder = self.shares / DRIVER
        return sorted(folder.iterdir()) if folder.is_dir() else []


def _shim(folder: Path) -> Path:
    """Lay out what the image has at /usr/lib/apportion."""
    support.make(support.REPO / "shim", f"BUILD={support.SHIM}")
    folder.mkdir()
    for path in (*map(support.SHIM.joinpath, _FRONTS), Path("/sbin/ldconfig")):
        shutil.copy(path, folder)
    return folder


class PluginProcess:
    """`apportion plugin`, started; its log is in `log`."""

    def __init__(
        self,
        host: Host,
        node: str,
        pod: str,
        settings: Mapping[str, str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self.pod = pod
        self.log = host.root / f"plugin-{pod}.log"
        values = {
            "node_name": node,
            "pod_uid": pod,
            "plugins_dir": str(host.plugins),
            "registry_dir": str(host.registry),
            "cdi_dir": str(host.cdi),
            "shares_dir": str(host.shares),
            "driver_root": str(host.driver_root),
            "driver_root_mount": str(host.driver_root),
            "shim_dir": str(host.shim),
            "health_address": "127.0.0.1:0",
            "scan_interval_s": "1",
            "sweep_interval_s": "1",
            "api_timeout_s": "2",
        } | dict(settings)
        environ = {
            key: value
            for key, value in os.environ.items()
            if "PROXY" not in key.upper() and not key.startswith("APPORTION_")
        }
        environ |= {f"APPORTION_{key.upper()}": value for key, value in values.items()}
        environ |= variables or {}
        environ["FAKEGPU_DIR"] = str(host.gpus.state_dir)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "apportion", "plugin"],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def text(self) -> str:
        return self.log.read_text()

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.text()) is not None

    def wait_for(self, pattern: str) -> None:
        """Wait until the log has a line; shows the log if that never happens."""
        until(lambda: self.says(pattern) or self.process.poll() is not None)
        assert self.says(pattern), self.text()

    def signal_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def terminate(self) -> int:
        """SIGTERM; return the exit status."""
        self.signal_stop()
        return self.process.wait(40)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def health(self, service: str) -> str:
        """Return the status on the DRA socket; one that starts on a busy machine makes it late."""
        path = self.host.plugins / DRIVER / f"dra-{self.pod}.sock"
        with grpc.insecure_channel(f"unix:{path}") as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            kind = health_pb2.HealthCheckResponse
            answer: Any = unary(channel, "grpc.health.v1.Health/Check", request, kind, 60)
            return str(kind.ServingStatus.Name(answer.status))

    def rss(self) -> int:
        """Return the resident bytes of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found.group(1)) * 1024
