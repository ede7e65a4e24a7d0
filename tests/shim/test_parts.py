"""The parts in C by themselves, plain and under the sanitizers; and what static checks say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.shim.support import PROGRAMS, REPO, make

SHIM_SOURCE = REPO / "shim"
FUZZ = REPO / "tests" / "shim" / "fuzz"


@pytest.mark.parametrize("build", ["parts", "parts-address", "parts-thread"])
@pytest.mark.parametrize(
    "test",
    [
        "table", "ledger-threads", "ledger-kills", "calendar", "estimates", "longer-once", "mixed",
        "launches", "schedule",
    ],
)  # fmt: skip
def test_part(build: str, test: str) -> None:
    done = subprocess.run(
        [PROGRAMS / build, test, "1"], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("target", ["limits", "ledger", "image"])
def test_mutations_of_the_corpus_find_nothing(target: str, tmp_path: Path) -> None:
    """For a few seconds; `make -C shim fuzz` goes on for longer, by libFuzzer where clang is."""
    build = REPO / "build" / "shim-fuzz"
    make(FUZZ, f"BUILD={build}")
    corpus = sorted(map(str, (FUZZ / "corpus" / target).iterdir()))
    done = subprocess.run(
        [build / f"fuzz-{target}", "5", "1", tmp_path / "last", *corpus],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > len(corpus)


def test_static_checks_find_nothing() -> None:
    done = subprocess.run(
        ["make", "-s", "-C", str(SHIM_SOURCE), "check"],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def functions(path: Path) -> list[tuple[str, int]]:
    """Return first line and length of each function of a C file in the project's layout."""
    found, start = [], None
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line == "{" and start is None:
            start = number
        elif line == "}" and start is not None:
            found.append((lines[start - 1], number - start + 2))
            start = None
    return found


@pytest.mark.parametrize(
    "path", sorted(SHIM_SOURCE.rglob("*.[ch]")), ids=lambda path: path.relative_to(SHIM_SOURCE)
)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert [name for name, length in functions(path) if length > 60] == []
    assert [line for line in path.read_text().splitlines() if len(line) > 100] == []
