"""Lab A: shares of one Tesla T4 through claims. Each step is a function that checks what it shows.

Steps build on each other and run in the order of STEPS, on a node with two simulated T4s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.lab import traces
from tests.lab.testbed import BUILD, REPO
from tests.lab.walk import Walk

LAB = "deploy/overlays/hami-lab"
DRIVER = "hami-core-gpu.project-hami.io"
PLUGIN_NAMESPACE = "hami-dra-driver"
DAEMONSET = "hami-dra-driver-kubelet-plugin"
NAMESPACE = "test-dra"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

CAPACITY = {
    "cores": {
        "value": "100",
        "requestPolicy": {
            "default": "100",
            "validRange": {"min": "0", "max": "100", "step": "1"},
        },
    },
    "memory": {
        "value": "15Gi",
        "requestPolicy": {
            "default": "15Gi",
            "validRange": {"min": "1Mi", "max": "15Gi", "step": "1Mi"},
        },
    },
}


def _apply(walk: Walk, *files: str) -> None:
    for name in files:
        walk.kubectl("apply", "-f", str(REPO / LAB / name))


def _in_pod(walk: Walk, pod: str, *argv: str, ok: bool = True) -> str:
    return walk.kubectl("exec", "-n", NAMESPACE, pod, "--", *argv, ok=ok)


def claims(walk: Walk) -> dict[str, Any]:
    """Return the lab's claims by the name of the pod or claim they belong to."""
    found = walk.get("resourceclaims", "-n", NAMESPACE)["items"]
    return {claim["metadata"]["name"]: claim for claim in found}


def state(claim: Any) -> str:
    """Return a claim's state in kubectl's words."""
    status = claim.get("status", {})
    words = [
        w for w, k in (("allocated", "allocation"), ("reserved", "reservedFor")) if k in status
    ]
    return ",".join(words) or "pending"


def results(claim: Any) -> list[dict[str, Any]]:
    """Return the allocation results of a claim."""
    return list(claim["status"]["allocation"]["devices"]["results"])


def _template_claim(walk: Walk) -> Any:
    return next(c for name, c in claims(walk).items() if name.startswith("pod-tpl-1-"))


def install(walk: Walk) -> None:
    """Apply the DaemonSet as the GPU Operator's users do."""
    walk.say("Install the driver (the GPU Operator keeps NVIDIA's at /run/nvidia/driver)")
    _apply(walk, "rbac.yaml", "ds-gpu-operator.yaml")
    walk.kubectl("rollout", "status", "-n", PLUGIN_NAMESPACE, f"daemonset/{DAEMONSET}")


def look_at_the_slice(walk: Walk) -> None:
    """The published capacity and attributes are those of the lab."""
    walk.say("Look at the slice")
    walk.until("slices published", lambda: len(walk.get("resourceslices")["items"]), 1, timeout=30)
    walk.kubectl("get", "resourceslices")
    walk.kubectl("get", "resourceslices", "-o", "jsonpath={.items[0].spec.devices[0].capacity}")
    spec = walk.get("resourceslices")["items"][0]["spec"]
    first = spec["devices"][0]
    attributes = {name: next(iter(v.values())) for name, v in first["attributes"].items()}
    walk.check("driver", spec["driver"], DRIVER)
    walk.check("pool", spec["pool"]["name"], spec["nodeName"])
    walk.check("devices", [d["name"] for d in spec["devices"]], ["hami-gpu-0", "hami-gpu-1"])
    walk.check("capacity", first["capacity"], CAPACITY)
    walk.check("allowMultipleAllocations", first["allowMultipleAllocations"], True)
    walk.check("productName", attributes["productName"], "Tesla T4")
    walk.check("architecture", attributes["architecture"], "Turing")
    walk.check("cudaComputeCapability", attributes["cudaComputeCapability"], "7.5.0")
    walk.check("uuid begins with", str(attributes["uuid"])[:4], "GPU-")


def first_pod(walk: Walk) -> None:
    """A pod with a claim of 4Gi and 30 cores gets a share."""
    walk.say("A claim of 4Gi and 30 cores, and a pod that uses it")
    _apply(walk, "setup.yaml", "pod-0.yaml")
    walk.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/pod-0", "--timeout=60s")
    claim = claims(walk)["single-gpu-0"]
    walk.check("single-gpu-0", state(claim), "allocated,reserved")
    (result,) = results(claim)
    walk.check("consumed", result["consumedCapacity"], {"cores": "30", "memory": "4Gi"})
    walk.check("a shareID", bool(result.get("shareID")), True)


def look_inside(walk: Walk) -> None:
    """nvidia-smi in the pod shows the share, not the card."""
    walk.say("Inside the pod the card is as large as the share")
    table = _in_pod(walk, "pod-0", "nvidia-smi")
    walk.check(
        "0MiB / 4096MiB in pod-0", "0MiB /   4096MiB" in table or "0MiB / 4096MiB" in table, True
    )


def second_pod(walk: Walk) -> None:
    """A pod with a template's claim shares the same card."""
    walk.say("A second pod, by a ResourceClaimTemplate, on the same card")
    _apply(walk, "pod-tpl-1.yaml")
    walk.kubectl("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/pod-tpl-1", "--timeout=60s")
    walk.kubectl("get", "resourceclaims", "-n", NAMESPACE)
    ours, other = claims(walk)["single-gpu-0"], _template_claim(walk)
    walk.check("both claims", [state(ours), state(other)], ["allocated,reserved"] * 2)
    mine, theirs = results(ours)[0], results(other)[0]
    walk.check("one device", theirs["device"], mine["device"])
    walk.check("different shareIDs", mine["shareID"] != theirs["shareID"], True)
    walk.check("double-gpu-0, no pod uses it", state(claims(walk)["double-gpu-0"]), "pending")


def one_card(walk: Walk) -> None:
    """Both pods name the same UUID."""
    walk.say("Both pods are on one physical card")
    query = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
    uuids = [_in_pod(walk, pod, *query) for pod in ("pod-0", "pod-tpl-1")]
    walk.check("UUIDs equal", uuids[0] == uuids[1] and uuids[0].startswith("GPU-"), True)


def exceed(walk: Walk) -> None:
    """4.1 GiB are refused while the neighbour holds its share; nothing in the pod lifts it."""
    walk.say("A program that wants more than its share is refused with the driver's own error")
    program = str(BUILD / "fakes/bin/cudamem")
    for pod in ("pod-0", "pod-tpl-1"):
        walk.kubectl("cp", program, f"{NAMESPACE}/{pod}:/tmp/cudamem")
    walk.kubectl(
        "exec",
        "-n",
        NAMESPACE,
        "pod-tpl-1",
        "--",
        "sh",
        "-c",
        "/tmp/cudamem alloc all --hold 600 >/tmp/held 2>&1 & "
        "until grep -qs cuMemAlloc /tmp/held; do sleep 0.1; done; cat /tmp/held",
    )
    held = _in_pod(
        walk,
        "pod-tpl-1",
        "nvidia-smi",
        "--query-gpu=memory.used,memory.total",
        "--format=csv,noheader",
    )
    walk.check("pod-tpl-1 holds its share", held, "4096 MiB, 4096 MiB")
    refused = _in_pod(walk, "pod-0", "/tmp/cudamem", "alloc", "4198MiB", ok=False)
    walk.check("4.1 GiB in pod-0 refused", OUT_OF_MEMORY in refused, True)
    granted = "CUDA_SUCCESS" in _in_pod(walk, "pod-0", "/tmp/cudamem", "alloc", "all")
    walk.check("all of pod-0's 4 GiB granted beside its neighbour's", granted, True)
    context = _in_pod(walk, "pod-0", "/tmp/cudamem", "alloc", "4GiB", ok=False)
    walk.check("4 GiB beside the context in pod-0 refused", OUT_OF_MEMORY in context, True)
    empty = _in_pod(walk, "pod-0", "env", "-i", "/tmp/cudamem", "alloc", "4198MiB", ok=False)
    walk.check("4.1 GiB with an empty environment refused", OUT_OF_MEMORY in empty, True)
    together = _in_pod(
        walk,
        "pod-0",
        "sh",
        "-c",
        "/tmp/cudamem alloc 3GiB --hold 60 >/tmp/first 2>&1 & p=$!; "
        "until grep -qs cuMemAlloc /tmp/first; do sleep 0.1; done; "
        "/tmp/cudamem alloc 1100MiB; r=$?; kill $p; exit $r",
        ok=False,
    )
    walk.check("3 GiB and 1.1 GiB in two processes refused", OUT_OF_MEMORY in together, True)


def two_cards(walk: Walk) -> None:
    """A claim with two requests gets two cards, each with its own limit."""
    walk.say("A claim over two cards, each with its own limit")
    _apply(walk, "pod-double.yaml")
    walk.kubectl(
        "wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/pod-double", "--timeout=60s"
    )
    found = results(claims(walk)["double-gpu-0"])
    walk.check("two devices", len({result["device"] for result in found}), 2)
    totals = _in_pod(
        walk,
        "pod-double",
        "nvidia-smi",
        "--query-gpu=uuid,memory.total",
        "--format=csv,noheader,nounits",
    )
    seen = {uuid: int(mib) for uuid, mib in (line.split(", ") for line in totals.splitlines())}
    cards = _uuids(walk)
    walk.check("each limit as claimed", seen, {cards[r["device"]]: _mib(r) for r in found})
    walk.kubectl("cp", str(BUILD / "fakes/bin/cudamem"), f"{NAMESPACE}/pod-double:/tmp/cudamem")
    for place, limit in enumerate(seen.values()):
        over = ("/tmp/cudamem", "--device", str(place), "alloc", f"{limit + 100}MiB")
        refused = _in_pod(walk, "pod-double", *over, ok=False)
        walk.check(f"{limit + 100} MiB on card {place} refused", OUT_OF_MEMORY in refused, True)


def _uuids(walk: Walk) -> dict[str, str]:
    """Return the UUID of each published device."""
    devices = walk.get("resourceslices")["items"][0]["spec"]["devices"]
    return {device["name"]: device["attributes"]["uuid"]["string"] for device in devices}


def _mib(result: dict[str, Any]) -> int:
    quantity = result["consumedCapacity"]["memory"]
    return int(quantity[:-2]) * {"Gi": 1024, "Mi": 1}[quantity[-2:]]


def too_much(walk: Walk) -> None:
    """A claim over what is left of every card stays pending."""
    walk.say("A claim over the card's remaining capacity is never allocated")
    _apply(walk, "pod-over.yaml")
    walk.until(
        "the scheduler says why",
        lambda: (
            "cannot allocate all claims"
            in walk.cluster.kubectl("describe", "pod", "-n", NAMESPACE, "pod-too-much").stdout
        ),
        expected=True,
    )
    walk.check("too-much-gpu-0", state(claims(walk)["too-much-gpu-0"]), "pending")


def status(walk: Walk) -> None:
    """`apportion status` names who holds what."""
    walk.say("Who holds what")
    where = ("exec", "-n", PLUGIN_NAMESPACE, f"daemonset/{DAEMONSET}", "--", "apportion", "status")
    walk.kubectl(*where)
    report = json.loads(walk.cluster.kubectl(*where, "-o", "json").stdout)
    used = {
        (share["pods"][0], card["device"]): share["memoryUsedBytes"]
        for card in report["cards"]
        for share in card["shares"]
    }
    walk.check("shares in status", len(used), 4)
    device = results(_template_claim(walk))[0]["device"]
    walk.check("only pod-tpl-1 holds memory", used.pop(("pod-tpl-1", device)), 4 << 30)
    walk.check("the others hold", sorted(set(used.values())), [0])
    walk.say("The same for all nodes, from an administrator's desk")
    walk.until(
        "told in the claims' status",
        lambda: sorted(
            share["memoryUsedBytes"] or 0
            for card in walk.status(DRIVER)["cards"]
            for share in card["shares"]
        ),
        [0, 0, 0, 4 << 30],
    )
    walk.apportion("status", "--cluster", "--driver-name", DRIVER)


def clean_up(walk: Walk) -> None:
    """Deleting everything leaves no CDI file, no share folder, no socket, no slice."""
    walk.say("Delete everything")
    walk.kubectl("delete", "namespace", NAMESPACE, timeout=180)
    traces.shares_gone(walk, DRIVER)
    walk.kubectl("delete", "-f", str(REPO / LAB / "setup.yaml"), "--ignore-not-found")
    walk.kubectl(
        "delete",
        "-f",
        str(REPO / LAB / "ds-gpu-operator.yaml"),
        "-f",
        str(REPO / LAB / "rbac.yaml"),
        timeout=180,
    )
    traces.plugin_gone(walk)


Step = Callable[[Walk], None]

STEPS: tuple[Step, ...] = (
    install,
    look_at_the_slice,
    first_pod,
    look_inside,
    second_pod,
    one_card,
    exceed,
    two_cards,
    too_much,
    status,
    clean_up,
    traces.slice_gone,
)
DEMO = STEPS[:-1]
"""The demo does not sit out kubelet's half minute; the tests do."""
