"""Builds the project's own Dockerfile, with buildah, on bases made here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness import base_images, cache, context, progress, requirements
from tests.harness.errors import HarnessError

_TIMEOUT = 1800.0  # seconds
_ERROR_LINES = 40
_KEPT = 3  # images of one name
# Settings of pip that say how to reach the package index from this machine.
_PIP_SETTINGS = (
    "cert",
    "client-cert",
    "default-timeout",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-index",
    "proxy",
    "retries",
    "timeout",
    "trusted-host",
)
_PIP_PATHS = ("cert", "client-cert", "find-links")  # settings that may name files of this machine


def build_project_image(repo: Path, tag: str) -> Path:
    """Build the repository's Dockerfile; gives an archive whose image is named tag.

    Build args BASE_IMAGE and BUILDER_IMAGE name the local bases. Cached by a hash over the build
    context (git's files less .dockerignore's), the bases and the tag.
    """
    bases = {
        base_images.PYTHON_IMAGE: base_images.python_image(),
        base_images.BUILDER_IMAGE: base_images.builder_image(),
    }
    names = context.files(repo)
    key = cache.key([*context.key_parts(repo, names), *(str(path) for path in bases.values()), tag])
    name = tag.rpartition("/")[2].replace(":", "-")

    def build(folder: Path) -> None:
        requirements.ensure()
        # One storage for all builds: the bases are unpacked into it once.
        with (
            cache.locked(cache.folder() / "buildah.lock"),
            progress.task(f"building image {tag}"),
            tempfile.TemporaryDirectory(prefix="apportion-context-") as work,
        ):
            context.copy(repo, names, Path(work))
            _Buildah(cache.folder() / "buildah").build(Path(work), bases, tag, folder)

    archive = cache.entry(f"image-{name}-{key}", build) / "image.tar"
    cache.prune(f"image-{name}-", _KEPT)
    return archive


class _Buildah:
    """Buildah with a storage of its own: nothing of the machine's is read or written."""

    def __init__(self, storage: Path) -> None:
        storage.mkdir(parents=True, exist_ok=True)
        folders = [f"--root={storage}/root", f"--runroot={storage}/run"]
        self._command = ["buildah", *folders, "--storage-driver=vfs"]
        self._environment = os.environ | {
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "vfs",
            "TMPDIR": str(storage),
        }

    def build(self, work: Path, bases: Mapping[str, Path], tag: str, target: Path) -> None:
        for reference, archive in bases.items():
            self._pull(reference, archive)
        pip = pip_settings()
        config = target / "pip.conf"
        config.write_text(pip_config(pip))
        volumes = [(config, Path("/etc/pip.conf")), *((path, path) for path in pip_paths(pip))]
        self._run(
            "build",
            "--pull-never",
            "--layers=false",
            *(f"--volume={source}:{point}:ro" for source, point in volumes),
            f"--build-arg=BASE_IMAGE={base_images.PYTHON_IMAGE}",
            f"--build-arg=BUILDER_IMAGE={base_images.BUILDER_IMAGE}",
            f"--tag={tag}",
            str(work),
        )
        self._run("push", tag, f"docker-archive:{target}/image.tar:{tag}")
        config.unlink()
        self._run("rmi", "--force", tag)

    def _pull(self, reference: str, archive: Path) -> None:
        # The archive's cache entry is named by its content; so is the image that it became.
        local = f"localhost/base:{archive.parent.name.rpartition('-')[2]}"
        if local not in self._run("images", "--format={{.Name}}:{{.Tag}}").split():
            image = self._run("pull", "--quiet", f"oci-archive:{archive}").split()[-1]
            self._run("tag", image, local)
        self._run("tag", local, reference)

    def _run(self, *arguments: str) -> str:
        result = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT,
            env=self._environment,
        )
        if result.returncode:
            lines = f"{result.stdout}\n{result.stderr}".splitlines()[-_ERROR_LINES:]
            raise HarnessError(f"buildah {arguments[0]} failed:\n" + "\n".join(lines))
        return result.stdout


def pip_settings() -> dict[str, str]:
    """How pip on this machine reaches its index, from its environment and files."""
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    return parse_pip_settings(result.stdout.splitlines())


def parse_pip_settings(lines: Sequence[str]) -> dict[str, str]:
    """Settings from lines such as `global.cert='/a'` and `:env:.cert='/b'`: environment wins."""
    found: dict[str, str] = {}
    for line in sorted(lines, key=lambda text: text.startswith(":env:")):
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        if setting in _PIP_SETTINGS:
            found[setting] = str(ast.literal_eval(value))
    return dict(sorted(found.items()))


def pip_config(settings: Mapping[str, str]) -> str:
    """The text of a pip.conf; a value of several lines keeps them."""
    lines = []
    for name, value in sorted(settings.items()):
        lines.append(f"{name} = " + "\n    ".join(value.split()) + "\n")
    return "[global]\n" + "".join(lines)


def pip_paths(settings: Mapping[str, str]) -> list[Path]:
    """Folders of this machine that the settings name, sorted."""
    words = [word for name in _PIP_PATHS for word in settings.get(name, "").split()]
    paths = [Path(word) for word in words if word.startswith("/") and Path(word).exists()]
    return sorted({path if path.is_dir() else path.parent for path in paths})
