"""The gate when another thread, or a call, comes in between (`programs/gatecases.c`)."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.shim.support import PROGRAMS


@pytest.mark.parametrize(
    "case",
    [
        "late", "ending", "refused", "graph", "context", "stuck", "alone", "memory", "trial",
        "patient", "events", "idle", "others", "owed", "forged", "busy", "streams",
        "loading",
    ],
)  # fmt: skip
def test_it_holds(case: str) -> None:
    done = subprocess.run(
        [PROGRAMS / "gatecases", case],
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},  # events go with their context
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
