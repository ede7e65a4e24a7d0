"""mount(2), as far as a machine needs it."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
RDONLY = 1
NOSUID = 2
NODEV = 4
NOEXEC = 8
REMOUNT = 32
BIND = 4096
REC = 16384
SHARED = 1 << 20
_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2); raises OSError with the target."""
    arguments = [os.fsencode(text) or None for text in (source, target, kind)]
    result = _LIBC.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data) or None)
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source or kind}: {os.strerror(number)}", target)


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Show the file or folder source at target, which is made if it isn't there."""
    make_point(source, target)
    mount(source, target, flags=BIND | REC)
    if read_only:
        mount("", target, flags=BIND | REMOUNT | RDONLY)


def make_point(source: str, target: str) -> None:
    """Make target what a bind mount of source needs: a folder, or else a file."""
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    elif not os.path.lexists(target):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()


def tmpfs(target: str, mode: str) -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    mount("tmpfs", target, "tmpfs", NOSUID, f"mode={mode}")


def points_below(folder: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Mount points strictly below folder, parents before children."""
    points = []
    for line in mountinfo.read_text().splitlines():
        point = _plain(line.split(" ")[4])
        if point.startswith(f"{folder}/"):
            points.append(point)
    return sorted(set(points))


def is_overlay(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether the file system that holds path is an overlay, as a container's root is."""
    where = path.resolve()
    found: dict[Path, str] = {}
    for line in mountinfo.read_text().splitlines():
        left, _, right = line.partition(" - ")
        found[Path(_plain(left.split(" ")[4]))] = right.split(" ")[0]  # the last one lies on top
    holder = next(folder for folder in (where, *where.parents) if folder in found)
    return found[holder] == "overlay"


def _plain(point: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), point)
