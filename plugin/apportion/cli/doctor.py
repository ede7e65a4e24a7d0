"""`apportion doctor`: looks at all that the plugin needs, in the order in which it needs it.

It changes nothing. A check that depends on a failed one is left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from apportion import config, driver, kube, kubeerrors, names
from apportion.config import Config
from apportion.container import DriverFiles
from apportion.enforce import registry
from apportion.errors import ApportionError, ConfigError, FatalError, KubeForbiddenError
from apportion.features import SHARING
from apportion.inventory.nvml import Nvml
from apportion.inventory.scan import scan
from apportion.kubelet.instance import instance
from apportion.ledger.store import Store, boot_id
from apportion.model import Inventory
from apportion.watch import store as health
from apportion.watch.condition import Level
from apportion.watch.processes import Processes

_FAILED = 1
_USAGE = 2
_MARKS = {"good": "✓", "bad": "✗", "left out": "-"}


class _TroubleError(FatalError):
    """What a check found wrong, and what to do."""


@dataclass(slots=True)
class _Node:
    """What earlier checks found, for later ones."""

    config: Config
    found: DriverFiles | None = None
    inventory: Inventory | None = None
    api: kube.Kube | None = None
    slices: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: returns what is good about it in a few words, or raises ApportionError."""

    name: str
    look: Callable[[_Node], str]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a check; `state` is good, bad or left out."""

    name: str
    state: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --output and the settings."""
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="default: text"
    )
    config.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0, 1 when a check failed, 2 for bad settings."""
    try:
        settings = config.load(vars(args))
    except ConfigError as error:
        print(f"apportion doctor: {error}", file=sys.stderr)
        return _USAGE
    findings = examine(settings)
    print(as_json(findings) if args.output == "json" else as_text(findings), end="")
    return _FAILED if any(finding.state == "bad" for finding in findings) else 0


def examine(settings: Config, checks: tuple[Check, ...] | None = None) -> list[Finding]:
    """Run the checks in order."""
    node = _Node(settings)
    findings: list[Finding] = []
    good: set[str] = set()
    for check in CHECKS if checks is None else checks:
        missing = [need for need in check.needs if need not in good]
        if missing:
            findings.append(Finding(check.name, "left out", f"needs {', '.join(missing)}"))
            continue
        try:
            findings.append(Finding(check.name, "good", check.look(node)))
            good.add(check.name)
        except ApportionError as error:
            findings.append(Finding(check.name, "bad", str(error)))
    return findings


def as_text(findings: list[Finding]) -> str:
    """Return one line for each finding."""
    width = max(len(finding.name) for finding in findings)
    return "".join(
        f"{_MARKS[finding.state]} {finding.name.ljust(width)}  {finding.text}\n"
        for finding in findings
    )


def as_json(findings: list[Finding]) -> str:
    """Return {"checks": [{name, state, text}]}, ended by a newline."""
    content = [{"name": f.name, "state": f.state, "text": f.text} for f in findings]
    return json.dumps({"checks": content}, indent=2, sort_keys=True) + "\n"


def _driver_files(node: _Node) -> str:
    node.found = driver.find_driver_files(node.config.driver_root_mount, node.config.driver_root)
    return f"{node.found.cuda}, {node.found.nvml}"


def _nvml(node: _Node) -> str:
    with Nvml(node.config.driver_root_mount) as nvml:
        node.inventory = scan(nvml, node.config.sysfs)
        return f"driver {nvml.driver_version()}"


def _gpus(node: _Node) -> str:
    inventory = node.inventory or Inventory(())
    left_out = "".join(f"; {gpu.identity} not: {gpu.reason}" for gpu in inventory.excluded)
    if not inventory.gpus:
        why = left_out or ": NVML sees none; look at nvidia-smi"
        raise _TroubleError(f"no GPU can be shared{why}")
    return ", ".join(f"{gpu.product_name} {gpu.uuid}" for gpu in inventory.gpus) + left_out


def _device_nodes(node: _Node) -> str:
    assert node.found is not None  # noqa: S101 - by `needs`
    paths = []
    for gpu in node.inventory.gpus if node.inventory else ():
        path = driver.gpu_node(node.found, gpu.minor).host_path
        if not driver.seen(path, node.config.driver_root_mount, node.config.driver_root).exists():
            raise _TroubleError(f"{path} is missing; run nvidia-smi on the node once, it makes it")
        paths.append(path)
    return ", ".join(paths)


def _shim(node: _Node) -> str:
    return f"build {registry.make(node.config).build} in {node.config.shim_dir}"


def _folders(node: _Node) -> str:
    settings = node.config
    there = {
        "plugins_dir": settings.plugin_dir,
        "registry_dir": settings.registry_dir,
        "cdi_dir": settings.cdi_dir,
    }
    for setting, folder in there.items():
        if not folder.is_dir():
            raise _TroubleError(
                f"there is no folder {folder}; start the DaemonSet on this node, which makes it, "
                f"mount it into the pod, or correct {setting}"
            )
    shares = settings.driver_shares_dir
    for folder in (*there.values(), _first_existing(shares)):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _TroubleError(
                f"{folder} cannot be written; run as root, and mount it writable into the pod"
            )
    later = "" if shares.exists() else " (made with the first share)"
    return f"{', '.join(map(str, there.values()))}, {shares}{later}"


def _claims(node: _Node) -> str:
    # Of whatever boot, and nothing is added up: only whether they can be read.
    store = Store(node.config.plugin_dir, "", tuple)
    # In this order a Prepare in between is no trouble.
    known = store.uids()
    readable = {record.ref.uid for record in store.records()}
    unread = ", ".join(sorted(known - readable))
    if unread:
        raise _TroubleError(
            f"records in {node.config.plugin_dir}/claims that cannot be read: {unread}; each "
            "counts by its share folders and goes once the pods of its claim are deleted; the "
            "plugin's log says what is wrong with it"
        )
    return f"{len(readable)} recorded"


def _first_existing(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists: the plugin makes the rest."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _running(node: _Node) -> str:
    settings = node.config
    # Under another identity than the pod's own, which then counts as one of the others.
    asked = instance(settings.driver_name, settings.plugin_dir, settings.registry_dir, "")
    if not asked.others_alive():
        raise _TroubleError(
            f"nobody serves kubelet at {settings.plugin_dir}; start the DaemonSet, or look at its "
            "log for why it stopped"
        )
    return "serves kubelet"


def _guard(node: _Node) -> str:
    settings = node.config
    blind = Processes(settings.proc, settings.driver_shares_dir).blindness()
    if blind:
        raise _TroubleError(f"blind: {blind}")
    if settings.guard == "off":
        return "off"
    return f"sees the node's processes; {settings.guard} every {settings.guard_interval_s} s"


def _health(node: _Node) -> str:
    record = health.read(node.config.plugin_dir)
    if record is None or record.boot != boot_id(node.config.proc):
        return "nothing is known yet since the boot"
    found = [(uuid, one) for uuid, known in record.gpus.items() for one in known.conditions]
    bad = [f"{uuid}: {one.text}" for uuid, one in found if one.level > Level.NOTE]
    if bad:
        raise _TroubleError("; ".join(bad))
    return "; ".join(f"{uuid}: {one.text}" for uuid, one in found) or "all are well"


def _api(node: _Node) -> str:
    settings = node.config
    node.api = kube.connect(
        settings.kubeconfig, settings.api_timeout_s, settings.service_account_dir
    )
    try:
        found = node.api.list_slices(settings.driver_name, settings.node_name).items
    except KubeForbiddenError as error:
        # Asked as the plugin asks, unlike `status --cluster`.
        raise _TroubleError(kubeerrors.hinted(error)) from error
    node.slices = [dict(item) for item in found]
    return "resource.k8s.io/v1 answers"


def _published(node: _Node) -> str:
    devices = [
        device
        for item in node.slices
        for device in _items(_mapping(item.get("spec")).get("devices"))
    ]
    if not devices:
        raise _TroubleError("no slice of this node; the plugin's log says what it waits for")
    poor = sorted(str(d.get("name")) for d in devices if not _consumable(d))
    if poor:
        raise _TroubleError(f"{', '.join(poor)}: {SHARING.off('the API server dropped fields')}")
    return ", ".join(sorted(str(device["name"]) for device in devices))


def _consumable(device: dict[str, object]) -> bool:
    capacity = _mapping(device.get("capacity"))
    return bool(device.get("allowMultipleAllocations")) and all(
        _mapping(capacity.get(name)).get("requestPolicy") for name in (names.CORES, names.MEMORY)
    )


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


CHECKS: tuple[Check, ...] = (
    Check("driver files", _driver_files),
    Check("NVML", _nvml),
    Check("GPUs", _gpus, ("NVML",)),
    Check("device nodes", _device_nodes, ("driver files", "GPUs")),
    Check("front libraries", _shim),
    Check("folders", _folders),
    Check("claims", _claims, ("folders",)),
    Check("plugin", _running),
    Check("guard", _guard),
    Check("health", _health),
    Check("API server", _api),
    Check("published", _published, ("API server",)),
)
