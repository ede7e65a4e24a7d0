"""A program of the driver's on the node itself: `python -m apportion.mps.launch <order as JSON>`.

The daemon has to outlive the plugin's container, or each update of the plugin would end every
program on the GPU; so it gets out of the container first: into the namespaces of PID 1, which in a
pod with hostPID is the node's, and into a cgroup of its own. Where the plugin runs on the node
itself there is nothing to leave. A driver root that is a whole file system is entered; one that has
the driver's files only is not, and its libraries are found by path.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from apportion import driver

CGROUP = "apportion-mps"

_LOADERS = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1")
_NAMESPACES = ("cgroup", "ipc", "uts", "net", "mnt")
"""Mounts last: what the others are is read from the container's procfs."""

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_MISSING = 127


class LaunchError(Exception):
    """It cannot be started; the text says why."""


def _refused(what: str) -> OSError:
    """Return the error of the system call before, whose text has the reason and a remedy."""
    number = ctypes.get_errno()
    todo = "the plugin's container must be privileged"
    return OSError(number, f"cannot {what}: {os.strerror(number)}; {todo}")


def leave(proc: Path = Path("/proc")) -> bool:
    """Enter the namespaces of PID 1; return whether they were others. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    targets = []
    for kind in _NAMESPACES:
        theirs, own = (proc / who / "ns" / kind for who in ("1", "self"))
        if theirs.exists() and theirs.stat().st_ino != own.stat().st_ino:
            targets.append(os.open(theirs, os.O_RDONLY | os.O_CLOEXEC))
    for target in targets:
        if libc.setns(target, 0):
            raise _refused("enter the node's namespaces")
    return bool(targets)


def move(name: str = CGROUP, root: Path = Path("/sys/fs/cgroup")) -> None:
    """Go into a cgroup of its own, in every hierarchy there is. Raises OSError."""
    unified = (root / "cgroup.procs").exists()
    for hierarchy in [root] if unified else sorted(root.iterdir()):
        # A new cpuset has no CPUs, and nothing can enter it; there the root is as good.
        folder = hierarchy if hierarchy.name.startswith("cpuset") else hierarchy / name
        if (hierarchy / "cgroup.procs").exists():
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(os.getpid()))


def enter_root(root: Path, folder: Path) -> None:
    """Make `root` the root, with `folder` in it at the same path. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    inside = root / folder.relative_to("/")
    inside.mkdir(parents=True, exist_ok=True)
    if libc.unshare(_CLONE_NEWNS):
        raise _refused("get mounts of its own")
    for source, target, flags in (
        ("none", Path("/"), _MS_REC | _MS_SLAVE),
        (str(folder), inside, _MS_BIND),
    ):
        if libc.mount(source.encode(), bytes(target), None, ctypes.c_ulong(flags), None):
            raise _refused(f"mount {source} on {target}")
    os.chroot(root)
    os.chdir("/")


def find(root: Path, program: str) -> Path:
    """Return where a program of the driver lies below its root. Raises LaunchError."""
    for folder in driver.PROGRAM_DIRS:
        found = driver.resolve(root, f"{folder}/{program}")
        if found is not None and os.access(root / found, os.X_OK):
            return root / found
    raise LaunchError(
        f"{program} is in none of {', '.join(driver.PROGRAM_DIRS)} below {root}; install it with "
        "the driver (Debian and Ubuntu: nvidia-compute-utils)"
    )


def run(order: dict[str, Any]) -> None:
    """Become the program of the order. Raises LaunchError or OSError."""
    os.setsid()
    moved = leave() if order["leave"] else False
    if order["leave"] and not moved:
        raise LaunchError(
            "the plugin's pod sees its own processes only, so the daemon would end with it; set "
            "hostPID: true in the DaemonSet"
        )
    root = Path(order["root"] if moved else order["root_mount"])
    if moved:
        move()
    environ = dict(order["env"])
    if root != Path("/") and any((root / loader).exists() for loader in _LOADERS):
        enter_root(root, Path(order["folder"]))
        root = Path("/")
    libraries = root / order["libdir"].lstrip("/")
    if not (libraries / "libc.so.6").exists():
        # A folder of the driver's alone, of which the dynamic linker may not know.
        environ["LD_LIBRARY_PATH"] = str(libraries)
    path = find(root, order["program"])
    environ["PATH"] = f"{path.parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    os.umask(0)
    os.execve(path, [order["program"], *order["args"]], environ)  # noqa: S606 - no shell is wanted


def main(arguments: list[str]) -> int:
    """Return only when it failed, with the reason on standard error."""
    try:
        run(json.loads(arguments[0]))
    except (LaunchError, OSError) as error:
        sys.stderr.write(f"{error}\n")
    return _MISSING


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
