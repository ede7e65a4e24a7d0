from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.harness import cache


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_CLUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/cluster"


def test_the_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    assert cache.folder() == cache_folder
    monkeypatch.delenv("TEST_CLUSTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/apportion/cluster")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert cache.folder() == Path("/home/user/.cache/apportion/cluster")


def test_a_key_depends_on_every_part_and_its_limits() -> None:
    assert cache.key(["a", "bc"]) == cache.key([b"a", b"bc"])
    assert len({cache.key(parts) for parts in (["a", "bc"], ["ab", "c"], ["bc", "a"])}) == 3


def test_an_entry_is_built_once() -> None:
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("x")

    first = cache.entry("thing-1", build)
    assert cache.entry("thing-1", build) == first
    assert (first / "file").read_text() == "x"
    assert len(calls) == 1


def test_a_failed_build_leaves_nothing_and_is_tried_again(cache_folder: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.entry("thing", fail)
    assert [path.name for path in cache_folder.iterdir()] == ["thing.lock"]
    assert list(cache.entry("thing", lambda _: None).iterdir()) == []


def test_two_builds_at_once_become_one() -> None:
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.2)

    threads = [threading.Thread(target=cache.entry, args=("slow", build)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_prune_keeps_the_last_used_the_fresh_and_the_foreign(cache_folder: Path) -> None:
    old = time.time() - 10 * 3600
    for number in range(4):
        folder = cache_folder / f"image-a-{number}"
        folder.mkdir(parents=True)
        os.utime(folder, (old + number, old + number))
    (cache_folder / "image-b-1").mkdir()
    cache.entry("image-a-0", lambda _: None)  # a use
    cache.prune("image-a-", 2)
    left = sorted(path.name for path in cache_folder.iterdir() if path.is_dir())
    assert left == ["image-a-0", "image-a-3", "image-b-1"]
    cache.prune("image-a-", 0)
    assert (cache_folder / "image-a-0").exists()
    assert not (cache_folder / "image-a-3").exists()
