"""A Docker build context: which files of a folder it has, and a key over them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.harness import cache

_GIT_TIMEOUT = 60.0  # seconds


def files(folder: Path) -> list[str]:
    """Relative paths of the context's files, sorted.

    In a git checkout: what git tracks or does not ignore; else everything. Less what .dockerignore
    names.
    """
    ignored = _ignore_rules(folder)
    names = _git_files(folder) or _all_files(folder)
    return sorted(name for name in names if not _is_ignored(name, ignored))


def key_parts(folder: Path, names: Sequence[str]) -> list[bytes]:
    """What determines the context: names, contents, link targets, executable bits."""
    parts = []
    for name in names:
        path = folder / name
        parts.append(name.encode())
        if path.is_symlink():
            parts.append(b"link to " + os.fsencode(path.readlink()))
        else:
            parts.append(b"program" if os.access(path, os.X_OK) else b"file")
            parts.append(path.read_bytes())
    return parts


def key(folder: Path) -> str:
    """A name for the context's content."""
    return cache.key(key_parts(folder, files(folder)))


def copy(folder: Path, names: Iterable[str], target: Path) -> None:
    """Put the context's files below target, so that the build sees what the key was made from."""
    for name in names:
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, destination, follow_symlinks=False)


def _git_files(folder: Path) -> list[str]:
    if not (folder / ".git").exists():
        return []
    # The checkout may belong to another user than root.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, check=True, timeout=_GIT_TIMEOUT
    )
    names = {os.fsdecode(name) for name in result.stdout.split(b"\0") if name}
    return [name for name in names if os.path.lexists(folder / name)]  # not what was just deleted


def _all_files(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    ]


def _ignore_rules(folder: Path) -> list[tuple[re.Pattern[str], bool]]:
    """(pattern, ignored?) per line of .dockerignore; the last that matches decides."""
    path = folder / ".dockerignore"
    lines = path.read_text().splitlines() if path.is_file() else []
    rules = []
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            name = text.removeprefix("!").strip("/").removeprefix("./")
            rules.append((_pattern(name), not text.startswith("!")))
    return rules


def _pattern(glob: str) -> re.Pattern[str]:
    """Docker's globs: `**` is any number of folders; what matches a folder matches all in it."""
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob):
        text += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(
            part, re.escape(part)
        )
    return re.compile(f"{text}(?:/.*)?")


def _is_ignored(name: str, rules: Sequence[tuple[re.Pattern[str], bool]]) -> bool:
    ignored = False
    for pattern, verdict in rules:
        if pattern.fullmatch(name):
            ignored = verdict
    return ignored
