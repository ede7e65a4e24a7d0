"""`apportion status`: cards and shares, who holds what, limit and use.

On a node it reads the plugin's own files and NVML, so it works while API server or plugin are
down. With --cluster it asks the API server, which knows all nodes and the use as they last told it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from apportion import config, files, kube, offer, slices
from apportion.cli import clusterview, render, view
from apportion.config import Config
from apportion.cores.slots import Slot
from apportion.enforce import Enforcer, registry
from apportion.errors import ApportionError, ConfigError, KubeForbiddenError, NvmlError
from apportion.inventory.nvml import Nvml
from apportion.inventory.scan import scan
from apportion.ledger.schema import Record
from apportion.ledger.store import Store, boot_id
from apportion.model import Allowance, Device, GpuUuid, ShareKey, Usage
from apportion.watch import store as health
from apportion.watch.condition import Conditions, Level
from apportion.watch.processes import Processes

_INCOMPLETE = 1
_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --cluster, --output and the settings."""
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="all nodes, by the API server; needs the right to list resourceslices and "
        "resourceclaims",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json"),
        default="table",
        help="wide: more columns; json: as docs/status.md describes (default: table)",
    )
    config.add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print it; return 0, 1 when something could not be read, 2 for bad settings."""
    try:
        settings = config.load(vars(args))
    except ConfigError as error:
        print(f"apportion status: {error}", file=sys.stderr)
        return _USAGE
    found = of_cluster(settings) if args.cluster else of_node(settings)
    if args.output == "json":
        print(render.as_json(found), end="")
    else:
        print(render.table(found, wide=args.output == "wide"), end="", flush=True)
        for problem in found.problems:
            print(f"! {problem}", file=sys.stderr)
    return 0 if found.complete else _INCOMPLETE


@dataclass(slots=True)
class _Readings:
    """What of a node could be read, and what could not."""

    devices: tuple[Device, ...] = ()
    used: dict[str, int] = field(default_factory=dict)
    boot: str = ""
    records: tuple[Record, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    usages: dict[ShareKey, Usage] = field(default_factory=dict)
    slots: dict[ShareKey, Slot] = field(default_factory=dict)
    health: dict[GpuUuid, Conditions] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def of_node(settings: Config) -> view.View:
    """Return what this node's files and its NVML say; problems say what could not be read."""
    found = _Readings()
    _ask_nvml(settings, found)
    try:
        _read_files(settings, found)
    except ApportionError as error:
        found.failures.append(str(error))
    shown = view.of_node(
        settings.driver_name,
        settings.node_name or platform.node(),
        boot=found.boot,
        records=found.records,
        devices=found.devices,
        allowances=found.allowances,
        usages=found.usages,
        used=found.used,
        slots=found.slots,
    )
    cards = tuple(
        dataclasses.replace(card, health=_shown(found.health.get(GpuUuid(card.uuid))))
        for card in shown.cards
    )
    return dataclasses.replace(
        shown,
        cards=cards,
        problems=(*found.failures, *shown.problems, *found.notes),
        complete=not found.failures,
    )


def of_cluster(settings: Config, environ: Mapping[str, str] | None = None) -> view.View:
    """Return what the API server says of all nodes.

    Raises:
        ConfigError: no way to an API server.
        KubeError: it does not answer or does not permit it.
    """
    kubeconfig = _kubeconfig(settings, environ or os.environ)
    api = kube.connect(kubeconfig, settings.api_timeout_s, settings.service_account_dir)
    driver = settings.driver_name
    try:
        found = clusterview.of_cluster(
            driver, api.list_slices(driver).items, api.list_claims(), _age
        )
    except KubeForbiddenError as error:
        raise KubeForbiddenError(
            f"{error}; --cluster lists resourceslices and all resourceclaims: call it with an "
            "account that may, such as an administrator's kubeconfig",
            error.status,
        ) from error
    if found.cards:
        return found
    problem = (
        f"no slice of driver {driver}: is the DaemonSet running? Another driver: --driver-name"
    )
    return dataclasses.replace(found, problems=(problem, *found.problems))


def _age(text: str) -> int | None:
    """Return the seconds since a time in RFC 3339, by this machine's clock; None: it is none."""
    try:
        seen = dt.datetime.fromisoformat(text)
        return max(0, int((dt.datetime.now(dt.UTC) - seen).total_seconds()))
    except (ValueError, TypeError, OverflowError):
        return None


def _kubeconfig(settings: Config, environ: Mapping[str, str]) -> str:
    """Return the file to use, as kubectl does; empty in a pod: its ServiceAccount."""
    if settings.kubeconfig or (
        "KUBECONFIG" not in environ and "KUBERNETES_SERVICE_HOST" in environ
    ):
        return settings.kubeconfig
    return environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _ask_nvml(settings: Config, found: _Readings) -> None:
    nvml = Nvml(settings.driver_root_mount)
    try:
        inventory = scan(nvml, settings.sysfs)
        found.devices = slices.devices(inventory, offer.policy(settings))
        found.notes += [
            f"GPU {gpu.identity} is not shared: {gpu.reason}" for gpu in inventory.excluded
        ]
        for device in found.devices:
            found.used[device.gpu.uuid] = nvml.used_memory(device.gpu.uuid)
    except NvmlError as error:
        found.failures.append(str(error))
    finally:
        nvml.close()


def _read_files(settings: Config, found: _Readings) -> None:
    if not files.listing(settings.plugin_dir):
        found.failures.append(
            f"no plugin has run here: there is no {settings.plugin_dir}. Ask the plugin of a node, "
            "kubectl exec -n apportion-system <its pod> -- apportion status; or the cluster, with "
            "--cluster; or set --driver-name"
        )
        return
    blind = Processes(settings.proc, settings.driver_shares_dir).blindness()
    if blind and settings.guard != "off":
        found.notes.append(f"the guard is blind: {blind}")
    enforcer = registry.make(settings)
    found.boot = boot_id(settings.proc)
    _read_health(settings, found)
    store = Store(settings.plugin_dir, found.boot, enforcer.allowances)
    known = store.uids()
    found.records = store.records()
    unread = known - {record.ref.uid for record in found.records}
    found.failures += [
        f"the record of claim UID {uid} in {settings.plugin_dir}/claims cannot be read; the "
        "plugin's log says why, and removes it once the pods of the claim are deleted"
        for uid in sorted(unread)
    ]
    found.allowances = enforcer.allowances()
    _read_ledgers(enforcer, found)


def _read_health(settings: Config, found: _Readings) -> None:
    try:
        record = health.read(settings.plugin_dir)
    except ApportionError as error:
        found.failures.append(str(error))
        return
    if record is None or record.boot != found.boot:
        return
    for uuid, known in record.gpus.items():
        found.health[uuid] = known.conditions
        found.notes += [
            f"GPU {uuid}: {one.text}" for one in known.conditions if one.level > Level.NOTE
        ]


def _shown(conditions: Conditions | None) -> str:
    """Return what is wrong by its names, "ok" where nothing is, nothing where nobody looked."""
    if conditions is None:
        return ""
    return ", ".join(one.name for one in conditions) or view.OK


def _read_ledgers(enforcer: Enforcer, found: _Readings) -> None:
    for allowance in found.allowances:
        slot = enforcer.slot(allowance.key)
        if slot is not None:
            found.slots[allowance.key] = slot
        try:
            found.usages[allowance.key] = enforcer.usage(allowance.key)
        except ApportionError as error:
            found.failures.append(str(error))
