"""Writes go.mod and go.sum of a Kubernetes version of the table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.harness import golang, progress
from tests.harness.errors import HarnessError
from tests.harness.versions import KUBERNETES

_SOURCES = Path(__file__).parent / "go/kubernetes"
_HEAD = """\
// The staging modules of k8s.io/kubernetes need explicit versions.
module apportion.test/kubernetes

go {go}

godebug default=go{go_minor}

require k8s.io/kubernetes v{version}

replace (
{replaces}
)
"""


def pin(minor: str) -> Path:
    """Resolve all modules of the version; gives the folder to commit."""
    version = KUBERNETES[minor].version
    target = _SOURCES / minor
    with tempfile.TemporaryDirectory(prefix="apportion-pin-") as name:
        work = Path(name)
        shutil.copy(_SOURCES / "main.go", work)
        upstream = _upstream(version, work)
        (work / "go.mod").write_text(head(version, upstream))
        with progress.task(f"resolving the modules of Kubernetes {version}"):
            # -e: some test-only modules of Kubernetes' dependencies can't be resolved.
            _go(work, "mod", "tidy", "-e")
            _go(work, "list", "-deps", ".")  # what tidy passed over would end here
        target.mkdir(exist_ok=True)
        for file in ("go.mod", "go.sum"):
            shutil.copy(work / file, target / file)
    return target


def head(version: str, upstream: str) -> str:
    """The go.mod to start from; upstream is that of k8s.io/kubernetes itself."""
    staged = re.findall(r"^\s*(k8s\.io/\S+)\s+(?:=> \./|v0\.0\.0\s)", upstream, re.MULTILINE)
    go = re.search(r"^go (\d+\.\d+)(\.\d+)?$", upstream, re.MULTILINE)
    if not staged or not go:
        raise HarnessError("the go.mod of k8s.io/kubernetes has not the form that is expected")
    staging = f"v0.{version.partition('.')[2]}"
    lines = [f"\t{module} => {module} {staging}" for module in sorted(set(staged))]
    return _HEAD.format(
        go=go[1] + (go[2] or ".0"), go_minor=go[1], version=version, replaces="\n".join(lines)
    )


def _upstream(version: str, work: Path) -> str:
    answer = json.loads(_go(work, "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"))
    return Path(answer["GoMod"]).read_text()


def _go(work: Path, *arguments: str) -> str:
    command = [str(golang.program()), *arguments]
    result = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HarnessError(f"go {arguments[0]} {arguments[1]}: {result.stderr[-2000:]}")
    return result.stdout
