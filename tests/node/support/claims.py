"""ResourceClaims at the API server, allocated by hand where a scheduler would have done it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from tests.node.support.apiserver import ApiServer

_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
DRIVER = "apportion.gpu"


def share(
    node: str, device: str, *, request: str = "gpu", memory: str = "4Gi", cores: str = "30"
) -> dict[str, Any]:
    """One result of an allocation."""
    return {
        "request": request,
        "driver": DRIVER,
        "pool": node,
        "device": device,
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": memory, "cores": cores},
    }


def bursting(*requests: str) -> dict[str, Any]:
    """One configuration of an allocation: the shares of these requests may use what is idle."""
    parameters = {
        "apiVersion": "apportion.gpu/v1alpha1",
        "kind": "ShareConfig",
        "cores": {"policy": "burst"},
    }
    opaque = {"driver": DRIVER, "parameters": parameters}
    return {"source": "FromClaim", "requests": list(requests), "opaque": opaque}


def allocated(
    server: ApiServer, name: str, *results: dict[str, Any], config: Sequence[dict[str, Any]] = ()
) -> dict[str, str]:
    """Create a claim with this allocation; return it as kubelet names it."""
    requests = [
        {"name": result["request"], "exactly": {"deviceClassName": "gpu-share.apportion.gpu"}}
        for result in results
    ]
    made = server.call(
        "POST",
        _CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": requests}},
        },
    )
    by_name = {"key": "metadata.name", "operator": "In", "values": [results[0]["pool"]]}
    made["status"] = {
        "allocation": {
            "devices": {"results": list(results), "config": list(config)},
            # As the scheduler writes it for devices of one node.
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [by_name]}]},
        },
        "reservedFor": [{"resource": "pods", "name": f"pod-of-{name}", "uid": str(uuid.uuid4())}],
    }
    server.call("PUT", f"{_CLAIMS}/{name}/status", made)
    return {"uid": made["metadata"]["uid"], "namespace": "default", "name": name}


def told(server: ApiServer, name: str) -> list[dict[str, Any]]:
    """Return what a claim is told of its devices."""
    return list(server.call("GET", f"{_CLAIMS}/{name}")["status"].get("devices", ()))


def deallocated(server: ApiServer, name: str) -> None:
    """Take a claim's allocation away, as a controller does for one that no pod uses."""
    path = f"{_CLAIMS}/{name}"
    found = server.call("GET", path)
    for field in ("allocation", "reservedFor"):
        found["status"].pop(field, None)
    server.call("PUT", f"{path}/status", found)


def deleted(server: ApiServer, name: str) -> None:
    """Take a claim away as if nobody had held it."""
    path = f"{_CLAIMS}/{name}"
    found = server.call("GET", path)
    found["status"] = {}
    server.call("PUT", f"{path}/status", found)
    server.call("DELETE", path)
