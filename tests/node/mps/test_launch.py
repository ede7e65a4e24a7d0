"""How a program of the driver's is started: where it is found, and in which root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from apportion.mps import launch

PROGRAM = "nvidia-cuda-mps-control"
# Static: a root with a loader is entered, and this one's is no loader.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words)
{
    char path[512];
    snprintf(path, sizeof path, "%s/said", getenv("FOLDER"));
    FILE *file = fopen(path, "w");
    if (!file)
        return 1;
    fprintf(file, "%d %s %s", count, words[0], getenv("LD_LIBRARY_PATH") ? "path" : "no path");
    return fclose(file);
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver root with the program."""
    found = tmp_path / "root"
    (found / "opt/bin").mkdir(parents=True)
    subprocess.run(
        ["gcc", "-static", "-x", "c", "-", "-o", str(found / "opt/bin" / PROGRAM)],
        input=SOURCE, text=True, check=True,
    )  # fmt: skip
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def run(
    root: Path, folder: Path, *, entry: tuple[str, ...] = (), leave: bool = False
) -> subprocess.CompletedProcess[str]:
    order = {
        "root": "/nowhere",
        "root_mount": str(root),
        "libdir": "/usr/lib64",
        "leave": leave,
        "folder": str(folder),
        "program": PROGRAM,
        "args": ["-d"],
        "env": {"FOLDER": str(folder)},
    }
    command = [*entry, sys.executable, "-m", "apportion.mps.launch", json.dumps(order)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_root_with_the_drivers_files_alone_is_not_entered(root: Path, folder: Path) -> None:
    assert run(root, folder).returncode == 0
    assert (folder / "said").read_text() == f"2 {PROGRAM} path"


def test_a_whole_root_is_entered_with_the_daemons_folder_in_its_place(
    root: Path, folder: Path
) -> None:
    for path in ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1", "usr/lib64/libc.so.6"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    done = run(root, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "said").read_text() == f"2 {PROGRAM} no path"
    inside = root / folder.relative_to("/")
    assert list(inside.iterdir()) == [], "the mount is the program's alone"


def test_a_program_that_is_not_there_is_named(tmp_path: Path, folder: Path) -> None:
    done = run(tmp_path, folder)
    assert done.returncode != 0
    assert f"{PROGRAM} is in none of" in done.stderr


def test_a_pod_that_cannot_be_left_is_an_error(root: Path, folder: Path) -> None:
    own = ("unshare", "--mount", "--pid", "--fork", "--mount-proc")
    done = run(root, folder, entry=own, leave=True)
    assert done.returncode != 0
    assert "set hostPID: true" in done.stderr
    assert not (folder / "said").exists()


def test_there_is_nothing_to_leave_outside_of_containers(tmp_path: Path) -> None:
    for process in ("1", "self"):
        (tmp_path / process / "ns").mkdir(parents=True)
        (tmp_path / process / "ns/mnt").touch()
    (tmp_path / "1/ns/mnt").unlink()
    (tmp_path / "1/ns/mnt").hardlink_to(tmp_path / "self/ns/mnt")
    assert not launch.leave(tmp_path)


@pytest.mark.parametrize("unified", [True, False])
def test_every_hierarchy_of_cgroups_is_left(tmp_path: Path, unified: bool) -> None:  # noqa: FBT001 - a case
    hierarchies = [tmp_path] if unified else [tmp_path / "memory", tmp_path / "cpuset"]
    for hierarchy in hierarchies:
        hierarchy.mkdir(exist_ok=True)
        (hierarchy / "cgroup.procs").touch()
    launch.move("ours", tmp_path)
    moved = [path for path in tmp_path.rglob("cgroup.procs") if path.read_text()]
    expected = [tmp_path / "ours"] if unified else [tmp_path / "cpuset", tmp_path / "memory/ours"]
    assert sorted(path.parent for path in moved) == sorted(expected)
