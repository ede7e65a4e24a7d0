"""`python -m tests.harness`: the same cluster for a person."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.harness import golang, progress, registry
from tests.harness.cluster import Cluster
from tests.harness.errors import HarnessError
from tests.harness.options import ClusterOptions, NodeOptions
from tests.harness.pin import pin
from tests.harness.versions import DEFAULT_KUBERNETES, KUBERNETES

_COMMAND = "python -m tests.harness"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_COMMAND, description="The test cluster.")
    commands = parser.add_subparsers(required=True, metavar="command")

    build = commands.add_parser("build", help="build all programs and base images")
    build.add_argument("--kubernetes", choices=sorted(KUBERNETES), default=DEFAULT_KUBERNETES)
    build.set_defaults(run=_build)

    up = commands.add_parser("up", help="start a cluster and stay until Ctrl-C")
    up.add_argument("--keep", action="store_true", help="return, and leave the cluster running")
    up.add_argument("--name", default="apportion")
    up.add_argument("--nodes", default="node-a", help="names, with commas between")
    up.add_argument("--kubernetes", choices=sorted(KUBERNETES), default=DEFAULT_KUBERNETES)
    up.add_argument("--feature-gate", action="append", default=[], metavar="NAME=true|false")
    up.add_argument("--image", action="append", default=[], type=Path, help="archive to import")
    up.add_argument("--driver-root", type=Path, help="folder of a driver's files")
    up.add_argument("--fakegpu", type=Path, help="folder of the simulated kernel module")
    up.add_argument("--gpus", type=int, default=0, help="number of /dev/nvidia<n> nodes")
    up.set_defaults(run=_up)

    for name, run, text in (
        ("down", _down, "stop a cluster"),
        ("shell", _shell, "a shell on a node"),
        ("kubectl", _kubectl, "kubectl as administrator"),
    ):
        command = commands.add_parser(name, help=text, add_help=name != "kubectl")
        command.add_argument("--name", default=None, help="which cluster, where several run")
        if name == "shell":
            command.add_argument("--node", default=None)
        if name == "kubectl":
            command.add_argument("rest", nargs=argparse.REMAINDER)
        command.set_defaults(run=run)

    commands.add_parser("status", help="which clusters run").set_defaults(run=_status)
    pin_parser = commands.add_parser("pin", help="write go.mod and go.sum of a new version")
    pin_parser.add_argument("kubernetes", choices=sorted(KUBERNETES))
    pin_parser.set_defaults(run=_pin)
    return parser


def _build(arguments: argparse.Namespace) -> int:
    for folder in (*Cluster.build(arguments.kubernetes), golang.kueue()):
        print(folder)
    return 0


def _pin(arguments: argparse.Namespace) -> int:
    print(pin(arguments.kubernetes))
    return 0


def _up(arguments: argparse.Namespace) -> int:
    cluster = Cluster(_options(arguments))
    cluster.start()
    try:
        if arguments.keep:
            cluster.detach()
            _explain(arguments.name, cluster)
            return 0
        _explain(arguments.name, cluster)
        progress.say("Ctrl-C stops the cluster")
        _wait_for_signal()
    except BaseException:
        cluster.stop()
        raise
    cluster.stop()
    progress.say(f"cluster {arguments.name} is gone")
    return 0


def _options(arguments: argparse.Namespace) -> ClusterOptions:
    gates = dict(gate.partition("=")[::2] for gate in arguments.feature_gate)
    wrong = sorted(name for name, value in gates.items() if value not in {"true", "false"})
    if wrong:
        raise HarnessError(f"feature gates need =true or =false: {', '.join(wrong)}")
    nodes = tuple(
        NodeOptions(
            name=name,
            driver_root=arguments.driver_root,
            fakegpu_dir=arguments.fakegpu,
            gpu_minors=tuple(range(arguments.gpus)),
        )
        for name in arguments.nodes.split(",")
    )
    return ClusterOptions(
        name=arguments.name,
        nodes=nodes,
        kubernetes_version=arguments.kubernetes,
        feature_gates={name: value == "true" for name, value in gates.items()},
        images=tuple(arguments.image),
    )


def _explain(name: str, cluster: Cluster) -> None:
    option = "" if name == "apportion" else f" --name {name}"
    print(
        f"cluster {name} runs, nodes: {', '.join(cluster.access.nodes)}\n"
        f"  {_COMMAND} kubectl{option} get pods -A\n"
        f"  {_COMMAND} shell{option}\n"
        f"  {_COMMAND} down{option}\n"
        f"  logs: {cluster.logs_dir}\n"
        f"  KUBECONFIG (inside the cluster's network): {cluster.kubeconfig}",
        flush=True,
    )


def _wait_for_signal() -> None:
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: done.set())
    done.wait()


def _running(name: str | None) -> registry.Record:
    """The cluster of that name; without a name, the only one that runs."""
    records = [record for _, record in registry.records() if record.alive]
    found = [record for record in records if name in {None, record.name}]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(record.name for record in records)) or "none"
    if name is not None:
        several = "more than one cluster has that name" if found else f"no cluster {name!r} runs"
        raise HarnessError(f"{several}; running: {names}; `{_COMMAND} status` has their folders")
    raise HarnessError(f"say which cluster by --name; running: {names}")


def _down(arguments: argparse.Namespace) -> int:
    record = _running(arguments.name)
    Cluster.attach(Path(record.state_dir)).stop()
    progress.say(f"cluster {record.name} is gone")
    return 0


def _kubectl(arguments: argparse.Namespace) -> int:
    access = Cluster.attach(Path(_running(arguments.name).state_dir)).access
    rest = arguments.rest[1:] if arguments.rest[:1] == ["--"] else arguments.rest
    return subprocess.run(access.kubectl_argv(*rest), check=False).returncode


def _shell(arguments: argparse.Namespace) -> int:
    access = Cluster.attach(Path(_running(arguments.name).state_dir)).access
    argv = access.node_argv(arguments.node, ["/bin/bash"])  # no login: that resets PATH
    more = {
        "KUBECONFIG": str(access.kubeconfig),
        "PATH": f"{Path(access.spec.kubectl).parent}:{Path(access.spec.ctr).parent}"
        f":{os.environ['PATH']}",
        "TERM": os.environ.get("TERM", "dumb"),
    }
    return subprocess.run(argv, check=False, env=access.node_environment(more)).returncode


def _status(_: argparse.Namespace) -> int:
    for item in registry.records():
        record = item[1]
        state = "running" if record.alive else "ended by force; the next start removes its rest"
        print(f"{record.name}  supervisor {record.pid}  {record.state_dir}  {state}")
    return 0
