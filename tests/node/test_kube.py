"""The Kubernetes client against a real API server, and against one on a bad day."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from apportion import kube, slices
from apportion.errors import (
    KubeConflictError,
    KubeExpiredError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from apportion.kube import Kube
from apportion.model import ClaimRef, ClaimUid

from tests.fakes import samples
from tests.node.support.apiserver import ADMIN, NOBODY, ApiServer
from tests.node.support.proxy import Fault, Proxy, containing, every, method

DRIVER = samples.DRIVER


@pytest.fixture
def direct(api_server: ApiServer) -> Kube:
    return kube.connect(str(api_server.kubeconfig()), 10)


@pytest.fixture
def through(api_server: ApiServer, proxy: Proxy) -> Kube:
    return kube.connect(str(api_server.kubeconfig(proxy.url)), 2)


def body(node: str) -> dict[str, object]:
    policy = slices.Policy(driver=DRIVER, node=node)
    (made,) = slices.slices([samples.device()], policy, generation=1)
    return made


def test_a_slice_is_created_listed_updated_and_deleted(direct: Kube, node: str) -> None:
    made = direct.create_slice(body(node))
    assert made["metadata"]["name"].startswith(node)
    assert [s["metadata"]["name"] for s in direct.list_slices(DRIVER, node).items] == [
        made["metadata"]["name"]
    ]
    made["spec"]["pool"]["generation"] = 2
    changed = direct.update_slice(made)
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    with pytest.raises(KubeConflictError):
        direct.update_slice(made)
    with pytest.raises(KubeConflictError):
        direct.delete_slice(made)
    direct.delete_slice(changed)
    with pytest.raises(KubeNotFoundError):
        direct.delete_slice(changed)
    assert direct.list_slices(DRIVER, node).items == ()


def test_slices_of_other_nodes_and_drivers_are_not_listed(direct: Kube, node: str) -> None:
    direct.create_slice(body("elsewhere"))
    assert direct.list_slices(DRIVER, node).items == ()
    assert direct.list_slices("other.gpu").items == ()
    assert len(direct.list_slices(DRIVER).items) >= 1


def test_a_slice_that_the_api_refuses_is_invalid(direct: Kube, node: str) -> None:
    bad = body(node) | {"spec": {"driver": "Not A Name"}}
    with pytest.raises(KubeInvalidError) as raised:
        direct.create_slice(bad)
    assert raised.value.status == 422


def test_a_claim_is_read_by_name_with_all_its_fields(api_server: ApiServer, direct: Kube) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    made = api_server.call(
        "POST",
        claims,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "kube-claim-1"},
            "spec": spec,
        },
    )
    ref = ClaimRef(ClaimUid(made["metadata"]["uid"]), "default", "kube-claim-1")
    assert direct.get_claim(ref) == made
    assert "kube-claim-1" in [found["metadata"]["name"] for found in direct.list_claims()]
    with pytest.raises(KubeNotFoundError) as raised:
        direct.get_claim(ClaimRef(ref.uid, "default", "kube-claim-2"))
    said = '404 resourceclaims.resource.k8s.io "kube-claim-2" not found'
    assert str(raised.value) == f"GET {claims}/kube-claim-2: {said}"


def test_in_a_pod_the_files_of_the_service_account_are_used(
    api_server: ApiServer, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(ADMIN)
    (tmp_path / "ca.crt").write_bytes(api_server.certificate.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api_server.port))
    assert kube.connect("", 10, tmp_path).get_node(node)["metadata"]["name"] == node


def test_a_token_without_rights_is_forbidden(api_server: ApiServer) -> None:
    nobody = kube.connect(str(api_server.kubeconfig(token=NOBODY)), 10)
    with pytest.raises(KubeForbiddenError) as raised:
        nobody.get_node("any")
    assert raised.value.status == 403


def test_an_unknown_token_is_forbidden(api_server: ApiServer) -> None:
    stranger = kube.connect(str(api_server.kubeconfig(token="stranger")), 10)  # noqa: S106
    with pytest.raises(KubeForbiddenError) as raised:
        stranger.get_node("any")
    assert raised.value.status == 401


def test_a_watch_tells_of_changes_from_its_version_on(direct: Kube, node: str) -> None:
    version = direct.list_slices(DRIVER, node).version
    made = direct.create_slice(body(node))
    direct.delete_slice(made)
    direct.create_slice(body("elsewhere"))
    watch = direct.watch_slices(DRIVER, node, version)
    events = iter(watch)
    kinds = [next(events)[0] for _ in range(2)]
    assert kinds == ["ADDED", "DELETED"]
    closer = threading.Timer(0.2, watch.close)
    closer.start()
    assert [kind for kind, _object in events if kind != "BOOKMARK"] == []
    closer.join()


def test_a_version_that_is_gone_is_expired(through: Kube, proxy: Proxy, node: str) -> None:
    proxy.faults = [Fault(containing("watch=true"), status=410)]
    with pytest.raises(KubeExpiredError):
        through.watch_slices(DRIVER, node, "1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, KubeUnavailableError),
        (503, KubeUnavailableError),
        (429, KubeUnavailableError),
        (409, KubeConflictError),
    ],
)
def test_an_answer_is_its_error_and_the_next_call_works(
    through: Kube, proxy: Proxy, node: str, status: int, kind: type[Exception]
) -> None:
    proxy.faults = [Fault(every, status=status, times=1)]
    with pytest.raises(kind, match="played by the test"):
        through.get_node(node)
    assert through.get_node(node)["metadata"]["name"] == node


def test_a_call_is_tried_once_and_never_repeated_by_the_client(
    through: Kube, proxy: Proxy, node: str
) -> None:
    proxy.faults = [Fault(method("POST"))]
    with pytest.raises(KubeUnavailableError):
        through.create_slice(body(node))
    assert proxy.count("POST") == 1


def test_a_server_that_never_answers_ends_the_call(through: Kube, proxy: Proxy, node: str) -> None:
    proxy.faults = [Fault(every, hang=True, times=1)]
    with pytest.raises(KubeUnavailableError, match="does not answer"):
        through.get_node(node)


def test_a_server_that_comes_back_is_used_again(through: Kube, proxy: Proxy, node: str) -> None:
    through.get_node(node)
    proxy.away()
    with pytest.raises(KubeUnavailableError):
        through.get_node(node)
    proxy.back()
    assert through.get_node(node)["metadata"]["name"] == node


def test_many_threads_share_connections(through: Kube, proxy: Proxy, node: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _n: through.get_node(node)["metadata"]["name"], range(160)))
    assert found == [node] * 160
    assert len(proxy.connections) <= 16
