"""Claims of all forms by chance, and the pods that use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.cluster.requests.asked import DRIVER, USABLE, Object, expression
from tests.cluster.requests.site import PROBE, TAINT
from tests.harness.images import PYTHON_IMAGE

UUID = f"{DRIVER}/uuid"
ADMINS = "gpu-admins"
CLASS, BURSTING = "gpu-share.apportion.gpu", "bursting-share.example.com"

CHOSEN = "tests/chosen"
"""Annotation of a claim whose cards must have an attribute: its name and value, as JSON."""

_ATTRIBUTES: tuple[tuple[str, Object], ...] = (
    ("index", {"int": 0}),
    ("productName", {"string": "Tesla T4"}),
    ("resource.kubernetes.io/numaNode", {"int": 1}),
    ("resource.kubernetes.io/pcieRoot", {"string": "pci0000:17"}),
)


def _part(chance: Random) -> Object:
    """Return an amount; sometimes one that no step fits, or only one of the two."""
    cores = chance.choice([1, 5, 10, 15, 20, 30])
    memory = chance.choice(["1Mi", "700Mi", "1Gi", "1500M", "2Gi", "3Gi"])
    amount = {"cores": str(cores), "memory": memory}
    return {"capacity": {"requests": amount}}


def _exactly(chance: Random, **more: Any) -> Object:
    name = BURSTING if chance.random() < 0.2 else CLASS
    return {"deviceClassName": name, **_part(chance), **more}


def _one(chance: Random) -> Object:
    return {"requests": [{"name": "gpu", "exactly": _exactly(chance)}]}


def _whole(chance: Random) -> Object:
    amount = {"cores": "100", "memory": f"{USABLE}Mi"}
    numbers = {"capacity": {"requests": amount}} if chance.random() < 0.5 else {}
    exactly = {"deviceClassName": "gpu.apportion.gpu", **numbers}
    return {"requests": [{"name": "gpu", "exactly": exactly}]}


def _large(chance: Random) -> Object:
    amount = {"cores": str(chance.choice([40, 60])), "memory": "9Gi"}
    exactly = _exactly(chance) | {"capacity": {"requests": amount}}
    return {"requests": [{"name": "gpu", "exactly": exactly}]}


def _several(chance: Random) -> Object:
    names = ["a", "b", "c"][: chance.choice([2, 3])]
    requests = [{"name": name, "exactly": _exactly(chance)} for name in names]
    rule = chance.choice([None, "matchAttribute"] + ["distinctAttribute"] * (len(names) == 2))
    return {"requests": requests} | ({"constraints": [{rule: UUID}]} if rule else {})


def _counted(chance: Random) -> Object:
    exactly = _exactly(chance, allocationMode="ExactCount", count=2)
    return {"requests": [{"name": "gpu", "exactly": exactly}]}


def _all(chance: Random) -> Object:
    return {"requests": [{"name": "gpu", "exactly": _exactly(chance, allocationMode="All")}]}


def _listed(chance: Random) -> Object:
    large = {"name": "large", "deviceClassName": "gpu.apportion.gpu"}
    small = {"name": "small", **_exactly(chance)}
    return {"requests": [{"name": "gpu", "firstAvailable": [large, small]}]}


def _admin(chance: Random) -> Object:
    amount = {"cores": "1", "memory": "1Mi"}
    exactly = _exactly(chance, adminAccess=True) | {"capacity": {"requests": amount}}
    return {"requests": [{"name": "gpu", "exactly": exactly}]}


MAKERS: tuple[tuple[Callable[[Random], Object], int], ...] = (
    (_one, 40), (_several, 14), (_counted, 10), (_large, 10), (_whole, 8), (_listed, 8), (_all, 5),
)  # fmt: skip


def _choices(devices: Object) -> list[tuple[str, Object]]:
    """Return the requests and alternatives of a claim, each with its name."""
    found = []
    for request in devices["requests"]:
        for each in request.get("firstAvailable", [request.get("exactly")]):
            name = f"{request['name']}/{each['name']}" if "name" in each else request["name"]
            found.append((name, each))
    return found


def _config(chance: Random, names: list[str]) -> Object:
    """Return a ShareConfig for all requests of a claim, or for one, or for one alternative."""
    requests = chance.choice([[], [chance.choice(names)], [chance.choice(names).partition("/")[0]]])
    parameters = {
        "apiVersion": f"{DRIVER}/v1alpha1",
        "kind": "ShareConfig",
        "cores": {"policy": chance.choice(["cap", "burst"])},
    }
    return {"requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}}


def _content(chance: Random, namespace: str) -> Object:
    """Return annotations and specification of a claim, as a template has both."""
    makers, weights = zip(*MAKERS, strict=True)
    make = _admin if namespace == ADMINS else chance.choices(makers, weights)[0]
    devices, annotations = make(chance), {}
    choices = _choices(devices)
    if chance.random() < 0.3:
        devices["config"] = [
            _config(chance, [name for name, _ in choices]) for _ in range(chance.choice([1, 2]))
        ]
    for _name, request in choices:
        if chance.random() < 0.3:
            request["tolerations"] = [{"key": TAINT, "operator": "Exists"}]
    if chance.random() < 0.2:
        attribute = chance.choice(_ATTRIBUTES)
        for _name, request in choices:
            request["selectors"] = [{"cel": {"expression": expression(*attribute)}}]
        annotations = {CHOSEN: json.dumps(attribute)}
    return {"metadata": {"annotations": annotations}, "spec": {"devices": devices}}


def _object(kind: str, namespace: str, name: str, content: Object) -> Object:
    metadata = content.get("metadata", {}) | {"namespace": namespace, "name": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, **content, "metadata": metadata}


def group(chance: Random, name: str, claims: int) -> tuple[int, list[Object]]:
    """Return how many claims, `claims` at most, and what makes them and the pods that use them.

    These are claims for one pod or for two, or a template for one or two; or no claim and a pod
    with nvidia.com/gpu, for which the scheduler makes one.
    """
    namespace = ADMINS if chance.random() < 0.08 else "default"
    size = min(claims, chance.choice([0, 1, 1, 2, 2, 3, 4]))
    two = chance.random() < 0.25
    if 0 < size <= 2 and chance.random() < 0.5:
        content = _content(chance, namespace)
        template = _object("ResourceClaimTemplate", namespace, name, {"spec": content})
        entries = [({"name": name, "resourceClaimTemplateName": name}, content)]
        pods = [_pod(chance, f"{name}-p{n}", namespace, entries) for n in range(size)]
        return size, [template, *pods]
    contents = {f"{name}-c{n}": _content(chance, namespace) for n in range(size)}
    made = [_object("ResourceClaim", namespace, *each) for each in contents.items()]
    entries = [({"name": n, "resourceClaimName": n}, each) for n, each in contents.items()]
    names = [f"{name}-p{n}" for n in range(2 if made and two else 1)]
    return max(size, 1), [*made, *(_pod(chance, n, namespace, entries) for n in names)]


def _pod(chance: Random, name: str, namespace: str, entries: list[tuple[Object, Object]]) -> Object:
    """Return a pod whose first container has all of its claims, and others the first one.

    Args:
        chance: says which others there are: an init container, a sidecar, others beside.
        name: its name.
        namespace: where it is.
        entries: of its `resourceClaims`, each with what its claim is.
    """
    everything = [{"name": entry["name"]} for entry, _ in entries]
    first = everything[:1]
    containers = [_container("main", everything)]
    if len(entries) > 1:
        containers.append(_container("second", first))
    if first and chance.random() < 0.25:
        request = chance.choice(entries[0][1]["spec"]["devices"]["requests"])
        containers.append(_container("one-request", [first[0] | {"request": request["name"]}]))
    before = []
    if first and chance.random() < 0.2:
        before.append(_container("before", everything) | {"command": ["sh", "-c", PROBE]})
    if first and chance.random() < 0.15:
        before.append(_container("beside", first) | {"restartPolicy": "Always"})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"by": "chance"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": before,
            "containers": containers,
            "resourceClaims": [entry for entry, _ in entries],
        },
    }


def _container(title: str, claims: list[Object]) -> Object:
    """Return a container with claims; without any it asks for a card as before DRA."""
    return {
        "name": title,
        "image": PYTHON_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"claims": claims} if claims else {"limits": {"nvidia.com/gpu": 1}},
    }
