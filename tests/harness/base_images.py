"""Images that are made from nothing but Debian packages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness import cache, oci, progress, requirements
from tests.harness.errors import HarnessError
from tests.harness.versions import BUILDER_PACKAGES, DEBIAN_SUITE, PYTHON_PACKAGES

PYTHON_IMAGE = "docker.io/library/python:3.11-slim-bookworm"  # a Debian 12 with python3
BUSYBOX_IMAGE = "localhost/busybox:1"
PAUSE_IMAGE = "localhost/pause:1"
BUILDER_IMAGE = "localhost/apportion-builder:bookworm"  # plus gcc, make, libc6-dev, venv, pip
_FOLDERS = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "tmp", "usr", "usr/bin", "usr/lib")
_TIMEOUT = 20.0  # seconds
_DEBIAN_TIMEOUT = 900.0  # seconds
_DEBIAN_OPTIONS = (
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    # Docker's image has Python in /usr/local/bin, and `python` too; a Dockerfile may name either.
    '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python3"',
    '--customize-hook=ln -s /usr/bin/python3 "$1/usr/local/bin/python"',
    '--customize-hook=rm -rf "$1/var/lib/apt/lists" "$1/var/cache/apt"',
)


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
    """Archive of PYTHON_IMAGE: a Debian with Python at the places where Docker's has it."""
    return _debian("python", PYTHON_IMAGE, PYTHON_PACKAGES)


def builder_image() -> Path:
    """Archive of BUILDER_IMAGE: what PYTHON_IMAGE has, a compiler, pip and venv."""
    return _debian("builder", BUILDER_IMAGE, [*PYTHON_PACKAGES, *BUILDER_PACKAGES])


def _debian(name: str, reference: str, packages: Sequence[str]) -> Path:
    image = oci.Image(reference, ("python3",))
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", *_DEBIAN_OPTIONS]
    command.append(f"--include={','.join(sorted(packages))}")

    def build(folder: Path) -> None:
        requirements.ensure()
        layer = folder / "layer.tar"
        with progress.task(f"making a Debian {DEBIAN_SUITE} image with {', '.join(packages)}"):
            result = subprocess.run(
                [*command, DEBIAN_SUITE, str(layer)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_DEBIAN_TIMEOUT,
            )
            if result.returncode:
                raise HarnessError(f"mmdebstrap failed:\n{result.stderr[-2000:]}")
            oci.write_archive(image, layer, folder / "image.tar")
        layer.unlink()

    key = cache.key([DEBIAN_SUITE, repr(image), *command])
    return cache.entry(f"image-{name}-{key}", build) / "image.tar"
