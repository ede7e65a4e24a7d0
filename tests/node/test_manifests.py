"""The manifests at a real API server: every field is known, and the policy does what it says."""

from __future__ import annotations

import copy
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.support.apiserver import ADMIN, ApiServer

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FILES = sorted(
    path for path in DEPLOY.rglob("*.yaml") if path.name != "kustomization.yaml"
)  # kustomize reads the others
# Of Kueue's own kinds this server knows nothing; tests/cluster/test_labs.py applies them.
KUEUE = "kueue.x-k8s.io/"
PLURALS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"
ACCOUNT = "system:serviceaccount:apportion-system:apportion-plugin"
NODE_NAME = "authentication.kubernetes.io/node-name"
CREATED = 201

Object = dict[str, Any]


def load(path: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]


def path_of(item: Object) -> str:
    return PLURALS[item["kind"]].format(item["metadata"].get("namespace", "default"))


def request(
    server: ApiServer,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Object]:
    """Return status and answer, whatever the status."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        server.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        | dict(headers or {}),
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=server.tls())
    )
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """The API server with all namespaces of the manifests, and the base's rights and policy."""
    items = [item for path in FILES for item in load(path)]
    named = {item["metadata"].get("namespace", "default") for item in items}
    namespaces: dict[str, Object] = {
        name: {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in named
    } | {item["metadata"]["name"]: item for item in items if item["kind"] == "Namespace"}
    for name, body in sorted(namespaces.items()):
        request(api_server, "POST", "/api/v1/namespaces", body)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        request(api_server, "POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    for name in ("rbac.yaml", "policy.yaml", "policy-pods.yaml"):
        for item in load(DEPLOY / "base" / name):
            assert request(api_server, "POST", path_of(item), item)[0] == CREATED
    await_refusal(api_server, SLICES, _slice("await", "x"), _as("another-node"))
    await_refusal(api_server, PODS, _pod(["/run/apportion"]))
    return api_server


def await_refusal(
    server: ApiServer, path: str, body: Object, headers: Mapping[str, str] | None = None
) -> None:
    """Return once a policy is in force: admission reads it from a watch of its own."""
    deadline = time.monotonic() + 30
    while request(server, "POST", f"{path}?dryRun=All", body, headers)[0] == CREATED:
        assert time.monotonic() < deadline, "the policy never came into force"
        time.sleep(0.1)


def _as(node: str) -> dict[str, str]:
    """Be the plugin's pod on a node; empty: a token that names none."""
    extra = {"Impersonate-Extra-" + urllib.parse.quote(NODE_NAME, safe=""): node} if node else {}
    return {"Impersonate-User": ACCOUNT, "Impersonate-Group": "system:authenticated"} | extra


def _slice(name: str, node: str, **changes: Any) -> Object:
    spec = {
        "driver": "apportion.gpu",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    } | changes
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_field_is_known_and_valid(server: ApiServer, path: Path) -> None:
    for item in load(path):
        if item["apiVersion"].startswith(KUEUE):
            continue
        body = copy.deepcopy(item)
        # Under a name of its own: some are there already.
        body["metadata"]["name"] = "try-" + body["metadata"]["name"]
        if body["kind"] == "DaemonSet":
            # This server runs without --allow-privileged.
            (container,) = body["spec"]["template"]["spec"]["containers"]
            assert container["securityContext"].pop("privileged") is True
        query = "?dryRun=All&fieldValidation=Strict"
        status, answer = request(server, "POST", path_of(item) + query, body)
        assert status == CREATED, answer


def test_a_plugin_creates_changes_and_deletes_slices_of_its_node(server: ApiServer) -> None:
    status, made = request(server, "POST", SLICES, _slice("own", "n1"), _as("n1"))
    assert status == CREATED, made
    made["spec"]["pool"]["generation"] = 2
    assert request(server, "PUT", f"{SLICES}/own", made, _as("n1"))[0] == 200
    assert request(server, "DELETE", f"{SLICES}/own", None, _as("n1"))[0] == 200


POOL_2 = {"name": "n2", "generation": 1, "resourceSliceCount": 1}
BY_NAME = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
ONE_NODE = {"nodeSelectorTerms": [{"matchFields": [BY_NAME]}]}
EACH_DEVICE = {
    "perDeviceNodeSelection": True,
    "devices": [{"name": "gpu-0", "allNodes": True}],
}
NOT_OURS = "with that spec.nodeName"


@pytest.mark.parametrize(
    ("node", "changes", "words"),
    [
        ("n1", {"nodeName": "n2", "pool": POOL_2}, NOT_OURS),
        ("n1", {"nodeName": None, "allNodes": True}, NOT_OURS),
        ("n1", {"nodeName": None, "nodeSelector": ONE_NODE}, NOT_OURS),
        ("n1", {"nodeName": None, **EACH_DEVICE}, NOT_OURS),
        ("n1", {"pool": POOL_2}, "the pool of a slice must be named as its node"),
        ("n1", {"driver": "gpu.example.com"}, "another driver"),
        ("", {}, "the token names no node"),
    ],
)
def test_i14_what_a_plugin_may_not_create(
    server: ApiServer, node: str, changes: Object, words: str
) -> None:
    body = _slice("refused", "n1", **changes)
    status, answer = request(server, "POST", f"{SLICES}?dryRun=All", body, _as(node))
    assert status == 422, answer
    assert words in answer["message"]


def test_i14_a_plugin_cannot_touch_what_is_another_node_s(server: ApiServer) -> None:
    status, made = request(server, "POST", SLICES, _slice("theirs", "n2"), _as("n2"))
    assert status == CREATED, made
    try:
        assert request(server, "DELETE", f"{SLICES}/theirs", None, _as("n1"))[0] == 422
        changed = copy.deepcopy(made)
        changed["spec"]["pool"]["generation"] = 9
        assert request(server, "PUT", f"{SLICES}/theirs", changed, _as("n1"))[0] == 422
        # RBAC has no word for it, so it must not be there at all.
        assert request(server, "DELETE", SLICES, None, _as("n2"))[0] == 403
    finally:
        assert request(server, "DELETE", f"{SLICES}/theirs")[0] == 200


def test_others_are_none_of_the_policy_s_business(server: ApiServer) -> None:
    body = _slice("admin", "n3", driver="gpu.example.com")
    assert request(server, "POST", f"{SLICES}?dryRun=All", body)[0] == CREATED


def test_the_account_may_what_the_role_says_and_no_more(server: ApiServer) -> None:
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    assert request(server, "GET", f"{claims}/none", None, _as("n1"))[0] == 404
    assert request(server, "GET", claims, None, _as("n1"))[0] == 403
    assert request(server, "GET", "/api/v1/nodes/none", None, _as("n1"))[0] == 404
    assert request(server, "GET", "/api/v1/nodes", None, _as("n1"))[0] == 403
    assert request(server, "GET", "/api/v1/secrets", None, _as("n1"))[0] == 403


CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}


def _pod(mounts: list[str], *, kind: str = "containers", **spec: Any) -> Object:
    """Return a pod with volumes mounted in a container of the kind; by default it has a claim."""
    container: Object = {"name": "main", "image": "none"}
    mounting = container | {
        "name": "mounting",
        "volumeMounts": [
            {"name": f"v{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(mounts)
        ],
    }
    volumes = [{"name": f"v{n}", "emptyDir": {}} for n in range(len(mounts))]
    body: Object = {"containers": [container], "volumes": volumes} | (spec or CLAIM)
    body[kind] = [*body.get(kind, []), mounting]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mounts"}, "spec": body}


def _extended(resource: str, kind: str = "containers") -> Object:
    """Return what of a pod's spec asks for one device by an extended resource."""
    resources = {"limits": {resource: "1"}}
    return {kind: [{"name": "main", "image": "none", "resources": resources}]}


def _scratch(source: Object) -> Object:
    """Return a pod with a claim and a volume at /var/run that is not mounted read-only."""
    body = _pod(["/var/run"])
    mounting = body["spec"]["containers"][1]
    del mounting["volumeMounts"][0]["readOnly"]
    body["spec"]["volumes"] = [{"name": "v0"} | source]
    return body


BELOW = "may not mount a volume at or below /run/apportion"
ABOVE = "may not mount a volume at /, /run, /var or /var/run"


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/run/apportion", BELOW),
        ("/run/apportion/", BELOW),
        ("/run/apportion/shares/mine", BELOW),
        ("/run/apportion/driver/libcuda.so.1", BELOW),
        ("//run/.//apportion/shares", BELOW),
        ("run/apportion/shares", BELOW),
        ("/var/run/apportion/shares", BELOW),
        ("/run/apportion/\nshares", BELOW),
        ("/run/x/../apportion", '".." in the path'),
        ("/run", ABOVE),
        ("/run/", ABOVE),
        ("/", ABOVE),
        ("/var", ABOVE),
        ("/var/./run", ABOVE),
    ],
)
def test_a_pod_with_a_claim_mounts_nothing_where_limits_lie(
    server: ApiServer, path: str, words: str, kind: str
) -> None:
    body = _pod(["/data", path], kind=kind)
    status, answer = request(server, "POST", f"{PODS}?dryRun=All", body)
    assert status == 422, answer
    assert words in answer["message"]


@pytest.mark.parametrize(
    "spec",
    [
        _extended("nvidia.com/gpu"),
        _extended("deviceclass.resource.kubernetes.io/gpu.apportion.gpu"),
        _extended("example.com/gpu", "initContainers")
        | {"containers": [{"name": "other", "image": "none"}]},
    ],
)
def test_an_extended_resource_asks_for_devices_as_a_claim_does(
    server: ApiServer, spec: Object
) -> None:
    body = _pod(["/run/apportion/shares/mine"], **copy.deepcopy(spec))
    status, answer = request(server, "POST", f"{PODS}?dryRun=All", body)
    assert status == 422, answer
    assert BELOW in answer["message"]


@pytest.mark.parametrize(
    "body",
    [
        _pod(["/data", "/run/app", "/var/run/secrets/x", "/run/apportion2", "/srv/run/apportion"]),
        _pod([]),
        _pod(["/run"], **_extended("cpu")),
        _scratch({"emptyDir": {}}),
        _pod(["/run/apportion", "/var"], hostNetwork=False),
    ],
    ids=["elsewhere", "nothing", "no-device", "scratch", "no-resources"],
)
def test_other_pods_are_none_of_the_policy_s_business(server: ApiServer, body: Object) -> None:
    status, answer = request(server, "POST", f"{PODS}?dryRun=All", body)
    assert status == CREATED, answer


@pytest.mark.parametrize(
    "source", [{"configMap": {"name": "forged"}}, {"hostPath": {"path": "/srv"}}]
)
def test_what_may_be_read_only_is_no_scratch(server: ApiServer, source: Object) -> None:
    status, answer = request(server, "POST", f"{PODS}?dryRun=All", _scratch(source))
    assert status == 422, answer
    assert ABOVE in answer["message"]


def test_ephemeral_containers_are_looked_at_as_well(server: ApiServer) -> None:
    status, made = request(server, "POST", PODS, _pod(["/data"]))
    assert status == CREATED, made
    path = f"{PODS}/mounts"
    try:
        for at, expected in (("/run/apportion/shares/mine", 422), ("/debug", 200)):
            changed = copy.deepcopy(made)
            mount = {"name": "v0", "mountPath": at}
            changed["spec"]["ephemeralContainers"] = [
                {"name": "debug", "image": "none", "volumeMounts": [mount]}
            ]
            status, answer = request(server, "PUT", f"{path}/ephemeralcontainers", changed)
            assert status == expected, answer
    finally:
        assert request(server, "DELETE", f"{path}?gracePeriodSeconds=0")[0] == 200
