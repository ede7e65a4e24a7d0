"""The pods and claims of the examples and of the lab, against each other and the manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apportion import names

from tests.unit.test_deploy import BASE, DEPLOY, KUEUE, LAB, Object, load_all


def _extended_resource() -> str:
    classes = [item["spec"] for _, item in load_all(BASE) if item["kind"] == "DeviceClass"]
    (name,) = [spec["extendedResourceName"] for spec in classes if "extendedResourceName" in spec]
    return str(name)


IMAGE = "python:3.11-slim-bookworm"


def _pod_specs(item: Object) -> Iterator[Object]:
    spec = item.get("spec", {})
    if item["kind"] == "Pod":
        yield spec
    elif item["kind"] == "Job" or ("selector" in spec and "template" in spec):
        yield spec["template"]["spec"]


def _containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def test_pods_use_every_claim_that_they_name_and_no_other() -> None:
    items = list(load_all(DEPLOY / "examples", KUEUE, LAB))
    users = [item for _, item in items if item["kind"] != "DaemonSet"]
    specs = [spec for item in users for spec in _pod_specs(item)]
    assert len(specs) >= 9
    for spec in specs:
        used, extended = set(), False
        for container in _containers(spec):
            assert ":" in container["image"]
            assert container["imagePullPolicy"] == "IfNotPresent"
            resources = container.get("resources", {})
            used |= {claim["name"] for claim in resources.get("claims", [])}
            extended |= resources.get("limits", {}).get(_extended_resource()) == 1
        assert used == {claim["name"] for claim in spec.get("resourceClaims", [])}
        assert used or extended


def test_the_lab_uses_one_image_that_is_there() -> None:
    specs = [
        spec for _, item in load_all(LAB) for spec in _pod_specs(item) if item["kind"] == "Pod"
    ]
    assert {c["image"] for spec in specs for c in _containers(spec)} == {IMAGE}


def _requests(item: Object) -> list[Object]:
    """Return the requests of a claim, alternatives one by one."""
    spec = item["spec"]["spec"] if item["kind"] == "ResourceClaimTemplate" else item["spec"]
    return [
        one
        for request in spec["devices"]["requests"]
        for one in request.get("firstAvailable") or [request["exactly"]]
    ]


@pytest.mark.parametrize("folder", [LAB, KUEUE, DEPLOY / "examples"])
def test_pods_refer_to_claims_and_classes_that_exist(folder: Path) -> None:
    items = [item for _, item in load_all(folder, BASE, KUEUE)]
    have = {(item["kind"], item["metadata"]["name"]) for item in items if "metadata" in item}
    for claim in (c for i in items for s in _pod_specs(i) for c in s.get("resourceClaims", [])):
        kind, name = (
            ("ResourceClaim", claim["resourceClaimName"])
            if "resourceClaimName" in claim
            else ("ResourceClaimTemplate", claim["resourceClaimTemplateName"])
        )
        assert (kind, name) in have
    for item in items:
        if item["kind"] in {"ResourceClaim", "ResourceClaimTemplate"}:
            for request in _requests(item):
                assert ("DeviceClass", request["deviceClassName"]) in have


def test_requests_name_only_capacities_that_are_published() -> None:
    for path, item in load_all(LAB, KUEUE, DEPLOY / "examples"):
        if item["kind"] in {"ResourceClaim", "ResourceClaimTemplate"}:
            for request in _requests(item):
                capacity = request.get("capacity", {}).get("requests", {})
                assert set(capacity) <= {names.CORES, names.MEMORY}, path
