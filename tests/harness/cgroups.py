"""Cgroups of a cluster, in every hierarchy of version 1 and in version 2."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_REMOVE_SECONDS = 10.0
_INHERITED_V1 = ("cpuset.cpus", "cpuset.mems")  # empty in a new cpuset: no process may enter


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system."""

    root: Path
    is_v2: bool


def hierarchies(mounts: Path = Path("/proc/self/mounts")) -> list[Hierarchy]:
    """All hierarchies that this process sees, sorted by path."""
    found = set()
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        if kind in {"cgroup", "cgroup2"}:
            found.add((point, kind == "cgroup2"))
    return [Hierarchy(Path(point), is_v2) for point, is_v2 in sorted(found)]


def create(path: str) -> None:
    """Make the cgroup (`a/b`, relative to the root) in every hierarchy, ready for children."""
    for hierarchy in hierarchies():
        parent = hierarchy.root
        for part in Path(path).parts:
            _enable(parent, hierarchy)
            child = parent / part
            child.mkdir(exist_ok=True)
            _inherit(parent, child)
            parent = child
        _enable(parent, hierarchy)


def _enable(folder: Path, hierarchy: Hierarchy) -> None:
    if not hierarchy.is_v2:
        return
    for controller in _CONTROLLERS:
        # Which controllers there are differs by machine; kubelet says which one it misses.
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _inherit(parent: Path, child: Path) -> None:
    for name in _INHERITED_V1:
        ours = child / name
        with contextlib.suppress(OSError):
            if not ours.read_text().strip():
                ours.write_text((parent / name).read_text())


def remove(path: str) -> list[Path]:
    """Remove the cgroup and all below it, deepest first; gives what could not be removed.

    Its processes must have been ended before; the kernel may need a moment to see that.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        left = [folder for hierarchy in hierarchies() for folder in _tree(hierarchy.root / path)]
        busy = [folder for folder in left if not _removed(folder)]
        if not busy or time.monotonic() > deadline:
            return busy
        time.sleep(0.05)


def _tree(top: Path) -> list[Path]:
    """All folders at and below top, children before parents."""
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)] if top.is_dir() else []


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
