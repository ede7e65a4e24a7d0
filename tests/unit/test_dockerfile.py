"""What the Dockerfile's own check of the static programs does, run by a shell as in a build."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile"
PLACE = "/out/usr/lib/apportion"


def _check() -> str:
    """Return the loop over the programs that must be static, as the shell gets it."""
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", "\n")
    (found,) = re.findall(r"for program in apportion-ldcache ldconfig; do.*?done", text, re.DOTALL)
    return " ".join(found.split())


@pytest.mark.parametrize(
    ("readelf", "passes"),
    [
        ("echo '  LOAD 0x0'", True),
        ("echo '  LOAD 0x0'; echo '  INTERP 0x318'", False),
        ('case "$2" in *ldconfig) echo "  INTERP 0x318";; esac', False),
        ("exit 1", False),
        (None, False),
    ],
    ids=["static", "dynamic", "second-dynamic", "no-elf", "no-readelf"],
)
def test_only_programs_that_are_seen_to_be_static_pass(
    tmp_path: Path, readelf: str | None, *, passes: bool
) -> None:
    if readelf is not None:
        program = tmp_path / "readelf"
        program.write_text(f"#!/bin/sh\n{readelf}\n")
        program.chmod(0o755)
    script = f"true && {_check().replace(PLACE, str(tmp_path))}"
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is passes, done.stderr
