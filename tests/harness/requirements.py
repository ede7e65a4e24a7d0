"""Whether this machine can run the cluster, and getting what it lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

from tests.harness import cache, cgroups, golang, progress
from tests.harness.errors import HarnessError
from tests.harness.versions import DEBIAN_PACKAGES

_APT_TIMEOUT = 600.0  # seconds
_CHECK_TIMEOUT = 20.0  # seconds
_NAMESPACES = [
    "unshare",
    "--net",
    "--mount",
    "--ipc",
    "--uts",
    "--pid",
    "--fork",
    "--mount-proc",
    "true",
]


def missing() -> str | None:
    """One line that says why the cluster can't run here; None when it can. Changes nothing."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the test cluster needs Linux on x86_64"
    if os.geteuid() != 0:
        return "the test cluster needs root (namespaces, mounts, cgroups)"
    if golang.find() is None and importlib.util.find_spec("pip") is None:
        return "the test cluster is built with Go >= 1.26: there is neither that nor pip to get it"
    packages = _missing_packages()
    if packages and shutil.which("apt-get") is None:
        return f"the test cluster needs {', '.join(packages)}, and there is no apt-get to get them"
    if not cgroups.hierarchies():
        return "the test cluster needs a cgroup file system, and none is mounted"
    return _missing_namespaces()


def _missing_namespaces() -> str | None:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "the test cluster needs unshare and nsenter (Debian: util-linux)"
    try:
        result = subprocess.run(
            _NAMESPACES, capture_output=True, text=True, check=False, timeout=_CHECK_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "the test cluster needs new namespaces, and unshare hangs here"
    if result.returncode:
        return f"the test cluster needs new namespaces: {result.stderr.strip()}"
    return None


def ensure() -> None:
    """Install the Debian packages that are missing; raises HarnessError where missing() speaks."""
    reason = missing()
    if reason:
        raise HarnessError(reason)
    if not _missing_packages():
        return
    with cache.locked(cache.folder() / "apt.lock"):
        packages = _missing_packages()
        if packages:
            _install(packages)


def _missing_packages() -> list[str]:
    found = {
        package
        for program, package in DEBIAN_PACKAGES.items()
        if not (Path(program).exists() if program.startswith("/") else shutil.which(program))
    }
    return sorted(found)


def _install(packages: list[str]) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    steps = (
        ["apt-get", "update", "--quiet"],
        ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *packages],
    )
    with progress.task(f"installing Debian packages: {', '.join(packages)}"):
        for step in steps:
            result = subprocess.run(
                step,
                capture_output=True,
                text=True,
                check=False,
                timeout=_APT_TIMEOUT,
                env=environment,
            )
    still = _missing_packages()
    if still:
        raise HarnessError(f"apt-get did not bring {', '.join(still)}:\n{result.stderr[-1000:]}")
