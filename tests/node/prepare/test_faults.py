"""Real faults: read-only and full file systems, and a plugin killed between any two steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from apportion.model import ClaimOutcome

from tests.node.prepare.world import UUIDS, World, ref, result

_REPO = Path(__file__).parents[3]
_FOLDERS = ["claims", "cdi", "shares"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    found.preparer().ready(UUIDS[0])
    (found.config.plugin_dir / "claims").mkdir()
    found.config.driver_shares_dir.mkdir(parents=True)
    return found


def folder(world: World, name: str) -> Path:
    return {
        "claims": world.config.plugin_dir / "claims",
        "cdi": world.config.cdi_dir,
        "shares": world.config.driver_shares_dir,
    }[name]


@contextmanager
def mounted(*arguments: str, at: Path) -> Iterator[None]:
    subprocess.run(["mount", *arguments, str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    with mounted("--bind", str(path), at=path):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield


@contextmanager
def full(path: Path) -> Iterator[None]:
    """Put a tmpfs with the folder's content over it that has no block left."""
    kept = {item.name: item.read_bytes() for item in path.iterdir() if item.is_file()}
    with mounted("-t", "tmpfs", "-o", "size=64k", "none", at=path):
        for name, content in kept.items():
            (path / name).write_bytes(content)
        try:
            with (path / "filler").open("wb") as filler:
                while True:
                    filler.write(b"x" * 4096)
                    filler.flush()
        except OSError:
            yield
        (path / "filler").unlink()


@pytest.mark.parametrize("name", _FOLDERS)
def test_a_read_only_folder_is_an_error_with_what_to_do_and_leaves_nothing(
    world: World, name: str
) -> None:
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    with read_only(folder(world, name)):
        outcome = world.preparer().prepare(wanted)
        assert str(folder(world, name)) in outcome.error
        assert "read-only" in outcome.error
        assert world.state() == before
    assert world.preparer().prepare(wanted).devices


@pytest.mark.parametrize("name", _FOLDERS)
def test_a_full_disk_is_an_error_with_what_to_do_and_leaves_nothing(
    world: World, name: str
) -> None:
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    with full(folder(world, name)):
        held = sorted(os.listdir(folder(world, name)))  # noqa: PTH208
        outcome = world.preparer().prepare(wanted)
        assert "free space" in outcome.error
        assert sorted(os.listdir(folder(world, name))) == held  # noqa: PTH208
    assert world.state() == before
    assert world.store.held(UUIDS[0]).memory == 0
    assert world.preparer().prepare(wanted).devices


@pytest.mark.parametrize("name", _FOLDERS)
def test_a_repeat_on_a_full_disk_leaves_the_running_claim_whole(world: World, name: str) -> None:
    wanted = world.add("c")
    first = world.preparer().prepare(wanted)
    before = world.state()
    if name == "shares":
        # Nothing of a running share is ever written again.
        assert world.preparer().prepare(wanted) == first
        return
    with full(folder(world, name)):
        outcome = world.restarted().preparer().prepare(wanted)
        assert outcome == first or "free space" in outcome.error
    assert world.state() == before
    assert world.preparer().prepare(wanted) == first


@pytest.mark.parametrize("name", _FOLDERS)
def test_an_unprepare_on_a_read_only_folder_says_why_and_works_later(
    world: World, name: str
) -> None:
    before = world.state()
    world.preparer().prepare(world.add("c"))
    with read_only(folder(world, name)):
        assert "read-only" in world.preparer().unprepare(ref()).error
    assert world.store.held(UUIDS[0]).memory == 4 << 30
    assert world.preparer().unprepare(ref()) == ClaimOutcome()
    assert world.state() == before


# A plugin that is killed: run in a process of its own on the same folders

_VICTIM = """
import os, signal, sys
from pathlib import Path
from tests.node.prepare.world import Faulty, World, ref, result

base, action, part, call, after, nth = sys.argv[1:]
world = World(Path(base))
world.add("c", result(0), result(1))
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
faulty = Faulty(getattr(world, part), call, kill, after=after == "after", nth=int(nth))
preparer = world.preparer(**{part: faulty})
print(getattr(preparer, action)(ref()))
"""

_PREPARE_STEPS = [
    ("store", "begin", "before", 1),
    ("store", "begin", "after", 1),
    ("enforcer", "prepare", "after", 1),
    ("enforcer", "prepare", "after", 2),
    ("cdi", "write_claim", "before", 1),
    ("cdi", "write_claim", "after", 1),
    ("store", "commit", "after", 1),
]
_UNPREPARE_STEPS = [
    ("cdi", "remove_claim", "before", 1),
    ("cdi", "remove_claim", "after", 1),
    ("enforcer", "remove", "after", 1),
    ("enforcer", "remove", "after", 2),
    ("store", "remove", "after", 1),
]


def kill_at(world: World, action: str, step: tuple[str, str, str, int]) -> None:
    arguments = [str(world.base), action, *map(str, step)]
    victim = subprocess.run(
        [sys.executable, "-c", _VICTIM, *arguments],
        cwd=_REPO,
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert victim.returncode == -signal.SIGKILL, victim.stderr.decode()


@pytest.mark.parametrize("step", _PREPARE_STEPS, ids=lambda step: "-".join(map(str, step)))
def test_a_plugin_killed_in_prepare(world: World, step: tuple[str, str, str, int]) -> None:
    before = world.state()
    wanted = world.add("c", result(0), result(1))

    kill_at(world, "prepare", step)
    after = world.restarted()
    after.preparer().sweep(ask=True)
    # Kubelet asks again and gets its answer, and nothing was counted twice.
    assert len(after.preparer().prepare(wanted).devices) == 2
    assert after.store.held(UUIDS[0]).memory == 4 << 30
    assert after.preparer().unprepare(wanted) == ClaimOutcome()
    assert world.state() == before

    kill_at(world, "prepare", step)
    # Kubelet gives the pod up instead.
    assert world.restarted().preparer().unprepare(wanted) == ClaimOutcome()
    assert world.state() == before

    kill_at(world, "prepare", step)
    # The claim is gone and kubelet never asks again.
    world.claims.clear()
    world.restarted().preparer().sweep(ask=True)
    assert world.state() == before


@pytest.mark.parametrize("step", _UNPREPARE_STEPS, ids=lambda step: "-".join(map(str, step)))
def test_a_plugin_killed_in_unprepare(world: World, step: tuple[str, str, str, int]) -> None:
    before = world.state()
    wanted = world.add("c", result(0), result(1))
    assert world.preparer().prepare(wanted).devices
    kill_at(world, "unprepare", step)
    if step[1] == "remove" and step[0] == "enforcer":
        # What may still be obeyed still counts.
        assert world.restarted().store.held(UUIDS[1]).memory == 4 << 30
    assert world.restarted().preparer().unprepare(wanted) == ClaimOutcome()
    assert world.state() == before


def test_a_plugin_killed_while_it_writes_leaves_temporary_files_that_are_swept(
    world: World,
) -> None:
    before = world.state()
    script = _VICTIM.replace(
        "print(", "os.rename = lambda *_: kill()\nos.fchmod = lambda *_: None\nprint("
    )
    arguments = [str(world.base), "prepare", "store", "none", "before", "1"]
    victim = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=_REPO, check=False, timeout=60
    )
    assert victim.returncode == -signal.SIGKILL
    assert world.state() != before
    world.restarted().preparer().sweep(ask=True)
    assert world.state() == before
