"""`python -m bench.soak [--minutes 30]`: pods with shares come and go on a real Kubernetes.

Each pod asks for a share by a template, takes half of its memory and leaves; some are deleted while
they run. Every ten seconds the plugin's memory, threads and descriptors are noted, at the end what
is left of the claims, and what kubelet said went wrong. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import Cluster
from tests.lab import testbed

_SYSTEM = "apportion-system"
_PODS = 6  # at a time; three of 4 GiB fit on each of two T4s
_SAMPLE_S = 10.0
_LEFT = (
    "find /var/lib/kubelet/plugins/apportion.gpu/claims /run/apportion/shares/apportion.gpu"
    " -mindepth 1; ls /var/run/cdi | grep claim_ || true"
)
_READ = (
    "for p in $(pgrep -f 'apportion plugin'); do"
    " echo $(grep -E 'VmRSS|Threads' /proc/$p/status | tr -dc '0-9 \\n')"
    " $(ls /proc/$p/fd | wc -l); done"
)
_KUBELET_WRONG = re.compile(
    r"(Prepare|Unprepare|NodePrepareResources|NodeUnprepareResources)[^\n]*(failed|error)",
    re.IGNORECASE,
)
_PROGRAM = (
    "import ctypes, time; c = ctypes.CDLL('libcuda.so.1'); x = ctypes.c_void_p();"
    " p = ctypes.c_uint64(); assert c.cuInit(0) == 0;"
    " assert c.cuDevicePrimaryCtxRetain(ctypes.byref(x), 0) == 0; c.cuCtxSetCurrent(x);"
    " assert c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(2 << 30)) == 0;"
    " assert c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30)) == 2;"
    " time.sleep({seconds})"
)
_TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: share}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu-share.apportion.gpu
          capacity: {requests: {cores: "30", memory: 4Gi}}
"""


@dataclass
class Seen:
    """What was noted on the way."""

    pods: int = 0
    failed: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


def _pod(number: int) -> dict[str, Any]:
    program = _PROGRAM.format(seconds=1 + number % 5)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"soak-{number}", "labels": {"app": "soak"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "python:3.11-slim-bookworm",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", program],
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}],
        },
    }


def _round(cluster: Cluster, seen: Seen) -> None:
    """Replace the pods that have ended; delete one in ten that has not."""
    items = cluster.kubectl_json("get", "pods", "-l", "app=soak")["items"]
    living = [item for item in items if "deletionTimestamp" not in item["metadata"]]
    gone = []
    for item in living:
        name, phase = item["metadata"]["name"], item["status"].get("phase")
        if phase == "Failed":
            seen.failed.append(f"{name}: {json.dumps(item['status'].get('containerStatuses'))}")
        early = int(name.rpartition("-")[2]) % 10 == 0 and phase == "Running"
        if phase in {"Succeeded", "Failed"} or early:
            gone.append(name)
    if gone:
        cluster.kubectl("delete", "pod", "--wait=false", *gone)
    missing = _PODS - (len(living) - len(gone))
    made = [_pod(seen.pods + n) for n in range(missing)]
    seen.pods += missing
    if made:
        cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))


def _sample(cluster: Cluster, seen: Seen) -> None:
    lines = cluster.node_exec(["sh", "-c", _READ], check=False).stdout.splitlines()
    rows = [[int(word) for word in line.split()] for line in lines]
    rows = [row for row in rows if len(row) == 3 and row[1] > 1]
    if not rows:
        return
    rss, threads, descriptors = max(rows)
    seen.rss_mib.append(round(rss / 1024, 1))
    seen.threads.append(threads)
    seen.descriptors.append(descriptors)


def _soak(cluster: Cluster, minutes: float) -> Seen:
    seen = Seen()
    began = sampled = time.monotonic()
    while time.monotonic() - began < minutes * 60:
        _round(cluster, seen)
        if time.monotonic() - sampled >= _SAMPLE_S:
            sampled = time.monotonic()
            _sample(cluster, seen)
            if seen.rss_mib:
                _say(
                    f"{(sampled - began) / 60:5.1f} min: {seen.pods} pods, "
                    f"{len(seen.failed)} failed, {seen.rss_mib[-1]} MiB, "
                    f"{seen.threads[-1]} threads, {seen.descriptors[-1]} descriptors"
                )
        time.sleep(1)
    return seen


def _ended(cluster: Cluster) -> list[str]:
    """Delete all pods; return what is left of the claims on the node after that."""
    cluster.kubectl("delete", "pods", "-l", "app=soak", "--timeout=120s", timeout=130)
    left: list[str] = []
    for _ in range(60):
        left = cluster.node_exec(["sh", "-c", _LEFT], check=False).stdout.split()
        if not left:
            break
        time.sleep(1)
    return left


def _kubelet_errors(cluster: Cluster) -> list[str]:
    log = (cluster.logs_dir / "node-a-kubelet.log").read_text(errors="replace")
    lines = [line for line in log.splitlines() if _KUBELET_WRONG.search(line)]
    events = cluster.kubectl_json("get", "events", "-A")["items"]
    bad = [e["message"] for e in events if "DynamicResources" in e.get("reason", "")]
    return lines + bad


def _trend(values: Sequence[float]) -> dict[str, float]:
    """Return the medians of the second and the last tenth, and the most."""
    tenth = max(1, len(values) // 10)
    return {
        "early": statistics.median(values[tenth : 2 * tenth] or values),
        "late": statistics.median(values[-tenth:]),
        "most": max(values),
    }


def main() -> None:
    """Run it; print the line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    minutes = parser.parse_args().minutes
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(testbed.options(Path(folder), name="soak")) as cluster,
    ):
        cluster.kubectl("apply", "-k", str(testbed.REPO / "deploy/overlays/gpu-operator"))
        cluster.kubectl(
            "rollout", "status", "-n", _SYSTEM, "daemonset/apportion-plugin", "--timeout=100s"
        )
        cluster.apply(_TEMPLATE)
        seen = _soak(cluster, minutes)
        left = _ended(cluster)
        errors = _kubelet_errors(cluster)
    for line in [*seen.failed[:10], *errors[:10]]:
        _say(line)
    result = {
        "minutes": minutes,
        "pods": seen.pods,
        "failed_pods": len(seen.failed),
        "kubelet_errors": len(errors),
        "left_behind": left,
        "rss_mib": _trend(seen.rss_mib),
        "threads": _trend(seen.threads),
        "descriptors": _trend(seen.descriptors),
    }
    print(json.dumps(result))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
