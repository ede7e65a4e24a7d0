"""The images that pods run, made without any registry."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness import cache, oci

PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"  # a Debian 12 with python3
BUSYBOX_IMAGE = "localhost/busybox:1"
PAUSE_IMAGE = "localhost/pause:1"
BUILDER_IMAGE = "localhost/apportion-builder:bookworm"  # plus gcc, make, libc6-dev, venv, pip
_FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr", "usr/bin", "usr/lib")
_TIMEOUT = 20.0  # seconds


def pause_image() -> Path:
    """Archive of PAUSE_IMAGE, from the cache or new."""
    image = oci.Image(PAUSE_IMAGE, ("/bin/sleep", "infinity"))
    return _busybox("pause", image, ["sleep"])


def busybox_image() -> Path:
    """Archive of BUSYBOX_IMAGE: busybox-static with links for all its applets."""
    listing = subprocess.run(
        [_busybox_program(), "--list"], capture_output=True, text=True, check=True, timeout=_TIMEOUT
    )
    applets = [name for name in listing.stdout.split() if name != "busybox"]
    return _busybox("busybox", oci.Image(BUSYBOX_IMAGE, ("/bin/sh",)), applets)


def _busybox_program() -> Path:
    return Path(shutil.which("busybox") or "/bin/busybox")


def _busybox(name: str, image: oci.Image, applets: Sequence[str]) -> Path:
    program = _busybox_program()
    tree = oci.Tree(
        folders=_FOLDERS,
        files={"bin/busybox": program},
        links={f"bin/{applet}": "busybox" for applet in applets},
    )

    def build(folder: Path) -> None:
        oci.write_layer(tree, folder / "layer.tar")
        oci.write_archive(image, folder / "layer.tar", folder / "image.tar")
        (folder / "layer.tar").unlink()

    key = cache.key([program.read_bytes(), repr(image), *applets, *_FOLDERS])
    return cache.entry(f"image-{name}-{key}", build) / "image.tar"


def python_image() -> Path:
    """Archive of PYTHON_IMAGE."""
    raise NotImplementedError


def build_project_image(repo: Path, tag: str) -> Path:
    """Build the repository's Dockerfile; gives an archive whose image is named tag."""
    raise NotImplementedError
