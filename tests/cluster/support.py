"""Pods with shares, on a cluster with deploy/base."""

from __future__ import annotations

from tests.lab import testbed
from tests.lab.walk import Walk

SYSTEM = "apportion-system"
DAEMONSET = "daemonset/apportion-plugin"

# To be filled in: name, and config, which is empty or what follows in `exactly` and `devices`.
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu-share.apportion.gpu
        capacity: {{requests: {{cores: "10", memory: 1Gi}}}}{config}
"""

SHARE = f"""{CLAIM}---
apiVersion: v1
kind: Pod
metadata: {{{{name: {{name}}}}}}
spec:
  terminationGracePeriodSeconds: 1  # with 0 the pod's object goes before kubelet is done
  containers:
  - name: main
    image: python:3.11-slim-bookworm
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
    resources: {{{{claims: [{{{{name: gpu}}}}]}}}}
  resourceClaims:
  - {{{{name: gpu, resourceClaimName: {{name}}}}}}
"""


# Prints mode, period and the one slot's start and length, as a program in the container reads them.
_SLOT = """
import glob, struct
(folder,) = glob.glob("/run/apportion/shares/*/")
limits = dict(line.split(" ") for line in open(folder + "limits").read().splitlines())
data = open(folder + "schedule", "rb").read()
state = 64 + 1056 * (struct.unpack_from("<Q", data, 16)[0] & 1)
period, _until, count, _guests, _zero, start, length = struct.unpack_from("<QQIIQQQ", data, state)
assert count == 1
print(limits["cores-mode"], period, start, length)
"""


def slot(walk: Walk, name: str) -> tuple[str, int, int, int]:
    """Return how a pod's share is held to its cores: mode, period, start and length of its slot."""
    said = walk.kubectl("exec", name, "--", "python", "-c", _SLOT).split()
    period, start, length = map(int, said[1:])
    return said[0], period, start, length


def start(walk: Walk, name: str) -> None:
    """Run a pod with a share of 1Gi and wait until it is ready."""
    start_from(walk, SHARE.format(name=name, config=""), name, "cudamem")


def start_from(walk: Walk, manifest: str, name: str, *programs: str) -> None:
    """Run the pod `name` of a manifest, wait until it is ready, and put programs into its /tmp."""
    walk.cluster.apply(manifest)
    walk.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=100s")
    for program in programs:
        walk.kubectl("cp", str(testbed.BUILD / "fakes/bin" / program), f"{name}:/tmp/{program}")


def end(walk: Walk, name: str) -> None:
    """Delete a pod and its claim."""
    walk.kubectl("delete", f"pod/{name}", f"resourceclaim/{name}", "--timeout=60s")
