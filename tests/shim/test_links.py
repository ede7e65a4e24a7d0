"""The OCI hook's links: the driver's own libraries at their places, unless a front lies there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shim.support import SHIM
from tests.shim.test_ldcache import GOOD, LDCONFIG, LIBDIR, Bundle, bundle

__all__ = ["bundle"]

ASIDE = "/run/apportion/driver/libcuda.so.1"
NAMES = ("libcuda.so", "libcuda.so.1", "libcuda.so.580.1")
LINKS = [word for name in NAMES for word in ("--link", f"{LIBDIR}/{name}:{ASIDE}")]


@pytest.fixture
def places(bundle: Bundle) -> list[Path]:
    """Where the links are to stand; the driver's library lies aside."""
    aside = bundle.rootfs / ASIDE[1:]
    aside.parent.mkdir(parents=True)
    (bundle.rootfs / LIBDIR[1:] / "libcuda.so.1").rename(aside)
    return [bundle.rootfs / LIBDIR[1:] / name for name in NAMES]


def mounted(bundle: Bundle, mounts: str) -> subprocess.CompletedProcess[str]:
    """Call the hook where the shell commands `mounts` were done."""
    command = f"{mounts} && exec {SHIM}/apportion-ldcache {' '.join([*GOOD, *LINKS])}"
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        input=json.dumps({"bundle": str(bundle.folder)}),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def targets(places: list[Path]) -> list[str | None]:
    return [str(place.readlink()) if place.is_symlink() else None for place in places]


def test_where_nothing_is_mounted_the_driver_is_found(bundle: Bundle, places: list[Path]) -> None:
    done = bundle.hook(*GOOD, *LINKS)
    assert (done.returncode, done.stderr) == (0, "")
    assert targets(places) == [ASIDE] * 3
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBDIR}/libcuda.so.1" in bundle.cached()
    assert bundle.hook(*GOOD, *LINKS).returncode == 0
    assert targets(places) == [ASIDE] * 3
    assert sorted(places[0].parent.iterdir()) == sorted(places)


def test_what_the_image_has_there_gives_way(bundle: Bundle, places: list[Path]) -> None:
    """A driver of another version that was installed into the image."""
    shutil.copy(SHIM / "libcuda.so.1", places[2])
    places[1].symlink_to("libcuda.so.580.1")
    places[0].symlink_to("nowhere")
    assert bundle.hook(*GOOD, *LINKS).returncode == 0
    assert targets(places) == [ASIDE] * 3


def test_a_front_stays(bundle: Bundle, places: list[Path]) -> None:
    mounts = []
    for place in places:
        place.touch()
        mounts.append(f"mount --bind {SHIM}/libcuda.so.1 {place}")
    done = mounted(bundle, " && ".join(mounts))
    assert (done.returncode, done.stderr) == (0, "")
    assert targets(places) == [None] * 3


def test_a_front_stays_that_the_images_own_link_leads_to(
    bundle: Bundle, places: list[Path]
) -> None:
    """A runtime follows the link when it mounts, so the front lies where that leads."""
    places[2].touch()
    places[1].symlink_to("libcuda.so.580.1")
    done = mounted(bundle, f"mount --bind {SHIM}/libcuda.so.1 {places[1]}")
    assert (done.returncode, done.stderr) == (0, "")
    assert targets(places) == [ASIDE, "libcuda.so.580.1", None]


def test_a_volume_is_not_written_to(bundle: Bundle, places: list[Path], tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    done = mounted(bundle, f"mount --bind {volume} {places[0].parent}")
    assert done.returncode == 1
    assert "must not be a volume" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(volume.iterdir()) == []


def test_the_folder_is_made(bundle: Bundle, places: list[Path]) -> None:
    shutil.rmtree(places[0].parents[2])
    assert bundle.hook(*GOOD, *LINKS).returncode == 0
    assert targets(places) == [ASIDE] * 3


def test_a_folder_in_the_place_of_a_library_is_an_error(bundle: Bundle, places: list[Path]) -> None:
    places[1].mkdir()
    done = bundle.hook(*GOOD, *LINKS)
    assert done.returncode == 1
    assert done.stderr.startswith(f"apportion-ldcache: cannot link {LIBDIR}/libcuda.so.1:{ASIDE}")
    assert done.stderr.count("\n") == 1


def test_an_image_without_glibc_has_the_links_all_the_same(
    bundle: Bundle, places: list[Path]
) -> None:
    (bundle.rootfs / "lib64/ld-linux-x86-64.so.2").unlink()
    assert bundle.hook(*GOOD, *LINKS).returncode == 0
    assert targets(places) == [ASIDE] * 3


def test_links_lead_nowhere(bundle: Bundle, places: list[Path], tmp_path: Path) -> None:
    """The image's libraries are a link out of it: it is followed inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    places[0].parent.rmdir()
    places[0].parent.symlink_to(f"/proc/self/root{outside}")
    assert bundle.hook(*GOOD, *LINKS).returncode == 1
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    "link",
    [
        "", ":", "/a/b", "/a/b:", ":/a", "a/b:/c", "/a/b:c", "/a/../b:/c", "/a/b:/../c", "/b:/c",
        "/a/:/c", "/a b/c:/d", "/a/" + "b" * 300 + ":/c", "/" + "a/" * 3000 + "b:/c",
    ],
)  # fmt: skip
def test_a_bad_link_is_an_error(bundle: Bundle, link: str) -> None:
    done = bundle.hook("--ldconfig", LDCONFIG, "--folder", LIBDIR, "--link", link)
    assert done.returncode == 1
    assert done.stderr.startswith("apportion-ldcache: argument refused: --link")
    assert list((bundle.rootfs / "etc").iterdir()) == []
