"""The plugin with the ServiceAccount, rights and admission policy of deploy/base, and no more."""

from __future__ import annotations

import urllib.error
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from apportion import kube, slices
from apportion.errors import KubeForbiddenError, KubeInvalidError

from tests.fakes import samples
from tests.node.support import base
from tests.node.support.apiserver import ApiServer, add_node, token_of_pod
from tests.node.support.claims import DRIVER, allocated, deleted, share, told
from tests.node.support.kubelet import FakeKubelet, until
from tests.node.support.plugin import Host, PluginProcess

_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
_NODE = "own-node"


@pytest.fixture(scope="module")
def server(
    kubernetes_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """An API server on which only the base is installed."""
    with ApiServer(kubernetes_programs, tmp_path_factory.mktemp("rights")) as running:
        base.install(running)
        add_node(running, _NODE)
        yield running


@pytest.fixture(scope="module")
def kubeconfig(server: ApiServer) -> str:
    token = token_of_pod(server, _NODE, base.ACCOUNT, base.NAMESPACE)
    return str(server.kubeconfig(token=token))


def _published(server: ApiServer) -> list[dict[str, Any]]:
    return list(server.call("GET", _SLICES)["items"])


def _events(server: ApiServer, name: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    return list(server.call("GET", path)["items"])


def _reasons(server: ApiServer, name: str) -> set[str]:
    return {event["reason"] for event in _events(server, name)}


def test_the_rights_suffice_for_all_that_the_plugin_does(
    server: ApiServer, kubeconfig: str, short: Path
) -> None:
    host = Host(short)
    with (
        FakeKubelet(host.registry) as kubelet,
        PluginProcess(host, _NODE, str(uuid.uuid4()), {"kubeconfig": kubeconfig}) as plugin,
    ):
        kubelet.wait_for(1)
        until(lambda: plugin.health("readiness") == "SERVING")
        (found,) = _published(server)
        found["spec"]["devices"].pop()
        server.call("PUT", f"{_SLICES}/{found['metadata']['name']}", found)
        until(lambda: len(_published(server)[0]["spec"]["devices"]) == 2)
        server.call("DELETE", f"{_SLICES}/{found['metadata']['name']}")
        until(lambda: len(_published(server)) == 1)
        claim = allocated(server, "right", share(_NODE, "gpu-0000-3b-00-0"))
        assert kubelet.prepare(claim).claims[claim["uid"]].error == ""
        until(lambda: len(told(server, "right")) == 1)
        wrong = allocated(server, "wrong", share(_NODE, "gpu-elsewhere"))
        refused = kubelet.prepare(wrong).claims[wrong["uid"]].error
        until(lambda: [event["message"] for event in _events(server, "pod-of-wrong")] == [refused])
        # Its claim is known by what is left of it.
        (checkpoint,) = host.checkpoints()
        checkpoint.write_bytes(checkpoint.read_bytes() + b"x")
        until(lambda: _reasons(server, _NODE) == {"RecordDamaged"})
        until(lambda: _reasons(server, "right") == {"RecordDamaged"})
        deleted(server, "right")
        until(lambda: not host.checkpoints())
        (kept,) = _published(server)
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        more = kind | {"metadata": {"name": "of-nobody"}, "spec": kept["spec"]}
        server.call("POST", _SLICES, more)
        until(lambda: len(_published(server)) == 1)
        until(lambda: not list((host.plugins / DRIVER / "told").iterdir()))
        assert "forbidden" not in plugin.text()
        assert plugin.terminate() == 0


def test_slices_of_another_node_are_refused(server: ApiServer, kubeconfig: str) -> None:
    api = kube.connect(kubeconfig, 10)
    policy = slices.Policy(driver=samples.DRIVER, node="other-node")
    (body,) = slices.slices([samples.device()], policy, generation=1)

    def refused() -> bool:
        """A policy is in force some moments after it was made."""
        try:
            made = api.create_slice(body)
        except (KubeForbiddenError, KubeInvalidError):
            return True
        server.call("DELETE", f"{_SLICES}/{made['metadata']['name']}")
        return False

    until(refused)


def test_of_the_classes_only_that_for_whole_cards_can_be_read(
    server: ApiServer, kubeconfig: str
) -> None:
    name = f"gpu.{DRIVER}"
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    spec = {"extendedResourceName": "nvidia.com/gpu"}
    server.call("POST", _CLASSES, kind | {"metadata": {"name": name}, "spec": spec})
    api = kube.connect(kubeconfig, 10)
    assert api.get_class(name)["spec"] == spec
    with pytest.raises(KubeForbiddenError):
        api.get_class(f"gpu-share.{DRIVER}")
    server.call("DELETE", f"{_CLASSES}/{name}")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/secrets",
        "/api/v1/pods",
        "/api/v1/nodes",
        "/apis/resource.k8s.io/v1/resourceclaims",
        _CLASSES,
    ],
)
def test_nothing_else_can_be_listed(server: ApiServer, kubeconfig: str, path: str) -> None:
    token = yaml.safe_load(Path(kubeconfig).read_text())["users"][0]["user"]["token"]
    with pytest.raises(urllib.error.HTTPError, match="403") as raised:
        server.call("GET", path, token=token)
    raised.value.close()
