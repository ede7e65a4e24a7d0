"""The table of settings: what each is called, what it is for, and what it may be."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import names

_MAX_CORES = 100
_MAX_PORT = 65535
_MAX_MIB = 65536
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")
PERIODS_MS = (10, 1000)
"""Shortest and longest period: below, switching costs too much; above, every wait is felt."""

_UUID = r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_PERIOD = re.compile(f"{_UUID}=([0-9]{{1,9}})")
_MODE = re.compile(f"{_UUID}=(none|timeslice|mps)")


def periods(text: str) -> dict[str, int] | None:
    """Return the milliseconds by GPU's UUID of a text such as the setting cores_periods is.

    None: it is something else, or says two things of one GPU.
    """
    found = _by_gpu(text, _PERIOD)
    pairs = None if found is None else {uuid: int(value) for uuid, value in found.items()}
    good = all(PERIODS_MS[0] <= each <= PERIODS_MS[1] for each in (pairs or {}).values())
    return pairs if good else None


def modes(text: str) -> dict[str, str] | None:
    """Return the modes by GPU's UUID of a text as the setting cores_modes is, None as above."""
    return _by_gpu(text, _MODE)


def _by_gpu(text: str, form: re.Pattern[str]) -> dict[str, str] | None:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    found = [form.fullmatch(part) for part in parts]
    pairs = {match[1]: match[2] for match in found if match is not None}
    return pairs if len(pairs) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    name: str
    help: str
    check: Callable[[Any], bool] = lambda _value: True
    expect: str = ""


def _one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def _between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


def _absolute(value: Path) -> bool:
    return value.is_absolute()


def _path(name: str, text: str) -> Setting:
    return Setting(name, text, _absolute, "an absolute path")


def _is_address(value: str) -> bool:
    host, _colon, port = value.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return value == ""
    return WHOLE_NUMBER.fullmatch(port) is not None and 0 <= int(port) <= _MAX_PORT


def _address(name: str, text: str, example: str) -> Setting:
    return Setting(name, text, _is_address, f"an address such as {example}, or nothing")


def _seconds(name: str, text: str, most: int) -> Setting:
    expect = f"1 to {most} whole seconds, without a unit"
    return Setting(name, text, _between(1, most), expect)


def _mib(name: str, text: str) -> Setting:
    return Setting(name, text, _between(0, _MAX_MIB), f"0 to {_MAX_MIB} MiB, without a unit")


def _effect(name: str, of_what: str) -> Setting:
    effects = ("off", "None", "NoSchedule", "NoExecute")
    text = f"effect of the taint of a GPU {of_what}; None needs Kubernetes 1.35"
    return Setting(name, text, _one_of(*effects), "off, None, NoSchedule or NoExecute")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "driver_name",
        "name of the DRA driver in slices and DeviceClasses",
        names.is_driver_name,
        "a DNS subdomain of at most 63 characters",
    ),
    Setting(
        "node_name",
        "name of this node; the DaemonSet takes it from spec.nodeName",
        lambda value: value == "" or names.is_node_name(value),
        "a DNS subdomain, as nodes are named",
    ),
    Setting(
        "pod_uid",
        "UID of this pod, part of the socket names; empty: a new one for each process",
        lambda value: value == "" or names.is_uid(value),
        "letters, digits and dashes",
    ),
    Setting("kubeconfig", "file to reach the API server by; empty: the pod's ServiceAccount"),
    _path("service_account_dir", "where a pod finds its ServiceAccount's token and ca.crt"),
    _path("plugins_dir", "kubelet's plugins folder; ours is <plugins_dir>/<driver_name>"),
    _path("registry_dir", "kubelet's plugin registration folder"),
    _path("cdi_dir", "where the container runtime looks for CDI specs"),
    _path("shares_dir", "share folders are <shares_dir>/<driver_name>/<key>; a tmpfs is best"),
    _path("driver_root", "root of the NVIDIA driver on the host: / or /run/nvidia/driver"),
    _path("driver_root_mount", "where the plugin sees driver_root"),
    _path("shim_dir", "front libraries and hook inside the plugin's image"),
    _path("sysfs", "sysfs of the host"),
    _path("proc", "procfs, for the boot ID"),
    Setting(
        "device_naming",
        "device names by PCI address, or by index",
        _one_of("pci", "index"),
        "pci or index",
    ),
    Setting(
        "device_prefix",
        "before the address or index in device names; empty: gpu-",
        names.is_device_prefix,
        "at most 50 lower-case letters, digits and dashes, no dash at the start",
    ),
    Setting(
        "memory_capacity",
        "usable: bytes that can be allocated; total: the nominal size",
        _one_of("usable", "total"),
        "usable or total",
    ),
    Setting("cores_min", "least cores of a share", _between(0, _MAX_CORES), "0 to 100"),
    Setting(
        "cores_mode",
        "how shares are held to their cores: timeslice gives each its part of a period; mps its "
        "part of the multiprocessors, by a daemon; none: they are counted, not held",
        _one_of("none", "timeslice", "mps"),
        "none, timeslice or mps",
    ),
    Setting(
        "cores_modes",
        "the same for single GPUs, by UUID",
        lambda value: modes(value) is not None,
        "such as GPU-0a1b2c3d-0000-4000-8000-000000000001=mps (none, timeslice or mps), several "
        "with commas between, each GPU once, or nothing",
    ),
    Setting(
        "cores_period_ms",
        "period of the time division: a short one makes a share wait less, a long one switches "
        "less often",
        _between(*PERIODS_MS),
        f"{PERIODS_MS[0]} to {PERIODS_MS[1]} ms, without a unit",
    ),
    Setting(
        "cores_periods",
        "periods in ms of single GPUs, by UUID",
        lambda value: periods(value) is not None,
        f"such as GPU-0a1b2c3d-0000-4000-8000-000000000001=20, {PERIODS_MS[0]} to {PERIODS_MS[1]} "
        "each, several with commas between, each GPU once, or nothing",
    ),
    _mib(
        "mps_reserve_mib",
        "memory of a GPU that mps divides which is not offered: what the MPS server takes itself",
    ),
    Setting(
        "self_test",
        "try the front libraries on the real driver before anything is published",
        _one_of("on", "off"),
        "on or off",
    ),
    Setting(
        "guard",
        "whether processes that hold more than their share are ended, reported, or not looked for",
        _one_of("kill", "observe", "off"),
        "kill, observe or off",
    ),
    _seconds("guard_interval_s", "time between two readings of the guard", 60),
    _mib("guard_slack_mib", "what each process may hold over its share for the moment of a call"),
    _mib(
        "guard_overhead_mib",
        "what a share may hold over its limit in all, and its ledger lacks, before processes are "
        "ended: what the driver takes without asking, as for code",
    ),
    _mib(
        "guard_recorded_mib",
        "what a share may hold over its limit in all before processes are ended though its ledger "
        "has it: what the front could only charge afterwards",
    ),
    Setting(
        "guard_strangers",
        "what happens to processes in pods that hold memory of a shared GPU without a share of it",
        _one_of("report", "kill"),
        "report or kill",
    ),
    _address("health_address", "gRPC health service for probes; empty: none", "0.0.0.0:51515"),
    _address("metrics_address", "Prometheus metrics over HTTP; empty: none", "0.0.0.0:9400"),
    _seconds("api_timeout_s", "most time for one call of the API server", 60),
    _seconds("scan_interval_s", "time between scans for GPUs", 3600),
    _seconds("sweep_interval_s", "time between sweeps", 3600),
    _seconds(
        "status_interval_s", "least time between two reports of its use in a claim's status", 3600
    ),
    _effect("taint_lost", "that is lost"),
    _effect("taint_fault", "that needs a reset or a repair"),
    _effect("taint_note", "of which something is worth knowing"),
    _seconds(
        "health_quiet_s", "time without trouble until a GPU is tried and trusted again", 86400
    ),
    _seconds("nvml_timeout_s", "time after which a call of NVML counts as hanging", 3600),
    Setting(
        "log_level",
        "least level that is logged",
        _one_of("DEBUG", "INFO", "WARNING", "ERROR"),
        "DEBUG, INFO, WARNING or ERROR",
    ),
    Setting("log_format", "text or json", _one_of("text", "json"), "text or json"),
)
