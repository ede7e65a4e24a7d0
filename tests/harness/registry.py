"""Which clusters exist on this machine, so that what a killed supervisor left can be swept."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.harness import cache, cgroups, progress

_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted after the command's closing parenthesis


@dataclass(frozen=True)
class Record:
    """One cluster: whose it is and what has to go when it goes."""

    name: str
    pid: int  # of the supervisor
    start_time: int  # of that process, in clock ticks since boot: a PID alone is reused
    boot_id: str  # of the machine: after a reboot every record is stale
    pid_namespace: str  # in which pid means something: the cache may be shared by containers
    state_dir: str
    keep_state: bool
    cgroup: str

    @property
    def alive(self) -> bool:
        """Whether its supervisor runs; taken as true where this process can't know."""
        if self.boot_id != machine_boot_id():
            return False
        if self.pid_namespace != _pid_namespace():
            return True
        return start_time(self.pid) == self.start_time


def machine_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[_START_TIME_FIELD])


def _folder() -> Path:
    return cache.folder() / "running"


def add(name: str, state_dir: Path, cgroup: str, *, keep_state: bool) -> tuple[Path, Record]:
    """Record a cluster whose supervisor is the calling process; gives the file and the record."""
    pid = os.getpid()
    record = Record(
        name=name,
        pid=pid,
        start_time=start_time(pid) or 0,
        boot_id=machine_boot_id(),
        pid_namespace=_pid_namespace(),
        state_dir=str(state_dir),
        keep_state=keep_state,
        cgroup=cgroup,
    )
    _folder().mkdir(parents=True, exist_ok=True)
    path = _folder() / f"{cgroup}.json"
    work = path.with_suffix(".new")
    work.write_text(json.dumps(asdict(record), indent=1))
    work.rename(path)
    return path, record


def records() -> list[tuple[Path, Record]]:
    """All records with their files, sorted by name."""
    found = [(path, Record(**json.loads(path.read_text()))) for path in _folder().glob("*.json")]
    return sorted(found, key=lambda item: (item[1].name, item[0]))


def sweep() -> None:
    """Remove what clusters without a supervisor left: cgroups, state folder, record."""
    with cache.locked(cache.folder() / "sweep.lock"):
        for path, record in records():
            if not record.alive:
                progress.say(f"removing what cluster {record.name} (ended by force) left")
                discard(path, record)


def discard(path: Path, record: Record) -> list[str]:
    """Remove all that a cluster leaves in the file system; gives what could not be removed."""
    busy = [str(folder) for folder in cgroups.remove(record.cgroup)]
    if not record.keep_state:
        shutil.rmtree(record.state_dir, ignore_errors=True)
        if Path(record.state_dir).exists():
            busy.append(record.state_dir)
    if not busy:
        path.unlink(missing_ok=True)
    return busy
