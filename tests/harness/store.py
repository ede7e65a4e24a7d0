"""containerd folders that have images already, for new nodes to start from.

Importing 160 MB takes seconds and both cores, for every cluster anew. Here it is done once; a node
gets the folder as hard links. What is linked is never written in place: image blobs, and layers
that are only ever the lower part of an overlay. containerd's databases are copied.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.harness import base_images, cache, progress
from tests.harness.errors import ComponentError

_START_TIMEOUT = 30.0  # seconds
_IMPORT_TIMEOUT = 300.0  # seconds
_COPY_TIMEOUT = 300.0  # seconds
_KEPT = 4
_UNUSED_PLUGINS = (
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.grpc.v1.cri",
    "io.containerd.nri.v1.nri",
)


def base_store(containerd: Path) -> Path:
    """containerd's root folder with pause, busybox and the Python image; made when missing.

    containerd: the folder of its programs.
    """
    return _store(containerd, None, base_archives())


def store_with(containerd: Path, archives: Sequence[Path]) -> Path:
    """The base store with further images; made when missing, from the base store."""
    base = base_store(containerd)
    further = [archive for archive in archives if archive not in base_archives()]
    return _store(containerd, base, further) if further else base


def _store(containerd: Path, start: Path | None, archives: Sequence[Path]) -> Path:
    key = cache.key([str(containerd), str(start), *(_identity(archive) for archive in archives)])
    store = cache.entry(f"image-store-{key}", _Build(containerd, start, archives)) / "root"
    cache.prune("image-store-", _KEPT)
    return store


def _identity(archive: Path) -> str:
    """Archives of the cache are named by their content; others may change in place."""
    status = archive.stat()
    return f"{archive.absolute()} {status.st_size} {status.st_mtime_ns}"


def base_archives() -> list[Path]:
    """The images that every node has from its start."""
    return [base_images.pause_image(), base_images.busybox_image(), base_images.python_image()]


def copy(store: Path, target: Path) -> None:
    """Fill target, which is empty, from the store."""
    same_device = store.stat().st_dev == target.stat().st_dev
    how = ["--link"] if same_device else []
    command = ["cp", "--archive", *how, f"{store}/.", str(target)]
    subprocess.run(command, check=True, timeout=_COPY_TIMEOUT)
    for database in target.rglob("*.db") if same_device else ():
        if database.parent.parent == target:  # deeper ones are files of images
            _unlink_copy(database)


def _unlink_copy(path: Path) -> None:
    copied = path.with_suffix(".copy")
    copied.write_bytes(path.read_bytes())
    copied.rename(path)


class _Build:
    """Runs a containerd that only imports."""

    def __init__(self, containerd: Path, start: Path | None, archives: Sequence[Path]) -> None:
        self._programs = containerd
        self._start = start
        self._archives = archives

    def __call__(self, folder: Path) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="apportion-store-") as work,
            progress.task(f"unpacking {len(self._archives)} images once for all clusters"),
        ):
            (folder / "root").mkdir()
            if self._start:
                copy(self._start, folder / "root")
            self._build(folder, Path(work))

    def _build(self, folder: Path, work: Path) -> None:
        socket = work / "socket"
        config = work / "config.toml"
        config.write_text(_config(folder / "root", work / "state", socket))
        log = work / "log"
        with log.open("wb") as output:
            # Mounts of its own: what it unpacks through is gone with it.
            daemon = subprocess.Popen(
                ["unshare", "--mount", self._programs / "containerd", "--config", config],
                stdout=output,
                stderr=output,
                env=os.environ | {"PATH": f"{self._programs}:{os.environ['PATH']}"},
            )
        try:
            self._wait(daemon, socket, log)
            for archive in self._archives:
                self._import(socket, archive)
        finally:
            daemon.terminate()
            daemon.wait(_START_TIMEOUT)

    @staticmethod
    def _wait(daemon: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not socket.exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise ComponentError("containerd", "did not start to unpack the images", log)
            time.sleep(0.05)

    def _import(self, socket: Path, archive: Path) -> None:
        ctr = [str(self._programs / "ctr"), f"--address={socket}", "--namespace=k8s.io"]
        command = [*ctr, "image", "import", "--local", str(archive)]
        subprocess.run(command, check=True, capture_output=True, timeout=_IMPORT_TIMEOUT)


def _config(root: Path, state: Path, socket: Path) -> str:
    disabled = ", ".join(f'"{plugin}"' for plugin in _UNUSED_PLUGINS)
    return f"""\
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = [{disabled}]
[grpc]
  address = "{socket}"
"""
