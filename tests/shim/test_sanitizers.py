"""Fronts and applications under the sanitizers: this tier's tests once more, whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shim.support import REPO

HERE = Path(__file__).parent
# Not about what a front does in an application, or about binaries that are not watched, or (the
# image's, the gate's cases) always are.
OTHERS = {
    "test_binaries", "test_escapes", "test_fakes", "test_fakes_cuda", "test_ldcache",
    "test_gate_cases", "test_gate_time", "test_image", "test_image_crafted", "test_unpack",
    "test_unpack_crafted", "test_ledger_model", "test_links", "test_parts", "test_resolution",
    "test_sanitizers",
}  # fmt: skip
MODULES = sorted(path.stem for path in HERE.glob("test_*.py") if path.stem not in OTHERS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_found(module: str, sanitizer: str, tmp_path: Path) -> None:
    """By the address and undefined-behaviour sanitizers, and by the one for threads."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/shim/{module}.py", "-q", "--no-header",
         "-p", "no:cacheprovider", "--timeout=600", f"--basetemp={tmp_path / 'inner'}"],
        cwd=REPO, env=os.environ | {"SHIM_SANITIZER": sanitizer, "APPORTION_KILLS": "200"},
        capture_output=True, text=True, check=False, timeout=890,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
