"""`make demo`: a lab before your eyes. Last line of output: JSON with what was checked."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import Cluster, HarnessError, kueue, registry
from tests.harness.images import build_project_image
from tests.harness.requirements import missing
from tests.lab import lab_a, lab_b, testbed
from tests.lab.walk import StepError, Walk

NAME = "demo"
COMMAND = "build/venv/bin/python -m tests.harness"


@dataclass(frozen=True)
class Lab:
    """What is walked, on which further images, and what a cluster that stays up is good for."""

    steps: tuple[lab_a.Step, ...]  # the last one cleans up
    images: Callable[[], tuple[Path, ...]]
    about: str
    plugin: tuple[str, str]  # namespace, DaemonSet
    another: str  # a manifest of one more pod


LABS = {
    "a": Lab(
        lab_a.DEMO,
        tuple,
        f"its DeviceClass is {lab_a.DRIVER}",
        (lab_a.PLUGIN_NAMESPACE, f"daemonset/{lab_a.DAEMONSET}"),
        f"{lab_a.LAB}/pod-tpl-0.yaml",
    ),
    "b": Lab(
        lab_b.DEMO,
        lambda: (kueue.image(),),
        "its queues are p3-dra-queue and p3-share-queue",
        (lab_b.SYSTEM, lab_b.DAEMONSET),
        lab_b.TRAINING,
    ),
}


def main() -> int:
    """Walk a lab; 0 when every step showed what it must."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--lab", choices=sorted(LABS), default="a", help="shares, or under Kueue")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    parser.add_argument("--build-only", action="store_true", help="only build what the lab needs")
    args = parser.parse_args()
    reason = missing()
    if reason:
        what = "image: not built" if args.build_only else "demo: cannot run"
        print(f"{what} here: {reason}", file=sys.stderr)
        # The tests that need the image say the same, and are skipped, or failed in CI.
        return 0 if args.build_only else 1
    if args.build_only:
        print(build_project_image(testbed.REPO, testbed.PROJECT_IMAGE))
        return 0
    began = time.monotonic()
    checked, error = _demo(LABS[args.lab], keep=args.keep)
    seconds = round(time.monotonic() - began, 1)
    if error:
        print(f"demo: {error}", file=sys.stderr)
    else:
        print(f"\ndemo: {len(checked)} checks passed in {seconds:.0f} s")
    print(json.dumps({"ok": not error, "error": error, "seconds": seconds, "checked": checked}))
    return 1 if error else 0


def _demo(lab: Lab, *, keep: bool) -> tuple[dict[str, Any], str]:
    """Walk the lab on a cluster of its own; return what was checked, and what went wrong."""
    walk: Walk | None = None
    error = ""
    if any(record.name == NAME and record.alive for _, record in registry.records()):
        return {}, f"a demo is up already; stop it by: {COMMAND} down --name {NAME}"
    try:
        folder = testbed.BUILD / "demo" / "fakegpu"
        cluster = Cluster(testbed.options(folder, name=NAME, images=lab.images()))
        cluster.start()
        try:
            walk = Walk(cluster, show=lambda line: print(line, flush=True))
            error = _walk(walk, lab.steps[:-1] if keep else lab.steps)
        finally:
            if keep and walk:
                _keep(cluster, lab)
            else:
                cluster.stop()
    except HarnessError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "interrupted"
    return walk.checked if walk else {}, error


def _walk(walk: Walk, steps: tuple[lab_a.Step, ...]) -> str:
    for step in steps:
        try:
            step(walk)
        except (StepError, HarnessError, subprocess.SubprocessError) as failure:
            return f"step {step.__name__}: {failure}"
    return ""


def _keep(cluster: Cluster, lab: Lab) -> None:
    cluster.detach()
    namespace, daemonset = lab.plugin
    status = f"exec -n {namespace} {daemonset} -- apportion status"
    print(
        f"\nThe cluster stays up; {lab.about}.\n"
        f"  talk to it:    {COMMAND} kubectl --name {NAME} get pods -A\n"
        f"  who has what:  {COMMAND} kubectl --name {NAME} {status}\n"
        f"  another pod:   {COMMAND} kubectl --name {NAME} apply -f {testbed.REPO}/{lab.another}\n"
        f"  a node shell:  {COMMAND} shell --name {NAME}\n"
        f"  stop it:       {COMMAND} down --name {NAME}"
    )


if __name__ == "__main__":
    sys.exit(main())
