"""deploy/base on an API server: rights and policies, without what runs."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.node.support.apiserver import ApiServer

NAMESPACE = "apportion-system"
ACCOUNT = "apportion-plugin"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

_BASE = Path(__file__).parents[3] / "deploy/base"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
}


def install(server: ApiServer) -> None:
    """Create all of the base that a pod of the plugin stands on."""
    items = [
        item
        for path in sorted(_BASE.glob("*.yaml"))
        for item in yaml.safe_load_all(path.read_text())
        if item and item.get("kind") in _PATHS
    ]
    assert {item["kind"] for item in items} == set(_PATHS)
    for item in sorted(items, key=lambda item: list(_PATHS).index(item["kind"])):
        server.call("POST", _PATHS[item["kind"]], item)
