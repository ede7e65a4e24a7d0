from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from apportion.enforce.library import FILES, Library
from apportion.errors import EnforcementError

from tests.node.prepare.world import make_shim


@pytest.fixture
def library(tmp_path: Path) -> Library:
    make_shim(tmp_path / "shim")
    return Library(tmp_path / "shim", tmp_path / "lib")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_files_are_installed_executable_under_the_build(library: Library) -> None:
    library.ensure()
    assert names(library.folder) == sorted(FILES)
    for name in FILES:
        assert (library.folder / name).read_text() == f"{name} "
        assert (library.folder / name).stat().st_mode & 0o777 == 0o755


def test_another_content_is_another_build_beside_the_first(
    library: Library, tmp_path: Path
) -> None:
    library.ensure()
    first = {path: path.stat().st_ino for path in library.folder.iterdir()}
    make_shim(tmp_path / "shim", "new")
    newer = Library(tmp_path / "shim", tmp_path / "lib")
    newer.ensure()
    assert newer.build != library.build
    assert names(tmp_path / "lib") == sorted([newer.build, library.build])
    assert {path: path.stat().st_ino for path in library.folder.iterdir()} == first


def test_nothing_is_read_again_while_nothing_changed(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.ensure()
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"read {path}"))
    library.ensure()


@pytest.mark.parametrize("harm", ["removed", "changed", "folder"])
def test_what_was_harmed_is_installed_again_and_reported(
    library: Library, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    library.ensure()
    victim = library.folder / "libcuda.so.1"
    if harm == "removed":
        victim.unlink()
    elif harm == "changed":
        before = victim.stat()
        victim.write_text("x" * before.st_size)
        os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        for path in library.folder.iterdir():
            path.unlink()
        library.folder.rmdir()
    library.ensure()
    assert victim.read_text() == "libcuda.so.1 "
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert str(victim) in caplog.text


def test_a_process_that_has_the_old_file_open_keeps_it(library: Library) -> None:
    library.ensure()
    with (library.folder / "libcuda.so.1").open() as held:
        (library.folder / "libcuda.so.1").write_text("harmed")
        library.ensure()
        assert held.read() == "harmed"
    assert (library.folder / "libcuda.so.1").read_text() == "libcuda.so.1 "


def test_what_a_dead_plugin_installed_half_is_completed(library: Library) -> None:
    library.folder.mkdir(parents=True)
    (library.folder / "libcuda.so.1").write_text("half")
    (library.folder / ".ldconfig.0123.tmp").write_text("half")
    library.ensure()
    library.sweep(frozenset())
    assert names(library.folder) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_h1346_a_file_that_the_image_lacks_is_an_error(
    library: Library, tmp_path: Path, name: str
) -> None:
    (tmp_path / "shim" / name).unlink()
    with pytest.raises(EnforcementError, match=f"{name} is missing from the plugin's image"):
        library.ensure()


def test_an_image_that_changes_under_the_plugin_is_an_error(
    library: Library, tmp_path: Path
) -> None:
    library.ensure()
    make_shim(tmp_path / "shim", "other")
    (library.folder / "ldconfig").unlink()
    with pytest.raises(EnforcementError, match="changed while the plugin runs"):
        library.ensure()


def test_sweep_keeps_own_referred_to_and_living_builds(library: Library, tmp_path: Path) -> None:
    library.ensure()
    make_shim(tmp_path / "shim", "living")
    living = Library(tmp_path / "shim", tmp_path / "lib")
    living.ensure()
    for name in ("referred", "unused"):
        (tmp_path / "lib" / name).mkdir()
    assert library.sweep(frozenset({"referred"})) == ("unused",)
    assert names(tmp_path / "lib") == sorted([library.build, living.build, "referred"])


def test_sweep_removes_the_build_of_a_plugin_that_ended(library: Library, tmp_path: Path) -> None:
    library.ensure()
    make_shim(tmp_path / "shim", "ended")
    ended = Library(tmp_path / "shim", tmp_path / "lib")
    ended.ensure()
    assert ended._hold is not None
    os.close(ended._hold)
    assert library.sweep(frozenset()) == (ended.build,)


def test_sweep_before_anything_was_installed_finds_nothing(library: Library) -> None:
    assert library.sweep(frozenset()) == ()
