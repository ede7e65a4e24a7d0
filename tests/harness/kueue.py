"""Kueue, as its release is: one manifest and one image, both made from its Go module."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.harness import cache, golang, oci, progress
from tests.harness.errors import HarnessError
from tests.harness.versions import DEFAULT_KUBERNETES, KUEUE

IMAGE = f"registry.k8s.io/kueue/kueue:v{KUEUE}"
_USER = "65532:65532"
_TIMEOUT = 120.0  # seconds


def image() -> Path:
    """Archive of IMAGE: /manager and nothing else."""
    built = golang.kueue()
    tree = oci.Tree(folders=("tmp",), files={"manager": built / "bin/kueue"})
    content = oci.Image(IMAGE, ("/manager",), user=_USER)

    def build(folder: Path) -> None:
        oci.write_layer(tree, folder / "layer.tar")
        oci.write_archive(content, folder / "layer.tar", folder / "image.tar")
        (folder / "layer.tar").unlink()

    return _entry("image-kueue", [built.name, repr(content), _USER], build) / "image.tar"


def manifests() -> Path:
    """The release's manifests.yaml: kubectl's kustomize of the module's config/default.

    It differs in how images are pulled, for there is no registry.
    """
    built = golang.kueue()
    kubectl = golang.kubernetes(DEFAULT_KUBERNETES) / "kubectl"

    def build(folder: Path) -> None:
        with progress.task(f"rendering the manifests of Kueue {KUEUE}"):
            text = _render(kubectl, built / "config/default")
        (folder / "manifests.yaml").write_text(_released(text))

    return _entry("kueue-manifests", [built.name, IMAGE], build) / "manifests.yaml"


def _entry(name: str, parts: list[str], build: Callable[[Path], None]) -> Path:
    return cache.entry(f"{name}-{KUEUE}-{cache.key(parts)}", build)


def _render(kubectl: Path, folder: Path) -> str:
    result = subprocess.run(
        [str(kubectl), "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    if result.returncode:
        raise HarnessError(f"kubectl kustomize {folder}: {result.stderr[-2000:]}")
    return result.stdout


def _released(text: str) -> str:
    """Name the release's image in place of the development one."""
    text, images = re.subn(r"image: \S+/kueue:main\b", f"image: {IMAGE}", text)
    text, pulls = re.subn(r"imagePullPolicy: Always\b", "imagePullPolicy: IfNotPresent", text)
    if (images, pulls) != (1, 1):
        raise HarnessError(f"Kueue's manifests name {images} images, pulled {pulls} times; 1 each?")
    return text
