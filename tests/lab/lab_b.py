"""Lab B: whole cards under Kueue's quota, and then shares. Each step checks what it shows.

Steps build on each other and run in the order of STEPS, on a node with two simulated T4s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.harness import kueue
from tests.lab import traces
from tests.lab.testbed import REPO
from tests.lab.walk import Walk

LAB = "deploy/overlays/kueue-lab"
DRIVER = "apportion.gpu"
SYSTEM = "apportion-system"
DAEMONSET = "daemonset/apportion-plugin"
KUEUE = ("-n", "kueue-system", "deployment/kueue-controller-manager")
NAMESPACE = "p3-dra-demo"
HERE = ("-n", NAMESPACE)
JOB_A = "kueue-dra-running-a"
JOB_B = "kueue-dra-pending-b"
FLAVOR = "p3-t4"
NO_QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in "
    f"flavor {FLAVOR}, 1 more needed"
)
TRAINING = "deploy/examples/kueue-training.yaml"
QUEUE = {"kueue.x-k8s.io/queue-name": "p3-share-queue"}
LISTED = "GPU 0: Tesla T4 (UUID: GPU-"
UNMAPPED = "DeviceClass gpu.nvidia.com is not mapped in DRA configuration"


def _apply(walk: Walk, *files: str) -> None:
    for name in files:
        walk.kubectl("apply", "-f", str(REPO / LAB / name))


def workload(walk: Walk, job: str, namespace: str = NAMESPACE) -> Any:
    """Return the Workload that Kueue made for a Job; {} while there is none."""
    uid = walk.get("job", "-n", namespace, job)["metadata"]["uid"]
    label = f"kueue.x-k8s.io/job-uid={uid}"
    found = walk.get("workloads", "-n", namespace, "-l", label)["items"]
    return found[0] if found else {}


def waits_for(walk: Walk, job: str, words: str, namespace: str = NAMESPACE) -> None:
    """Check that a Job's Workload has no quota, and that Kueue says these words of it."""

    def waits() -> bool:
        status, message = condition(workload(walk, job, namespace), "QuotaReserved")
        return status == "False" and words in message

    walk.until(f"{job} waits: {words}", waits, True)


def condition(item: Any, kind: str) -> tuple[str, str]:
    """Return status and message of a condition of an object; two empty words without one."""
    for found in item.get("status", {}).get("conditions", []):
        if found["type"] == kind:
            return found["status"], found["message"]
    return "", ""


def usage(walk: Walk, queue: str) -> dict[str, str]:
    """Return what a ClusterQueue has given, by resource, without what it has not."""
    (flavor,) = walk.get("clusterqueue", queue)["status"]["flavorsReservation"]
    return {item["name"]: item["total"] for item in flavor["resources"] if item["total"] != "0"}


def admitted(walk: Walk, job: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return flavors and usage of a Job's admitted Workload, without cpu and memory."""
    (pods,) = workload(walk, job)["status"]["admission"]["podSetAssignments"]
    ordinary = {"cpu", "memory"}
    flavors = {name: value for name, value in pods["flavors"].items() if name not in ordinary}
    used = {name: value for name, value in pods["resourceUsage"].items() if name not in ordinary}
    return flavors, used


def pod_phase(walk: Walk, job: str) -> str:
    """Return the phase of a Job's one pod; empty while there is none."""
    found = walk.get("pods", *HERE, "-l", f"batch.kubernetes.io/job-name={job}")["items"]
    return str(found[0]["status"]["phase"]) if found else ""


def suspended(walk: Walk, job: str) -> bool:
    """Return whether a Job is suspended."""
    return bool(walk.get("job", *HERE, job)["spec"]["suspend"])


def _log(walk: Walk, job: str) -> list[str]:
    return walk.cluster.kubectl("logs", *HERE, f"job/{job}").stdout.splitlines()


def end(walk: Walk, job: str) -> None:
    """Tell a Job's program to end, and wait until Kubernetes calls the Job complete."""
    # The container may be gone before kubectl has heard how the command in it ended.
    walk.kubectl("exec", *HERE, f"job/{job}", "--", "sh", "-c", "kill 1", ok=None)
    walk.kubectl("wait", *HERE, "--for=condition=Complete", f"job/{job}", "--timeout=60s")


def _configure(walk: Walk, name: str) -> None:
    _apply(walk, name)
    walk.kubectl("rollout", "restart", *KUEUE)
    walk.kubectl("rollout", "status", *KUEUE, "--timeout=180s", timeout=200)


def install(walk: Walk) -> None:
    """Apply the driver, and Kueue as its release is."""
    walk.say("Install the driver, and Kueue")
    walk.kubectl("apply", "-k", str(REPO / "deploy/overlays/gpu-operator"))
    walk.kubectl("apply", "--server-side", "-f", str(kueue.manifests()))
    walk.kubectl("rollout", "status", "-n", SYSTEM, DAEMONSET, "--timeout=100s")
    walk.kubectl("rollout", "status", *KUEUE, "--timeout=180s", timeout=200)
    walk.until("slices published", lambda: len(walk.get("resourceslices")["items"]), 1, timeout=30)


def missing_mapping(walk: Walk) -> None:
    """Kueue that knows nothing of the DeviceClass admits nothing that asks for it."""
    walk.say("A queue for one card; and a Job, while Kueue knows nothing of the DeviceClass")
    _apply(walk, "setup.yaml", "job-running-a.yaml")
    waits_for(walk, JOB_A, UNMAPPED)
    walk.check("job A is suspended", suspended(walk, JOB_A), True)
    walk.kubectl("get", "workloads", *HERE)


def first_job(walk: Walk) -> None:
    """With the mapping job A runs on a whole card."""
    walk.say("Tell Kueue what the DeviceClass counts as")
    _configure(walk, "kueue-config.yaml")
    walk.until("job A's pod", lambda: pod_phase(walk, JOB_A), "Running", timeout=90)
    walk.kubectl("get", "jobs,workloads,resourceclaims", *HERE)
    (claim,) = walk.get("resourceclaims", *HERE)["items"]
    state = [key in claim["status"] for key in ("allocation", "reservedFor")]
    walk.check("job A's claim allocated,reserved", state, [True, True])
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    slice_ = walk.get("resourceslices")["items"][0]
    card = next(d for d in slice_["spec"]["devices"] if d["name"] == result["device"])
    everything = {name: amount["value"] for name, amount in card["capacity"].items()}
    walk.check("job A has the whole card", result["consumedCapacity"], everything)
    uuid = card["attributes"]["uuid"]["string"]
    walk.until(
        "job A's log",
        lambda: _log(walk, JOB_A),
        [f"GPU 0: Tesla T4 (UUID: {uuid})", "running-a"],
    )
    walk.kubectl("logs", *HERE, f"job/{JOB_A}")
    walk.check("Workload A is admitted", condition(workload(walk, JOB_A), "Admitted")[0], "True")
    flavors, used = admitted(walk, JOB_A)
    walk.check("Workload A's flavor", flavors, {"nvidia.com/gpu": FLAVOR})
    walk.check("Workload A's usage", used, {"nvidia.com/gpu": "1"})
    walk.check("the queue's usage", usage(walk, "p3-dra-cq")["nvidia.com/gpu"], "1")


def second_job(walk: Walk) -> None:
    """Job B waits for the quota, though a card is free, and runs when A has ended."""
    walk.say("A second Job is over the quota")
    _apply(walk, "job-pending-b.yaml")
    walk.until(
        "Workload B",
        lambda: condition(workload(walk, JOB_B), "QuotaReserved"),
        ("False", NO_QUOTA),
    )
    walk.check("job B is suspended", suspended(walk, JOB_B), True)
    walk.kubectl("get", "jobs", *HERE)
    walk.say("When the first ends, the second runs")
    end(walk, JOB_A)
    walk.until("job B's pod", lambda: pod_phase(walk, JOB_B), "Running", timeout=90)
    walk.check("Workload A is finished", condition(workload(walk, JOB_A), "Finished")[0], "True")
    walk.check("Workload B's usage", admitted(walk, JOB_B)[1], {"nvidia.com/gpu": "1"})


def shares(walk: Walk) -> None:
    """A queue of 8Gi and 60 cores admits two shares of 4Gi and 30 cores, beside the whole card."""
    walk.say("A second queue, for shares: 8Gi and 60 cores")
    walk.kubectl("label", "namespace", NAMESPACE, "apportion.gpu/counted-shares=")
    _apply(walk, "policy-shares.yaml", "shares.yaml")
    _configure(walk, "kueue-config-shares.yaml")
    _apply(walk, "shares-jobs.yaml")
    walk.until("shares by state", lambda: _states(walk), {"Running": 2, "suspended": 1}, timeout=90)
    walk.until(
        "the share queue's usage",
        lambda: _shares_used(walk),
        {"apportion.gpu/cores": "60", "apportion.gpu/memory": "8Gi"},
    )
    first, _ = _by_state(walk, "Running")
    share = {"apportion.gpu/cores": "30", "apportion.gpu/memory": "4Gi"}
    walk.check("a share's Workload", admitted(walk, first), (dict.fromkeys(share, FLAVOR), share))
    walk.until("the third lacks", lambda: _lacks(walk), ["30 cores", "4Gi memory"])
    walk.until("a share's card in MiB", lambda: _card_size(walk, first), ["4097"])
    walk.kubectl("logs", *HERE, f"job/{first}")
    walk.check("the whole card is another one", len(_cards_of_claims(walk)), 2)


def _card_size(walk: Walk, job: str) -> list[str]:
    """Return the size of the one card that nvidia-smi showed the Job."""
    return re.findall(r"MiB / +(\d+)MiB", "".join(_log(walk, job)))


def one_quota(walk: Walk) -> None:
    """Each of the two quotas holds by itself."""
    walk.say("Each of the two quotas holds by itself")
    _nominal(walk, 2, "16Gi")
    walk.until("with more memory the third lacks", lambda: _lacks(walk), ["30 cores"])
    _nominal(walk, 2, "8Gi")
    _nominal(walk, 3, "90")
    walk.until("with more cores the third lacks", lambda: _lacks(walk), ["4Gi memory"])
    _nominal(walk, 2, "12Gi")
    walk.until("with both", lambda: _states(walk), {"Running": 3}, timeout=90)


def _states(walk: Walk) -> dict[str, int]:
    """Return how many of the three Jobs with shares are in which state."""
    states = [_state(walk, f"share-{number}") for number in (1, 2, 3)]
    return {state: states.count(state) for state in sorted(set(states))}


def _state(walk: Walk, job: str) -> str:
    return "suspended" if suspended(walk, job) else pod_phase(walk, job)


def _by_state(walk: Walk, state: str) -> list[str]:
    return [job for job in ("share-1", "share-2", "share-3") if _state(walk, job) == state]


def _shares_used(walk: Walk) -> dict[str, str]:
    return {name: total for name, total in usage(walk, "p3-share-cq").items() if "gpu/" in name}


def _lacks(walk: Walk) -> list[str]:
    """Return of which quotas the Job that waits lacks how much, in Kueue's words."""
    (job,) = _by_state(walk, "suspended")
    message = condition(workload(walk, job), "QuotaReserved")[1]
    found = re.findall(
        r"unused quota for apportion\.gpu/(\w+) in flavor p3-t4, (\w+) more needed", message
    )
    return sorted(f"{amount} {name}" for name, amount in found)


def _nominal(walk: Walk, place: int, amount: str) -> None:
    """Change one quota of the queue for shares."""
    path = f"/spec/resourceGroups/0/flavors/0/resources/{place}/nominalQuota"
    change = json.dumps([{"op": "replace", "path": path, "value": amount}])
    walk.kubectl("patch", "clusterqueue", "p3-share-cq", "--type=json", "-p", change)


def _cards_of_claims(walk: Walk) -> set[str]:
    return {
        result["device"]
        for claim in walk.get("resourceclaims", *HERE)["items"]
        for result in claim["status"]["allocation"]["devices"]["results"]
    }


def uncounted(walk: Walk) -> None:
    """A share that would take cores, or memory, past the quota is refused when it is asked for."""
    walk.say("What would not be counted is refused")
    for place, name, amount in ((0, "cores", "60"), (1, "memory", "8Gi")):
        greedy = _template(walk, "greedy")
        _asked(greedy, place)["capacity"]["requests"][name] = amount
        refused = walk.cluster.kubectl("create", "-f", "-", input=json.dumps(greedy), check=False)
        walk.check(f"{amount} {name} past the quota", "it must ask for" in refused.stderr, True)


def not_understood(walk: Walk) -> None:
    """What Kueue cannot count is not admitted, and Kueue says why."""
    walk.say("What Kueue cannot count it does not admit")
    job = walk.get("job", *HERE, "share-1")
    choice, large = (_template(walk, name) for name in ("choice", "large"))
    request = choice["spec"]["spec"]["devices"]["requests"][0]
    request["firstAvailable"] = [request.pop("exactly") | {"name": "first"}]
    _asked(large, 0)["capacity"]["requests"]["memory"] = "16Gi"
    walk.cluster.apply([choice, large])
    for name, claim, words in (
        ("by-name", {"resourceClaimName": "mine"}, "does not support use of resource claims"),
        ("choice", {"resourceClaimTemplateName": "choice"}, "FirstAvailable device selection"),
        ("large", {"resourceClaimTemplateName": "large"}, "cannot be satisfied by any"),
    ):
        walk.cluster.apply([_job_with(job, name, claim)])
        waits_for(walk, name, words)
        walk.kubectl("delete", *HERE, f"job/{name}")


def _template(walk: Walk, name: str) -> dict[str, Any]:
    """Return the lab's claim template for a share under another name."""
    found = walk.get("resourceclaimtemplate", *HERE, "share-4gi-30")
    kept = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    return kept | {"metadata": {"namespace": NAMESPACE, "name": name}}


def _asked(template: dict[str, Any], place: int) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["spec"]["devices"]["requests"][place]["exactly"]
    return found


def _job_with(job: Any, name: str, claim: dict[str, str]) -> dict[str, Any]:
    """Return a Job like another one, with another claim."""
    pod = job["spec"]["template"]["spec"]
    spec = {
        "containers": pod["containers"],
        "resourceClaims": [{"name": "share", **claim}],
        "restartPolicy": "Never",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": QUEUE},
        "spec": {"suspend": True, "template": {"spec": spec}},
    }


def by_limit(walk: Walk) -> None:
    """A Job with nvidia.com/gpu: 1 and no claim counts in the same quota, and gets a card."""
    walk.say("A Job as before DRA: nvidia.com/gpu: 1, no claim")
    _apply(walk, "job-by-limit.yaml")
    waits_for(walk, "by-limit", "nvidia.com/gpu in flavor p3-t4, 1 more needed")
    end(walk, JOB_B)
    walk.until("by-limit's pod", lambda: pod_phase(walk, "by-limit"), "Running", timeout=90)
    walk.check("by-limit's usage", admitted(walk, "by-limit")[1], {"nvidia.com/gpu": "1"})
    walk.until(
        "by-limit's log",
        lambda: [line[: len(LISTED)] for line in _log(walk, "by-limit")],
        [LISTED],
    )


def training(walk: Walk) -> None:
    """The example's training Job waits for a share's quota, runs, and ends."""
    walk.say("A training Job with a share, when another has ended")
    example = str(REPO / TRAINING)
    walk.kubectl("apply", "-f", example)
    waits_for(walk, "training", "2Gi more needed", "default")
    end(walk, "share-1")
    walk.kubectl("wait", "--for=condition=Complete", "job/training", "--timeout=90s")
    log = walk.kubectl("logs", "job/training").splitlines()
    walk.check("training's card", log, ["Tesla T4, 2049 MiB"] * 3)
    walk.kubectl("delete", "-f", example)


def clean_up(walk: Walk) -> None:
    """Deleting everything leaves nothing of the driver, of the queues and of Kueue."""
    walk.say("Delete everything")
    walk.kubectl("delete", "namespace", NAMESPACE, timeout=180)
    traces.shares_gone(walk, DRIVER)
    ours = ("shares.yaml", "policy-shares.yaml", "setup.yaml")
    files = [f"--filename={REPO / LAB / name}" for name in ours]
    walk.kubectl("delete", *files, "--ignore-not-found")
    # Its namespace takes some of what the manifest names with it.
    walk.kubectl("delete", "--ignore-not-found", "-f", str(kueue.manifests()), timeout=180)
    walk.kubectl("delete", "-k", str(REPO / "deploy/overlays/gpu-operator"), timeout=180)
    traces.plugin_gone(walk)


Step = Callable[[Walk], None]

STEPS: tuple[Step, ...] = (
    install,
    missing_mapping,
    first_job,
    second_job,
    shares,
    one_quota,
    uncounted,
    not_understood,
    by_limit,
    training,
    clean_up,
    traces.slice_gone,
)
DEMO = STEPS[:-1]
