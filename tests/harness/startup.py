"""The order in which a cluster's programs start, and what each waits for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harness import components, progress
from tests.harness.access import Access, run
from tests.harness.components import (
    APISERVER,
    CONTAINERD,
    CONTROLLER_MANAGER,
    ETCD,
    KUBELET,
    PROXY,
    SCHEDULER,
)
from tests.harness.options import ClusterOptions
from tests.harness.spec import CONTROL_PLANE

_IMPORT_TIMEOUT = 120.0  # seconds
_OK = 200
# See ClusterOptions.node_authorizer_workaround.
_NODES_READ_CLAIMS = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-nodes-read-claims}
rules: [{apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-nodes-read-claims}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: test-nodes-read-claims}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
"""


def start_programs(access: Access, options: ClusterOptions, deadline: float) -> None:
    """Start everything; returns when all nodes are Ready and a pod would be accepted."""
    begin = time.monotonic()
    _start(access, CONTROL_PLANE, ETCD)
    # An API server that finds no etcd tries again a second later.
    access.wait(CONTROL_PLANE, ETCD, lambda: _etcd_ready(access), deadline)
    _start(access, CONTROL_PLANE, APISERVER)
    with ThreadPoolExecutor() as pool:
        nodes = [pool.submit(_start_containerd, access, name, deadline) for name in access.nodes]
        access.wait(CONTROL_PLANE, APISERVER, lambda: _api_ready(access), deadline)
        _start(access, CONTROL_PLANE, CONTROLLER_MANAGER)
        _start(access, CONTROL_PLANE, SCHEDULER)
        for node in nodes:
            node.result()
    for name in access.nodes:
        _start(access, name, KUBELET)
    if options.node_authorizer_workaround:
        argv = access.kubectl_argv("apply", "-f", "-")
        run(argv, input=_NODES_READ_CLAIMS, timeout=max(1.0, deadline - time.monotonic()))
    for name in access.nodes:
        _start_proxy(access, name, deadline)
    for name in access.nodes:
        wait_for_node(access, name, deadline)
    account = "/api/v1/namespaces/default/serviceaccounts/default"
    ready = lambda: access.api_status(account) == _OK  # noqa: E731 one use, one line
    access.wait(CONTROL_PLANE, CONTROLLER_MANAGER, ready, deadline)
    progress.say(f"cluster {options.name} is ready after {time.monotonic() - begin:.1f} s")


def start_node(access: Access, name: str, deadline: float) -> None:
    """Start a node's programs while the control plane runs."""
    _start_containerd(access, name, deadline)
    _start(access, name, KUBELET)
    _start_proxy(access, name, deadline)


def _start_proxy(access: Access, name: str, deadline: float) -> None:
    # kube-proxy without its Node object waits for seconds before it looks again.
    node = f"/api/v1/nodes/{name}"
    access.wait(name, KUBELET, lambda: access.api_status(node) == _OK, deadline)
    _start(access, name, PROXY)


def _start(access: Access, machine: str, component: str) -> None:
    access.ask(machine, op="start", component=component)


def _start_containerd(access: Access, name: str, deadline: float) -> None:
    _start(access, name, CONTAINERD)
    wait_for_containerd(access, name, deadline)


def _etcd_ready(access: Access) -> bool:
    answer = access.ask(CONTROL_PLANE, op="get", url=f"{components.ETCD_URL}/health")
    return bool(answer["status"] == _OK)


def _api_ready(access: Access) -> bool:
    answer = access.ask(CONTROL_PLANE, op="get", url=components.READY_URL)
    return bool(answer["status"] == _OK)


def wait_for_containerd(access: Access, name: str, deadline: float) -> None:
    socket = components.CONTAINERD_SOCKET
    ready = lambda: bool(access.ask(name, op="connect", path=socket)["connected"])  # noqa: E731
    access.wait(name, CONTAINERD, ready, deadline)


def import_image(access: Access, node: str, archive: Path) -> None:
    """Import an archive into a node's containerd, unpacked and named as it says itself."""
    ctr = [access.spec.ctr, "--namespace=k8s.io", "image", "import"]
    # --local: measured 2 s for 160 MB, where the transfer service took 5 to 9.
    argv = access.node_argv(node, [*ctr, "--local", str(archive.absolute())])
    run(argv, timeout=_IMPORT_TIMEOUT, env=access.node_environment(None))


def boot_id(access: Access, node: str) -> str:
    return (Path(access.machine(node).folder) / "boot_id").read_text().strip()


def wait_for_node(access: Access, name: str, deadline: float) -> None:
    """Until this start of kubelet answers, its node is Ready in this boot, and Services work."""
    for component, url in (
        (KUBELET, components.KUBELET_READY_URL),
        (PROXY, components.PROXY_READY_URL),
    ):
        answers = lambda url=url: access.ask(name, op="get", url=url)["status"] == _OK  # noqa: E731
        access.wait(name, component, answers, deadline)
    access.wait(name, KUBELET, lambda: _node_ready(access, name), deadline)
    # The API server may hold a connection to an earlier kubelet; using it once gets rid of it.
    through = f"/api/v1/nodes/{name}/proxy/healthz"
    access.wait(name, KUBELET, lambda: access.api_status(through) == _OK, deadline)
    access.wait(name, KUBELET, lambda: _knows_its_pods(access, name), deadline)


def _node_ready(access: Access, name: str) -> bool:
    node = access.api_get(f"/api/v1/nodes/{name}")
    if node is None:
        return False
    status = node.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status["conditions"])
    return ready and bool(status["nodeInfo"]["bootID"] == boot_id(access, name))


def _knows_its_pods(access: Access, name: str) -> bool:
    """Whether kubelet has heard of all pods of its node; until then it refuses logs and exec."""
    bound = access.api_get(f"/api/v1/pods?fieldSelector=spec.nodeName={name}")
    known = access.api_get(f"/api/v1/nodes/{name}/proxy/pods")
    if bound is None or known is None:
        return False
    there = {pod["metadata"]["uid"] for pod in known.get("items") or []}
    return all(pod["metadata"]["uid"] in there for pod in bound["items"])


def running_containers(access: Access, name: str) -> set[str]:
    """IDs of the containers that the API server believes to run on the node."""
    pods = access.api_get(f"/api/v1/pods?fieldSelector=spec.nodeName={name}") or {"items": []}
    return {
        status["containerID"]
        for pod in pods["items"]
        for status in pod.get("status", {}).get("containerStatuses", [])
        if "running" in status.get("state", {})
    }


def wait_until_gone(access: Access, name: str, containers: set[str], deadline: float) -> None:
    """Until kubelet has reported the end of the containers: pods' status is true again."""
    gone = lambda: not containers & running_containers(access, name)  # noqa: E731
    access.wait(name, KUBELET, gone, deadline)
