"""A tier on a machine that can't: skipped with the reason, and in CI failed with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import HarnessError, images, requirements

_REPOSITORY = Path(__file__).resolve().parents[3]
_RUN = """\
import pytest, sys
from tests.harness import requirements
requirements.missing = lambda: "no cluster here today"
options = ["-q", "-p", "no:cacheprovider"]
sys.exit(pytest.main([*options, sys.argv[1]]))
"""
_TESTS = (
    "tests/cluster/test_harness.py::test_a_cluster_ends_with_its_owner[9]",
    "tests/node/kubelet/test_endpoint.py::test_the_fast_protobuf_is_in_use",
    "tests/shim/test_fakes.py::test_the_accounts_layout_is_the_headers",
)


@pytest.mark.parametrize(
    ("environment", "status", "word"),
    [
        ({}, 0, "1 skipped"),
        ({"CI": "true"}, 1, "1 error"),
        ({"REQUIRE_TEST_CLUSTER": "1"}, 1, "1 error"),
    ],
)
@pytest.mark.parametrize("test", _TESTS)
def test_a_machine_that_cannot(
    test: str, environment: dict[str, str], status: int, word: str
) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in {"CI", "REQUIRE_TEST_CLUSTER"}}
    result = subprocess.run(
        [sys.executable, "-c", _RUN, test],
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


def test_without_what_the_image_is_built_with_one_line_says_so() -> None:
    program = (
        "import sys; from tests.harness import requirements; "
        "requirements.missing = lambda: 'no cluster here today'; "
        "from tests.lab.__main__ import main; sys.exit(main())"
    )
    for words, status in ((["--build-only"], 0), ([], 1)):
        result = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=_REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == status
        assert result.stderr.count("\n") == 1
        assert "no cluster here today" in result.stderr


@pytest.mark.parametrize("make", [images.python_image, images.builder_image])
def test_an_image_is_built_only_after_its_tools_are_there(
    make: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise HarnessError("no mmdebstrap to be had")

    monkeypatch.setenv("TEST_CLUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(requirements, "ensure", refuse)
    with pytest.raises(HarnessError, match="no mmdebstrap"):
        make()
