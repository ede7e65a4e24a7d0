"""A new build of the front libraries takes the place of the old one while processes run on that."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from tests.shim.support import (
    BLOCK,
    LIBRARIES,
    MIB,
    OK,
    OOM,
    REPO,
    SANITIZER,
    SANITIZERS,
    SHIM,
    Client,
    Container,
    make,
)

LIMIT = 64 * MIB


def another_build(folder: Path) -> Path:
    """Build the libraries with other bytes, as a new version has them."""
    flags = f"{SANITIZERS.get(SANITIZER, '')} -DANOTHER_BUILD"
    wanted = [f"{folder}/{name}" for name in LIBRARIES]
    make(REPO / "shim", f"BUILD={folder}", f"CFLAGS={flags}", f"LDFLAGS={flags}", *wanted)
    return folder


def build_id(library: Path) -> str:
    """Return the build that a library says it is of."""
    found = re.search(rb"\0([0-9a-f]{16})\0", library.read_bytes())
    assert found
    return found.group(1).decode()


def loaded(app: Client) -> str:
    """Return the line of a process's mappings that names the front."""
    maps = Path("/proc", str(app.process.pid), "maps").read_text()
    return next(line for line in maps.splitlines() if "front/libcuda.so.1" in line)


def test_i6_old_processes_go_on_with_their_library_beside_new_ones(
    container: Container, tmp_path: Path
) -> None:
    share = container.share(LIMIT)
    fronts = tmp_path / "fronts"
    fronts.mkdir()
    for name in LIBRARIES:
        shutil.copy(SHIM / name, fronts)
    node = replace(container, fronts=fronts)
    newer = another_build(tmp_path / "newer")
    old_id = build_id(fronts / "libcuda.so.1")
    with node.client().start() as old:
        assert old.alloc(10 * MIB) == OK
        for name in LIBRARIES:
            shutil.copy(newer / name, fronts / f".{name}.new")
            (fronts / f".{name}.new").rename(fronts / name)
        assert build_id(fronts / "libcuda.so.1") != old_id
        with node.client().start() as new:
            assert loaded(old).endswith("(deleted)")
            assert not loaded(new).endswith("(deleted)")
            # One ledger, whatever the build.
            assert new.alloc(LIMIT) == OOM
            assert new.alloc(LIMIT - 10 * MIB) == OK
            assert old.info() == new.info() == (0, LIMIT)
            assert old.alloc(BLOCK) == OOM
            assert old.ask("free-each", 1) == [OK, 1]
            assert old.alloc(4 * MIB) == OK
            assert sorted(filter(None, share.slots())) == [4 * MIB, LIMIT - 10 * MIB]
            new.kill()
        assert old.alloc(LIMIT - 4 * MIB) == OK
        assert share.total == LIMIT
