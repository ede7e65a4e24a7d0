"""Settings with their types and defaults; defaults < file < environment < flags.

Unknown names are refused wherever they come from, so that a misspelt limit is never a missing one.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from apportion.errors import ConfigError
from apportion.model import CoresMode, GpuUuid
from apportion.settings import SETTINGS, WHOLE_NUMBER, Setting, modes, periods

ENV_PREFIX = "APPORTION_"

# Kubernetes gives each container variables for the Services of its namespace, and one that is
# called `apportion` or `apportion-metrics` gives names with our prefix. None is a setting; they
# come together (FromServices in pkg/kubelet/envvars), which a misspelt setting does not.
_SERVICE_HOST = "_SERVICE_HOST"
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.+")
_SERVICE_LINK = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the plugin, checked. Paths are as the plugin's own container sees them."""

    driver_name: str = "apportion.gpu"
    node_name: str = ""
    pod_uid: str = ""
    kubeconfig: str = ""
    service_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    plugins_dir: Path = Path("/var/lib/kubelet/plugins")
    registry_dir: Path = Path("/var/lib/kubelet/plugins_registry")
    cdi_dir: Path = Path("/var/run/cdi")
    shares_dir: Path = Path("/run/apportion/shares")
    driver_root: Path = Path("/")
    driver_root_mount: Path = Path("/")
    shim_dir: Path = Path("/usr/lib/apportion")
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    device_naming: str = "pci"
    device_prefix: str = ""
    memory_capacity: str = "usable"
    cores_min: int = 1
    cores_mode: str = "timeslice"
    cores_modes: str = ""
    cores_period_ms: int = 50
    cores_periods: str = ""
    mps_reserve_mib: int = 128
    self_test: str = "on"
    guard: str = "kill"
    guard_interval_s: int = 2
    guard_slack_mib: int = 2
    guard_overhead_mib: int = 64
    guard_recorded_mib: int = 512
    guard_strangers: str = "report"
    health_address: str = "0.0.0.0:51515"
    metrics_address: str = ""
    api_timeout_s: int = 10
    scan_interval_s: int = 60
    sweep_interval_s: int = 60
    status_interval_s: int = 30
    taint_lost: str = "NoSchedule"
    taint_fault: str = "NoSchedule"
    taint_note: str = "off"
    health_quiet_s: int = 600
    nvml_timeout_s: int = 60
    log_level: str = "INFO"
    log_format: str = "text"
    # No setting: variables with our prefix that Kubernetes made, for a person to see.
    ignored: tuple[str, ...] = ()

    @property
    def plugin_dir(self) -> Path:
        """The plugin's own folder: sockets, checkpoints, libraries."""
        return self.plugins_dir / self.driver_name

    @property
    def driver_shares_dir(self) -> Path:
        """The share folders of this driver; those of another on the node are not its to sweep."""
        return self.shares_dir / self.driver_name

    @property
    def mps_dir(self) -> Path:
        """Folder of the MPS daemons of this node; beside the shares, on the same tmpfs."""
        return self.shares_dir.parent / "mps"

    @property
    def modes(self) -> dict[str, str]:
        """How shares are held to their cores on the GPUs that have a mode of their own."""
        return modes(self.cores_modes) or {}

    def mode_of(self, uuid: GpuUuid) -> CoresMode:
        """Return how shares of a GPU that are made now are held to their cores."""
        return CoresMode(self.modes.get(uuid, self.cores_mode))

    def period_ns(self, uuid: str) -> int:
        """Return the period of a GPU's time division in nanoseconds, a multiple of 10 000."""
        ms = (periods(self.cores_periods) or {}).get(uuid, self.cores_period_ms)
        return ms * 1_000_000


_BY_NAME = {setting.name: setting for setting in SETTINGS}
_DEFAULTS: dict[str, Any] = {
    f.name: f.default for f in dataclasses.fields(Config) if f.name in _BY_NAME
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` --config and one flag per setting: --driver-name and so on."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings by name")
    group = parser.add_argument_group(
        "settings", f"each also as {ENV_PREFIX}<NAME>, or in --config"
    )
    for setting in SETTINGS:
        group.add_argument(
            "--" + setting.name.replace("_", "-"),
            dest=setting.name,
            metavar=type(_DEFAULTS[setting.name]).__name__.removeprefix("Posix").upper(),
            help=f"{setting.help} (default: {_DEFAULTS[setting.name] or 'none'})",
        )


def load(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Config:
    """Return the settings from all sources.

    Args:
        flags: parsed arguments by setting name; None is "not given"; `config` names the file.
        environ: environment; default the process's own.

    Raises:
        ConfigError: unknown name, wrong type or value, or two that do not go together; the message
            names source and expectation.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    path = flags.get("config") or environ.get(ENV_PREFIX + "CONFIG")
    if path:
        found |= _checked(_read(Path(path)), source=str(path))
    links = _service_links(environ)
    from_env = {
        key: value
        for key, value in sorted(environ.items())
        if key.startswith(ENV_PREFIX) and key != ENV_PREFIX + "CONFIG" and key not in links
    }
    found |= _checked(from_env, source="environment", name_of=_in_environment)
    given = {s.name: flags[s.name] for s in SETTINGS if flags.get(s.name) is not None}
    found |= _checked(given, source="command line")
    result = Config(**found, ignored=tuple(sorted(links)))
    if result.health_address and result.health_address == result.metrics_address:
        raise ConfigError(
            f"settings health_address and metrics_address are both {result.health_address!r}; "
            "give each a port of its own"
        )
    return result


def _in_environment(setting: str) -> str:
    return ENV_PREFIX + setting.upper()


def _service_links(environ: Mapping[str, str]) -> set[str]:
    """Return the variables with our prefix that Kubernetes made for Services, all or none of one.

    A variable in a link's place that holds something else is none: somebody meant a setting.
    """
    found = set()
    for host in environ:
        service = host.removesuffix(_SERVICE_HOST)
        if service == host or not f"{service}_".startswith(ENV_PREFIX):
            continue
        if f"{service}_SERVICE_PORT" in environ and _SERVICE_URL.fullmatch(
            environ.get(f"{service}_PORT", "")
        ):
            family = (key for key in environ if key.startswith(f"{service}_"))
            found |= {key for key in family if _SERVICE_LINK.fullmatch(key[len(service) + 1 :])}
    return found


class _Loader(yaml.SafeLoader):
    """Refuses a name given twice, of which YAML would keep the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature is PyYAML's
        """Return the mapping, or raise a YAMLError that says where the second one is."""
        seen: set[str] = set()
        for key, _value in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"cannot read settings from {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} must hold settings by name, such as 'driver_name: apportion.gpu'"
        )
    return {str(key): value for key, value in content.items()}


def _checked(
    values: Mapping[str, Any], source: str, name_of: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the values by setting.

    Args:
        values: by name as written.
        source: where they come from, for a person.
        name_of: how a setting is written there.
    """
    settings = {name_of(setting.name): setting for setting in SETTINGS}
    unknown = sorted(set(values) - set(settings))
    if unknown:
        plain = unknown[0].removeprefix(ENV_PREFIX).lower().replace("-", "_")
        near = difflib.get_close_matches(plain, _BY_NAME, n=1)
        nearest = f"did you mean {name_of(near[0])}? " if near else ""
        raise ConfigError(
            f"unknown setting {unknown[0]!r} ({source}); {nearest}"
            f"known: {', '.join(sorted(settings))}"
        )
    return {
        settings[name].name: _value(settings[name], value, source)
        for name, value in sorted(values.items())
    }


def _value(setting: Setting, value: object, source: str) -> Any:
    kind = type(_DEFAULTS[setting.name])
    converted = _converted(kind, value)
    if converted is None or not setting.check(converted):
        expect = setting.expect or f"a value of type {kind.__name__}"
        if kind is not int and not isinstance(value, str | list | dict) and value is not None:
            # What YAML makes of 0777 or on is no longer what was written.
            expect += ", in quotes"
        raise ConfigError(f"setting {setting.name} ({source}) is {value!r}; expected {expect}")
    return converted


def _converted(kind: type[Any], value: object) -> Any:
    """Return `value` as `kind`, or None: a text that YAML takes for a number is not guessed."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    if kind is int:
        return int(value) if WHOLE_NUMBER.fullmatch(str(value)) else None
    if not isinstance(value, str) or "\0" in value:
        return None
    return Path(value) if issubclass(kind, Path) else value
