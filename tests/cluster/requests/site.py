"""Two nodes with two cards each: forms of requests are run there, and what pods see is compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from apportion.enforce.limits import FIRST_LINE
from apportion.model import WHOLE
from apportion.quantity import MIB

from tests.cluster.requests import asked
from tests.cluster.requests.asked import DRIVER, Held, Object
from tests.cluster.requests.state import Cards, State, add, containers
from tests.cluster.support import DAEMONSET, SYSTEM
from tests.fakes import sysfs
from tests.fakes.fakegpu import DEFAULT_GPUS, T4, FakeDriver
from tests.fakes.fakegpu import build as build_fakes
from tests.harness import Cluster, ClusterOptions, NodeOptions
from tests.harness.images import PYTHON_IMAGE, build_project_image, python_image
from tests.lab import testbed
from tests.lab.walk import Walk

EXAMPLES = testbed.REPO / "deploy/examples"

TAINT = "apportion.gpu/remap-failed"

# Says all that a container has of GPUs, and `end` where that is nothing.
PROBE = (
    "{ nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader,nounits; "
    "cat /run/apportion/shares/*/limits; ls -d /dev/nvidia* /run/apportion; } 2>/dev/null; echo end"
)
_AT_ONCE = 4
_LEFT_S = 60.0
_READY = {"deployment": "condition=Available", "job": "jsonpath={.status.ready}=1"}

CARDS_EACH = 2
_CARDS = {
    "node-a": DEFAULT_GPUS,
    "node-b": (
        T4(uuid="GPU-2b0f3c1d-7a9e-4d52-8c46-90e1f5a7b3d8", pci="00000000:18:00.0"),
        T4(uuid="GPU-f4e8d1a6-03b7-4c9f-a25d-6e7081c2b394", pci="00000000:1A:00.0"),
    ),
}
# Root complex and NUMA node. A processor each on node-a; on node-b one has both below a switch.
PLACES = {
    DEFAULT_GPUS[0].uuid: ("pci0000:3a", 0),
    DEFAULT_GPUS[1].uuid: ("pci0000:ae", 1),
    _CARDS["node-b"][0].uuid: ("pci0000:17", 0),
    _CARDS["node-b"][1].uuid: ("pci0000:17", 0),
}


class Site:
    """A cluster with the plugin of the overlay for the GPU Operator; its nodes have two cards each.

    Attributes:
        drivers: of each node.
    """

    def __init__(self, cluster: Cluster, drivers: Mapping[str, FakeDriver]) -> None:
        self.cluster = cluster
        self.walk = Walk(cluster)
        self.drivers = drivers

    def all_cards(self) -> list[tuple[FakeDriver, int]]:
        """Return all cards, as driver of the node and place there."""
        return [(driver, at) for driver in self.drivers.values() for at in range(CARDS_EACH)]

    def taint(self, cards: Sequence[tuple[FakeDriver, int]]) -> None:
        """Let a fault give cards the taint TAINT, which no other has."""
        for driver, card in cards:
            driver.set_option(card, "remap", "1")  # it can, as T4s do not
            driver.set_option(card, "remap_failed", "1")
        self.walk.until("tainted", self._tainted, len(cards))

    def heal(self, cards: Sequence[tuple[FakeDriver, int]]) -> None:
        """Take the taint away again."""
        for driver, card in cards:
            driver.set_option(card, "remap_failed", "0")
        self.walk.until("tainted", self._tainted, 0)

    def _tainted(self) -> int:
        devices = self.state().devices.values()
        return sum(TAINT in [t["key"] for t in d.get("taints", ())] for d in devices)

    def unschedulable(self, pod: str) -> bool:
        """Return whether the scheduler has tried a pod and found no place."""
        conditions = self.get("pod", pod)["status"].get("conditions", [])
        return any(c.get("reason") == "Unschedulable" for c in conditions)

    def get(self, *args: str) -> Any:
        return self.walk.get(*args)

    def pods(self, *args: str) -> list[Object]:
        return list(self.get("pods", *args)["items"])

    def state(self) -> State:
        """Return what is there now of claims, classes and devices."""
        items = self.get("resourceclaims,deviceclasses,resourceslices", "--all-namespaces")["items"]
        claims: dict[tuple[str, str], Object] = {}
        classes: dict[str, Object] = {}
        devices: dict[tuple[str, str], Object] = {}
        for item in items:
            meta, spec = item["metadata"], item["spec"]
            if item["kind"] == "ResourceClaim":
                claims[meta["namespace"], meta["name"]] = item
            elif item["kind"] == "DeviceClass":
                classes[meta["name"]] = item
            elif spec["driver"] == DRIVER:
                devices |= {(spec["pool"]["name"], d["name"]): d for d in spec["devices"]}
        return State(claims, classes, devices)

    def seen(self, pod: Object) -> dict[str, Cards]:
        """Return what each container sees: it is asked, or its log where it has ended.

        What nvidia-smi says of a card and what the limits files say of its shares is the same.
        """
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        ended = {
            status["name"]
            for status in pod["status"].get("initContainerStatuses", [])
            if "terminated" in status["state"]
        }

        def ask(container: str) -> tuple[str, Cards]:
            where = ("-n", namespace, name, "-c", container)
            asking = ("exec", *where, "--", "sh", "-c", PROBE)
            words = ("logs", *where) if container in ended else asking
            return container, _read(self.cluster.kubectl(*words).stdout)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(pool.map(ask, [each["name"] for each in containers(pod)]))

    def cuda(self, pod: str, *words: str, container: str = "main", held: bool = False) -> str:
        """Ask for memory by the CUDA driver and return its answer.

        Args:
            pod: in the default namespace.
            words: of tests/fakes/tools/cudamem.c.
            container: of the pod.
            held: the process stays as long as the container.
        """
        program = str(testbed.BUILD / "fakes/bin/cudamem")
        self.walk.kubectl("cp", program, f"{pod}:/tmp/cudamem", "-c", container)
        script = '/tmp/cudamem "$@" 2>&1'
        if held:
            script = (
                '/tmp/cudamem "$@" --hold 600 >/tmp/held 2>&1 & '
                "until grep -s cuMemAlloc /tmp/held; do sleep 0.1; done"
            )
        where = ("exec", pod, "-c", container, "--", "sh", "-c", script, "cudamem", *words)
        return self.cluster.kubectl(*where, check=False).stdout

    def leftovers(self) -> list[str]:
        """Return what claims have left on the nodes."""
        folders = (
            "/var/run/cdi", "/run/apportion/shares", f"/var/lib/kubelet/plugins/{DRIVER}/claims",
            f"/var/lib/kubelet/plugins/{DRIVER}/told",
        )  # fmt: skip
        found = []
        for node in self.drivers:
            words = ["find", *folders, "-mindepth", "1", "-type", "f"]
            text = self.cluster.node_exec(words, node=node, check=False).stdout
            found += [f"{node}:{path}" for path in text.split() if not path.endswith("driver.json")]
        return found

    def left_of(self, claims: list[Object]) -> list[str]:
        """Return what is left of claims when they have had time to go."""
        uids = [claim["metadata"]["uid"] for claim in claims]
        limit = time.monotonic() + _LEFT_S
        while True:
            found = [path for path in self.leftovers() if any(uid in path for uid in uids)]
            if not found or time.monotonic() > limit:
                return found
            time.sleep(0.2)

    @contextmanager
    def running(self, manifest: str, *pods: str, namespace: str = "default") -> Iterator[None]:
        """Run a manifest, wait until its pods are ready, and delete it after the block."""
        self.cluster.apply(manifest)
        try:
            for pod in pods:
                ready = _READY.get(pod.partition("/")[0], "condition=Ready")
                self.cluster.wait_for(ready, pod, namespace=namespace, timeout=100)
            yield
        finally:
            self.delete(manifest)

    def delete(self, manifest: str) -> None:
        self.cluster.kubectl(
            "delete", "-f", "-", "--ignore-not-found", "--timeout=60s", input=manifest
        )


def example(name: str, change: Callable[[Object], None] = lambda _item: None) -> str:
    """Return a file of deploy/examples with the one image that is there.

    What would end stays, or says what it sees before it does.
    """
    items = [item for item in yaml.safe_load_all((EXAMPLES / name).read_text()) if item]
    for item in items:
        for spec in _pod_specs(item):
            for container in spec["containers"]:
                ours = container["image"] == PYTHON_IMAGE.removeprefix("docker.io/library/")
                if not ours or item["kind"] == "Job":
                    container |= {"image": PYTHON_IMAGE, "command": ["sleep", "infinity"]}
                    container.pop("args", None)
            for container in spec.get("initContainers", []):
                if "restartPolicy" not in container:
                    first = container["command"]
                    container["command"] = ["sh", "-ec", f'"$@"; {PROBE}', "sh", *first]
        change(item)
    return "\n---\n".join(json.dumps(item) for item in items)


def options(folder: Path) -> ClusterOptions:
    """Return two nodes with two cards each."""
    root = build_fakes(testbed.BUILD / "fakes") / "rootfs"
    nodes = []
    for name, cards in _CARDS.items():
        FakeDriver(folder / name).write_config(cards, device_nodes="required")
        for card in cards:
            complex_, node = PLACES[card.uuid]
            address = card.pci.removeprefix("0000").lower()
            sysfs.add_device(folder / name / "sys", address, root=complex_, numa=str(node))
        minors = tuple(range(len(cards)))
        nodes.append(NodeOptions(name, root, fakegpu_dir=folder / name, gpu_minors=minors))
    images = (python_image(), build_project_image(testbed.REPO, testbed.PROJECT_IMAGE))
    return ClusterOptions(name="requests", nodes=tuple(nodes), images=images)


def drivers(folder: Path) -> dict[str, FakeDriver]:
    """Return the driver of each node."""
    return {name: FakeDriver(folder / name) for name in _CARDS}


def install(site: Site) -> None:
    """Install the plugin, with the sysfs that says where the cards are."""
    site.walk.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
    there = "APPORTION_SYSFS=/run/fakegpu/sys"
    site.walk.kubectl("set", "env", "-n", SYSTEM, DAEMONSET, there)
    site.walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=120s", timeout=130)


def _pod_specs(item: Object) -> Iterator[Object]:
    spec = item.get("spec", {})
    if item["kind"] == "Pod":
        yield spec
    elif "template" in spec:
        yield spec["template"]["spec"]


def _read(text: str) -> Cards:
    """Return what PROBE said, in the order of nvidia-smi, which is CUDA's here."""
    lines = text.splitlines()
    assert lines[-1] == "end", text
    sizes = dict(line.split(", ") for line in lines if line.startswith("GPU-"))
    found: Cards = {}
    for part in text.split(f"{FIRST_LINE}\n")[1:]:
        share = dict(line.split(" ") for line in part.splitlines() if " " in line)
        memory, cores = int(share["memory"]), int(share["cores"])
        held = Held(memory // MIB, cores, (share["cores-policy"],))
        add(found, share["uuid"], asked.WHOLE_CARD if memory == WHOLE.memory else held)
    assert {uuid: str(held.mib) for uuid, held in found.items()} == sizes, text
    # To be given nothing is more than that nothing answers.
    assert found or lines == ["end"], text
    return {uuid: found[uuid] for uuid in sizes}
