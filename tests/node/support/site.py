"""A node with the whole plugin on it: a real API server, a kubelet that is played."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.node.support.apiserver import ApiServer
from tests.node.support.claims import allocated, share
from tests.node.support.kubelet import FakeKubelet, until
from tests.node.support.plugin import Host, PluginProcess

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_FIRST = "gpu-0000-3b-00-0"
_NUMBER = itertools.count(1)


class Site:
    """A node: its folders, its kubelet, its Node at the API server, plugins that start on it."""

    def __init__(
        self, server: ApiServer, node: str, host: Host, kubelet: FakeKubelet, stack: ExitStack
    ) -> None:
        self.server, self.node, self.host, self.kubelet = server, node, host, kubelet
        self._stack = stack

    def start(self, *, url: str = "", pod: str = "", **settings: str) -> PluginProcess:
        """Start a plugin, in a pod of its own unless `pod` says which."""
        settings = {"kubeconfig": str(self.server.kubeconfig(url))} | settings
        process = PluginProcess(self.host, self.node, pod or str(uuid.uuid4()), settings)
        return self._stack.enter_context(process)

    def ready(self, plugin: PluginProcess) -> None:
        """Wait until the plugin is registered, published and says so."""
        until(lambda: bool(self.kubelet.plugins) or plugin.process.poll() is not None, 60)
        assert self.kubelet.plugins, plugin.text()
        until(lambda: plugin.health("readiness") == "SERVING", 60)

    def claim(self, *results: dict[str, Any]) -> dict[str, str]:
        """Return a claim allocated by hand; without results, 4 GiB of the first GPU."""
        name = f"app-claim-{next(_NUMBER)}"
        return allocated(self.server, name, *(results or (share(self.node, _FIRST),)))

    def slices(self) -> list[dict[str, Any]]:
        selector = f"?fieldSelector=spec.nodeName={self.node}"
        return list(self.server.call("GET", _SLICES + selector)["items"])

    def published(self) -> list[str]:
        return [device["name"] for body in self.slices() for device in body["spec"]["devices"]]

    def clean(self) -> bool:
        """Whether no claim has left anything on the node."""
        host = self.host
        return not (host.cdi_specs() or host.share_folders() or host.checkpoints())


@contextmanager
def site_of(server: ApiServer, node: str, folder: Path) -> Iterator[Site]:
    """A site below a folder; what was started on it ends with the block."""
    host = Host(folder)
    with ExitStack() as stack, FakeKubelet(host.registry) as kubelet:
        yield Site(server, node, host, kubelet, stack)


def error_of(answer: Any, claim: dict[str, str]) -> str:
    """Return what an answer says against a claim; empty: nothing."""
    return str(answer.claims[claim["uid"]].error)
