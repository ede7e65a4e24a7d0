"""What of a ShareConfig, and of admin access, a real API server refuses where it is written."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.node.support.apiserver import ApiServer
from tests.node.test_manifests import CREATED, DEPLOY, await_refusal, load, path_of, request

DRIVER = "apportion.gpu"
Object = dict[str, Any]
API, KIND = f"{DRIVER}/v1alpha1", "ShareConfig"
GOOD: tuple[Any, ...] = (
    {"apiVersion": API, "kind": KIND},
    {"apiVersion": API, "kind": KIND, "cores": {}},
    {"apiVersion": API, "kind": KIND, "cores": None},
    {"apiVersion": API, "kind": KIND, "cores": {"policy": "burst"}},
)
BAD: tuple[tuple[Any, str], ...] = (
    ({}, "must have apiVersion apportion.gpu/v1alpha1 and kind ShareConfig"),
    ({"apiVersion": "v1", "kind": KIND}, "must have apiVersion"),
    ({"apiVersion": API, "kind": "GpuConfig"}, "must have apiVersion"),
    ({"apiVersion": API, "kind": ["x"]}, "must have apiVersion"),
    ({"apiVersion": API, "kind": KIND, "colour": "blue"}, "a ShareConfig has no field colour"),
    ({"apiVersion": API, "kind": KIND, "cores": "burst"}, "with the one field policy"),
    ({"apiVersion": API, "kind": KIND, "cores": {"polcy": "cap"}}, "with the one field policy"),
    (
        {"apiVersion": API, "kind": KIND, "cores": {"policy": "max"}},
        "cores.policy in a ShareConfig",
    ),
    ({"apiVersion": API, "kind": KIND, "cores": {"policy": None}}, "cores.policy in a ShareConfig"),
)


def entry(parameters: Any, driver: str = DRIVER) -> Object:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def claim(name: str, *entries: Object) -> Object:
    capacity = {"requests": {"cores": "1", "memory": "1Mi"}}
    exactly = {"deviceClassName": "gpu-share.apportion.gpu", "capacity": capacity}
    devices = {"requests": [{"name": "gpu", "exactly": exactly}], "config": list(entries)}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name}, "spec": {"devices": devices},
    }  # fmt: skip


def template(name: str, *entries: Object) -> Object:
    made = claim(name, *entries)
    return made | {"kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def device_class(name: str, *entries: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": name}, "spec": {"config": list(entries)},
    }  # fmt: skip


MAKERS = (claim, template, device_class)


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    for name in ("default", "admins"):
        labels = {"resource.kubernetes.io/admin-access": "true"} if name == "admins" else {}
        metadata = {"name": name, "labels": labels}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        request(api_server, "POST", "/api/v1/namespaces", body)
    for item in load(DEPLOY / "base/policy-shareconfig.yaml"):
        assert request(api_server, "POST", path_of(item), item)[0] == CREATED
    bad = claim("await", entry({}))
    await_refusal(api_server, path_of(bad), bad)
    return api_server


def tried(server: ApiServer, item: Object) -> str:
    """Ask the API server for an object without making it; return why it is refused."""
    code, answer = request(server, "POST", f"{path_of(item)}?dryRun=All", item)
    return "" if code == CREATED else str(answer["message"])


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_good_config_is_taken(server: ApiServer, make: Any) -> None:
    other = entry({"any": "thing"}, "nic.example.com")
    assert tried(server, make("good", other, *(entry(each) for each in GOOD))) == ""
    assert tried(server, make("none")) == ""
    without = make("without")
    where = without["spec"]
    where = where.get("spec", where)
    where.get("devices", where).pop("config")
    assert tried(server, without) == ""


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("parameters", "words"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_config_is_refused_where_it_is_written(
    server: ApiServer, make: Any, parameters: Any, words: str
) -> None:
    other = entry({"any": "thing"}, "nic.example.com")
    for entries in ((entry(parameters),), (other, entry(GOOD[3]), entry(parameters))):
        said = tried(server, make("bad", *entries))
        assert words in said
        assert "apportion-shareconfig" in said


def test_a_class_is_judged_again_when_it_changes(server: ApiServer) -> None:
    good = device_class("changing.example.com", entry(GOOD[0]))
    assert request(server, "POST", path_of(good), good)[0] == CREATED
    bad = copy.deepcopy(good)
    bad["spec"]["config"] = [entry(BAD[4][0])]
    _code, answer = request(server, "PUT", f"{path_of(good)}/changing.example.com", bad)
    assert "a ShareConfig has no field colour" in answer["message"]


def test_admin_access_is_for_namespaces_of_administrators(server: ApiServer) -> None:
    asked = claim("look")
    asked["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    assert "resource.kubernetes.io/admin-access" in tried(server, asked)
    asked["metadata"]["namespace"] = "admins"
    assert tried(server, asked) == ""
