"""What is built once and kept: entries that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.harness import progress

_KEY_LENGTH = 16  # hex digits
_PRUNE_AGE = 3600.0  # seconds: what another process may be about to read stays


def folder() -> Path:
    """The harness's cache folder: $TEST_CLUSTER_CACHE, else below $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("TEST_CLUSTER_CACHE")
    user = os.environ.get("XDG_CACHE_HOME")
    base = Path(own) if own else (Path(user) if user else Path.home() / ".cache") / "apportion"
    return base.absolute() / "cluster"


def key(parts: Iterable[bytes | str]) -> str:
    """A short name for what all parts, in this order, determine."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:_KEY_LENGTH]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for another process that builds {path.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def entry(name: str, build: Callable[[Path], None]) -> Path:
    """The folder of a cache entry; calls build with an empty folder when there is none yet.

    The name holds the key of everything that determines the content.
    """
    target = folder() / name
    if target.is_dir():
        os.utime(target)  # when it was last used: see prune
        return target
    with locked(folder() / f"{name}.lock"):
        if target.is_dir():
            return target
        work = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder()))
        try:
            build(work)
            work.chmod(0o755)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def prune(prefix: str, keep: int) -> None:
    """Remove entries of this prefix that nobody used lately, beyond the `keep` last used ones."""
    used = sorted(
        ((path.stat().st_mtime, path) for path in folder().glob(f"{prefix}*") if path.is_dir()),
        reverse=True,
    )
    for when, path in used[keep:]:
        if time.time() - when > _PRUNE_AGE:
            shutil.rmtree(path, ignore_errors=True)
