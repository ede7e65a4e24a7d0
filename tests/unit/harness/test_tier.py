"""The cluster tier on a machine that can't: skipped with the reason, and in CI failed with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[3]
_RUN = """\
import pytest, sys
from tests.harness import requirements
requirements.missing = lambda: "no cluster here today"
options = ["-q", "-p", "no:cacheprovider", "-k", "logs"]
sys.exit(pytest.main([*options, "tests/cluster/test_harness.py"]))
"""


@pytest.mark.parametrize(
    ("environment", "status", "word"),
    [
        ({}, 0, "1 skipped"),
        ({"CI": "true"}, 1, "1 error"),
        ({"REQUIRE_TEST_CLUSTER": "1"}, 1, "1 error"),
    ],
)
def test_a_machine_that_cannot(environment: dict[str, str], status: int, word: str) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in {"CI", "REQUIRE_TEST_CLUSTER"}}
    result = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=_REPOSITORY,
        env=plain | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == status
    assert word in result.stdout
    assert "no cluster here today" in result.stdout
