"""Whose a process is, by what procfs says of it: the share by its mounts, the pod by its cgroup.

Pure. Nothing here goes by a name or path that the process chose: a mount is told by its file system
and the place in it, a pod by the topmost name that kubelet gives to cgroups.
Source: proc_pid_mountinfo(5), cgroups(7), proc_pid_stat(5); pkg/kubelet/cm of Kubernetes for the
names of cgroups.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from apportion.model import ShareKey

_DELETED = "//deleted"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_DEVICE, _ROOT, _POINT = 2, 3, 4
_FIELDS = 6

# kubelet's cgroup of a pod: `pod<uid>` (cgroupfs) or `kubepods-burstable-pod<uid>.slice` (systemd,
# where `_` stands for `-`). A UID is 32 hexadecimal digits, with dashes but for a static pod's.
_POD = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?")

_GONE = frozenset("ZXx")
_STATE, _PARENT, _FLAGS, _START = 0, 1, 6, 19
_EXITING = 0x4  # PF_EXITING of linux/sched.h


@dataclass(frozen=True, slots=True)
class Place:
    """Where the share folders lie, whatever they are called from where.

    Attributes:
        device: `major:minor` of their file system.
        root: their folder in it, without a slash at the end.
    """

    device: str
    root: str


@dataclass(frozen=True, slots=True)
class Stat:
    """What is taken from /proc/<pid>/stat.

    Attributes:
        gone: it is ending, or a zombie: it runs no more, and its memory goes or has gone.
        parent: its parent's PID.
        start: when it started, in clock ticks after boot; with the PID it names one process.
    """

    gone: bool
    parent: int
    start: int


def place_of(folder: str, mountinfo: str) -> Place | None:
    """Return where a folder lies, by the mounts of a process that sees it; None: on none of them.

    Args:
        folder: absolute path without links.
        mountinfo: the process's mounts; of those over each other the last one counts.
    """
    best: tuple[int, Place] | None = None
    for device, root, point in _mounts(mountinfo):
        above = point.rstrip("/")
        if folder != point and not folder.startswith(above + "/"):
            continue
        if best is None or len(point) >= best[0]:
            inside = root.rstrip("/") + folder[len(above) :]
            best = (len(point), Place(device, inside.rstrip("/")))
    return best[1] if best else None


def shares(mountinfo: str, place: Place, known: Collection[ShareKey]) -> frozenset[ShareKey]:
    """Return the shares among `known` whose folder, or a file in it, is mounted somewhere.

    Where a mount lies, and what else is mounted, is the container's affair: only what it shows
    counts.
    """
    found = set()
    for device, root, _point in _mounts(mountinfo):
        if device != place.device:
            continue
        below = root.removesuffix(_DELETED).removeprefix(place.root + "/")
        key = ShareKey(below.split("/")[0])
        if below != root and key in known:
            found.add(key)
    return frozenset(found)


def sees_all(mountinfo: str, place: Place) -> bool:
    """Return whether a process sees the folder of all shares: it is the node's, or a plugin's."""
    return any(
        device == place.device and f"{place.root}/".startswith(root.rstrip("/") + "/")
        for device, root, _point in _mounts(mountinfo)
    )


def pod_uid(cgroup: str) -> str | None:
    """Return the UID of the pod that a process belongs to, by /proc/<pid>/cgroup; None: of none.

    The topmost cgroup that is named as kubelet names a pod's: what lies below it, a pod may have
    made and named itself.
    """
    for line in cgroup.splitlines():
        for part in line.split(":", 2)[-1].split("/"):
            match = _POD.fullmatch(part)
            if match:
                return match[1].replace("_", "-")
    return None


def stat(text: str) -> Stat | None:
    """Return what /proc/<pid>/stat says; None where it is cut off."""
    # The name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    try:
        gone = fields[_STATE] in _GONE or bool(int(fields[_FLAGS]) & _EXITING)
        return Stat(gone, int(fields[_PARENT]), int(fields[_START]))
    except (IndexError, ValueError):
        return None


def own_pid(status: str) -> int:
    """Return a process's PID in its own PID namespace, by /proc/<pid>/status; 0: unknown."""
    for line in status.splitlines():
        name, _colon, value = line.partition(":")
        if name == "NSpid" and value.split():
            return int(value.split()[-1])
    return 0


def _mounts(mountinfo: str) -> list[tuple[str, str, str]]:
    """Return device, root and mount point of each mount, in their order."""
    lines = (line.split(" ") for line in mountinfo.splitlines())
    return [
        (fields[_DEVICE], _plain(fields[_ROOT]), _plain(fields[_POINT]))
        for fields in lines
        if len(fields) > _FIELDS
    ]


def _plain(text: str) -> str:
    """Return a path without the kernel's escapes of space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
