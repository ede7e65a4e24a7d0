"""What the owner of a cluster hands to the supervisor and to the machines, as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CONTROL_PLANE = "control-plane"


@dataclass(frozen=True)
class Program:
    """A component: how a machine runs it. Its log is a file of the host."""

    argv: list[str]
    env: dict[str, str]
    log: str


@dataclass(frozen=True)
class FileSystem:
    """What a machine sees at its standard paths.

    Paths of persistent are kept below the machine's folder and outlive its reboot. binds maps
    paths in the machine to (path on the host, read-only?). masks maps files of /proc and /sys to
    the files that stand in their place.
    """

    persistent: list[str] = field(default_factory=list)
    binds: dict[str, tuple[str, bool]] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)
    null_devices: list[str] = field(default_factory=list)
    host_devices: list[str] = field(default_factory=list)
    usr_layer: str | None = None  # a folder whose usr/ is laid over the machine's own
    visible: list[str] = field(default_factory=list)  # host folders that must stay visible


@dataclass(frozen=True)
class Machine:
    """One set of namespaces with an init of ours."""

    name: str
    folder: str  # <state>/machines/<name>
    address: str
    cgroup: str | None
    sysctls: dict[str, str]
    routes: list[str]  # arguments of `ip route add`
    file_system: FileSystem
    programs: dict[str, Program]

    @property
    def socket(self) -> Path:
        return Path(self.folder) / "socket"


@dataclass(frozen=True)
class ClusterSpec:
    """The whole cluster; machines[0] is the control plane."""

    name: str
    state_dir: str
    keep_state: bool
    cgroup: str
    kubectl: str  # path on the host
    ctr: str  # path on the host
    machines: list[Machine]

    @property
    def control_socket(self) -> Path:
        return Path(self.state_dir) / "control.socket"


def cluster_file(state: Path) -> Path:
    return state / "cluster.json"


def machine_file(folder: Path) -> Path:
    return folder / "machine.json"


def write(path: Path, value: Machine | ClusterSpec) -> None:
    """Replace path by value's JSON, whole at every moment."""
    work = path.with_name(f".{path.name}.new")
    work.write_text(json.dumps(asdict(value), indent=1))
    work.chmod(0o600)
    work.rename(path)


def read_machine(path: Path) -> Machine:
    return _machine(json.loads(path.read_text()))


def read_cluster(path: Path) -> ClusterSpec:
    raw = json.loads(path.read_text())
    return ClusterSpec(**(raw | {"machines": [_machine(machine) for machine in raw["machines"]]}))


def _machine(raw: dict[str, Any]) -> Machine:
    file_system = dict(raw["file_system"])
    file_system["binds"] = {
        path: (source, bool(read_only))
        for path, (source, read_only) in file_system["binds"].items()
    }
    programs = {name: Program(**program) for name, program in raw["programs"].items()}
    return Machine(**(raw | {"file_system": FileSystem(**file_system), "programs": programs}))


def persistent_folder(machine_folder: Path, path: str) -> Path:
    """Where on the host a persistent path of a machine is kept."""
    return machine_folder / "root" / path.lstrip("/")
