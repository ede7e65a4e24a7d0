"""Kubelet as a plugin sees it: finds sockets in plugins_registry, registers, calls DRA.

As in pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra of Kubernetes 1.36: a socket that appears is
asked with GetInfo and told the result; one that goes is deregistered; of several plugins of one
driver the last one is called; the newest version that both know is used.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import grpc
from apportion.kubelet.pb import dra_v1_pb2, dra_v1beta1_pb2
from apportion.kubelet.pb import pluginregistration_v1_pb2 as registration

_POLL_S = 0.02
_CALL_S = 45.0  # kubelet's own limit
APIS = {"v1.DRAPlugin": dra_v1_pb2, "v1beta1.DRAPlugin": dra_v1beta1_pb2}


@dataclass
class Plugin:
    """One registered plugin."""

    socket: Path
    identity: tuple[int, int]
    info: registration.PluginInfo
    channel: grpc.Channel = field(repr=False)


class FakeKubelet:
    """Watches `registry`; versions: what this kubelet knows, the newest first."""

    def __init__(self, registry: Path, versions: Sequence[str] = tuple(APIS)) -> None:
        self.registry = registry
        self.versions = tuple(versions)
        self.plugins: list[Plugin] = []
        self.refusals: list[str] = []
        self.registrations = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._threads = ThreadPoolExecutor(2)
        self._refused: set[tuple[Path, tuple[int, int]]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._threads.shutdown()
        for plugin in self.plugins:
            plugin.channel.close()

    def wait_for(self, plugins: int) -> None:
        until(lambda: len(self.plugins) == plugins)

    def plugins_on_disk(self) -> list[Path]:
        return sorted(self._sockets())

    def in_background(self, action: Callable[[], Any]) -> Future[Any]:
        return self._threads.submit(action)

    def prepare(self, *claims: dict[str, str], version: str = "") -> Any:
        """Call NodePrepareResources of the plugin registered last; return the response."""
        return self._call("NodePrepareResources", claims, version)

    def unprepare(self, *claims: dict[str, str], version: str = "") -> Any:
        return self._call("NodeUnprepareResources", claims, version)

    def _call(self, method: str, claims: Sequence[dict[str, str]], version: str) -> Any:
        # A plugin logs its registration before this side has noted it.
        until(lambda: bool(self.plugins))
        plugin = self.plugins[-1]
        chosen = version or next(v for v in self.versions if v in plugin.info.supported_versions)
        return call(plugin.channel, APIS[chosen], method, claims)

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_S):
            if not self.registry.is_dir():
                continue
            found = set(self._sockets().items())
            for plugin in list(self.plugins):
                if (plugin.socket, plugin.identity) not in found:
                    self.plugins.remove(plugin)
                    plugin.channel.close()
            known = {(plugin.socket, plugin.identity) for plugin in self.plugins}
            for path, identity in sorted(found - known - self._refused):
                self._register(path, identity)

    def _sockets(self) -> dict[Path, tuple[int, int]]:
        """Return what tells a socket from one made later at its path: inode and its birth."""
        found = {}
        for path in self.registry.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if stat.S_ISSOCK(status.st_mode) and not path.name.startswith("."):
                found[path] = (status.st_ino, status.st_mtime_ns)
        return found

    def _register(self, path: Path, identity: tuple[int, int]) -> None:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            try:
                info = unary(
                    channel,
                    "pluginregistration.Registration/GetInfo",
                    registration.InfoRequest(),
                    registration.PluginInfo,
                    1.0,
                )
                error = self._validate(info)
                status = registration.RegistrationStatus(plugin_registered=not error, error=error)
                unary(
                    channel,
                    "pluginregistration.Registration/NotifyRegistrationStatus",
                    status,
                    registration.RegistrationStatusResponse,
                    5.0,
                )
            except grpc.RpcError:
                return  # tried again with the next look, as kubelet does
        if error:
            self.refusals.append(error)
            self._refused.add((path, identity))
            return
        self.registrations += 1
        endpoint = grpc.insecure_channel(f"unix:{info.endpoint}")
        self.plugins.append(Plugin(path, identity, info, endpoint))

    def _validate(self, info: registration.PluginInfo) -> str:
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}"
        if not set(self.versions) & set(info.supported_versions):
            return f"none of {list(info.supported_versions)} is supported"
        if any(plugin.info.endpoint == info.endpoint for plugin in self.plugins):
            return f"endpoint {info.endpoint} already registered"
        return ""


def call(
    channel: grpc.Channel, api: ModuleType, method: str, claims: Sequence[dict[str, str]]
) -> Any:
    """Call a method of the DRA service in the version of `api`."""
    request = getattr(api, f"{method}Request")(claims=[api.Claim(**claim) for claim in claims])
    name = f"{api.DESCRIPTOR.package}.DRAPlugin/{method}"
    return unary(channel, name, request, getattr(api, f"{method}Response"), _CALL_S)


def unary(channel: grpc.Channel, name: str, request: Any, response: Any, timeout: float) -> Any:
    return channel.unary_unary(
        f"/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )(request, timeout=timeout, wait_for_ready=True)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; the limit is for the case that it never comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)
