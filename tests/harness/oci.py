"""Writes OCI image archives, byte for byte the same for the same input."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    """What `docker inspect` would show."""

    reference: str
    command: tuple[str, ...]
    environment: tuple[str, ...] = (_PATH,)
    # Empty: root. Not in repr, which names the images in caches that were made before this.
    user: str = field(default="", repr=False)


@dataclass(frozen=True)
class Tree:
    """A small root file system: folders, files (path in the image -> host file), links."""

    folders: Sequence[str] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def write_layer(tree: Tree, target: Path) -> None:
    """Write the tree as an uncompressed layer, owned by root, with no times in it."""
    with tarfile.open(target, "w") as layer:
        for name in sorted(tree.folders):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            folder.mode = 0o1777 if name == "tmp" else 0o755
            layer.addfile(folder)
        for name, source in sorted(tree.files.items()):
            file = tarfile.TarInfo(name)
            file.size = source.stat().st_size
            file.mode = 0o755
            with source.open("rb") as content:
                layer.addfile(file, content)
        for name, link_target in sorted(tree.links.items()):
            link = tarfile.TarInfo(name)
            link.type = tarfile.SYMTYPE
            link.linkname = link_target
            layer.addfile(link)


def write_archive(image: Image, layer: Path, target: Path) -> None:
    """Write an archive of the image with one layer, which is an uncompressed tar file."""
    layer_digest = _file_digest(layer)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": list(image.command),
            "Env": list(image.environment),
            **({"User": image.user} if image.user else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    config_data = json.dumps(config, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _descriptor(_CONFIG, config_data),
        "layers": [
            {
                "mediaType": _LAYER,
                "digest": f"sha256:{layer_digest}",
                "size": layer.stat().st_size,
            }
        ],
    }
    manifest_data = json.dumps(manifest, sort_keys=True).encode()
    annotations = {
        "io.containerd.image.name": image.reference,  # how `ctr image import` names it
        "org.opencontainers.image.ref.name": image.reference,  # how buildah does
    }
    entry = _descriptor(_MANIFEST, manifest_data) | {"annotations": annotations}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}, sort_keys=True).encode()
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", index)
        for data in (config_data, manifest_data):
            _add(archive, f"blobs/sha256/{hashlib.sha256(data).hexdigest()}", data)
        with layer.open("rb") as content:
            size = layer.stat().st_size
            _add_stream(archive, f"blobs/sha256/{layer_digest}", content, size)


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_stream(archive, name, io.BytesIO(data), len(data))


def _add_stream(archive: tarfile.TarFile, name: str, content: BinaryIO, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    archive.addfile(info, content)
