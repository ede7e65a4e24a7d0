"""The OCI hook on root file systems good, bare and hostile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shim.support import SHIM

LIBDIR = "/usr/lib/x86_64-linux-gnu"
LDCONFIG = "/sbin/ldconfig"
GOOD = ["--ldconfig", LDCONFIG, "--folder", LIBDIR]
CONF = "etc/ld.so.conf.d/00-apportion.conf"


@dataclass
class Bundle:
    """An OCI bundle with a root file system that has glibc and one library of the driver's."""

    folder: Path

    @property
    def rootfs(self) -> Path:
        return self.folder / "rootfs"

    def hook(self, *arguments: str, state: str | None = None) -> subprocess.CompletedProcess[str]:
        """Call the hook as a runtime does."""
        words = arguments or ("--ldconfig", LDCONFIG, "--folder", LIBDIR)
        text = json.dumps({"ociVersion": "1.2.0", "id": "c", "bundle": str(self.folder)})
        return subprocess.run(
            [SHIM / "apportion-ldcache", *words], input=text if state is None else state,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def cached(self) -> str:
        """Return what the container's linker cache lists."""
        cache = self.rootfs / "etc/ld.so.cache"
        return subprocess.run(
            [LDCONFIG, "-p", "-C", str(cache)], capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    made = Bundle(tmp_path / "bundle")
    for folder in ("etc", "lib64", "proc", LIBDIR[1:]):
        (made.rootfs / folder).mkdir(parents=True)
    (made.rootfs / "lib64/ld-linux-x86-64.so.2").touch()
    shutil.copy(SHIM / "libcuda.so.1", made.rootfs / LIBDIR[1:])
    config = {"root": {"path": "rootfs"}, "process": {"args": ['ü\\"\n\t', "\U0001f600"]}}
    (made.folder / "config.json").write_text(json.dumps(config))
    return made


def test_the_driver_is_found_afterwards(bundle: Bundle) -> None:
    done = bundle.hook()
    assert (done.returncode, done.stdout) == (0, "")
    assert (bundle.rootfs / CONF).read_text() == LIBDIR + "\n"
    assert (bundle.rootfs / CONF).stat().st_mode & 0o777 == 0o644
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBDIR}/libcuda.so.1" in bundle.cached()
    assert sorted(path.name for path in (bundle.rootfs / CONF).parent.iterdir()) == [
        "00-apportion.conf"
    ]


def test_the_driver_is_found_before_the_images_own(bundle: Bundle) -> None:
    """As where an image names its folder for forward compatibility to the dynamic linker."""
    own = bundle.rootfs / "usr/local/cuda/compat"
    own.mkdir(parents=True)
    shutil.copy(SHIM / "libcuda.so.1", own)
    (bundle.rootfs / "etc/ld.so.conf").write_text(
        "/usr/local/cuda/compat\ninclude /etc/ld.so.conf.d/*.conf\n"
    )
    assert bundle.hook().returncode == 0
    found = re.findall(r"libcuda\.so\.1 .* => (\S+)", bundle.cached())
    assert found == [f"{LIBDIR}/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1"]


def test_twice_is_as_once(bundle: Bundle) -> None:
    assert bundle.hook().returncode == 0
    first = bundle.cached()
    assert bundle.hook().returncode == 0
    assert bundle.cached() == first


def test_several_folders_and_an_absolute_root(bundle: Bundle) -> None:
    config = {"root": {"path": str(bundle.rootfs)}}
    (bundle.folder / "config.json").write_text(json.dumps(config))
    done = bundle.hook("--folder", LIBDIR, "--ldconfig", LDCONFIG, "--folder", "/opt/none")
    assert done.returncode == 0
    assert (bundle.rootfs / CONF).read_text() == f"{LIBDIR}\n/opt/none\n"
    assert "libcuda.so.1" in bundle.cached()


def test_an_image_without_glibc_is_left_alone(bundle: Bundle) -> None:
    (bundle.rootfs / "lib64/ld-linux-x86-64.so.2").unlink()
    done = bundle.hook()
    assert done.returncode == 0
    assert done.stderr == "apportion-ldcache: left alone: the image has no glibc\n"
    assert list((bundle.rootfs / "etc").iterdir()) == []


def test_an_image_without_etc_is_left_alone(bundle: Bundle) -> None:
    (bundle.rootfs / "etc").rmdir()
    done = bundle.hook()
    assert done.returncode == 0
    assert done.stderr == "apportion-ldcache: left alone: the image has no /etc\n"


@pytest.mark.parametrize("name", ["etc", "etc/ld.so.conf.d"])
@pytest.mark.parametrize("kind", ["absolute", "relative", "magic"])
def test_links_lead_nowhere(bundle: Bundle, tmp_path: Path, name: str, kind: str) -> None:
    outside = tmp_path / "outside"
    (outside / "ld.so.conf.d").mkdir(parents=True)
    before = sorted(outside.rglob("*"))
    depth = "../" * 30
    target = {
        "absolute": str(outside), "relative": depth + str(outside)[1:],
        "magic": f"/proc/self/root{outside}",
    }[kind]  # fmt: skip
    place = bundle.rootfs / name
    if place.exists():
        place.rmdir()
    place.symlink_to(target)
    done = bundle.hook()
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "change the image" in done.stderr
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize(
    "name", [CONF, "etc/ld.so.conf.d/.00-apportion.conf.part", "etc/ld.so.cache"]
)
def test_files_that_are_links_are_replaced(bundle: Bundle, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (bundle.rootfs / "etc/ld.so.conf.d").mkdir()
    (bundle.rootfs / name).symlink_to(victim)
    assert bundle.hook().returncode == 0
    assert victim.read_text() == "untouched"
    assert "libcuda.so.1" in bundle.cached()
    assert not (bundle.rootfs / CONF).is_symlink()


def test_the_images_configuration_cannot_reach_the_host(bundle: Bundle, tmp_path: Path) -> None:
    """Paths through /proc would lead out of the chroot; it is covered."""
    outside = tmp_path / "outside"
    outside.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", "-xc", "/dev/null", "-Wl,-soname,libhost.so.9",
         "-o", outside / "libhost.so.9"],
        check=True,
    )  # fmt: skip
    through = f"/proc/{os.getpid()}/root{outside}"
    (bundle.rootfs / "etc/ld.so.conf").write_text(f"{through}\ninclude /proc/1/root/etc/*.conf\n")
    command = (
        f"mount -t proc proc {bundle.rootfs}/proc && exec {SHIM}/apportion-ldcache "
        f"--ldconfig {LDCONFIG} --folder {LIBDIR}"
    )
    state = json.dumps({"bundle": str(bundle.folder)})
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        input=state, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "libcuda.so.1" in bundle.cached()
    assert "libhost" not in bundle.cached()
    assert [path.name for path in outside.iterdir()] == ["libhost.so.9"]


def test_a_configuration_that_includes_itself_floods_nobody(bundle: Bundle) -> None:
    """What a hook prints is kept in memory by the runtime, all of it."""
    (bundle.rootfs / "etc/ld.so.conf").write_text("include /etc/ld.so.conf\n" * 10)
    assert "it took too long" in assert_refused_in_one_line(bundle)


def test_a_configuration_that_never_ends_is_given_up(bundle: Bundle) -> None:
    os.mkfifo(bundle.rootfs / "etc/ld.so.conf")
    assert "it took too long" in assert_refused_in_one_line(bundle)


def test_a_cache_without_bound_is_refused(bundle: Bundle) -> None:
    """The cache holds every library's path: here 6000 of 3 KB."""
    deep = "/".join(["opt", *["x" * 250] * 12])
    names = [f"/{deep}/{number}" for number in range(6000)]
    library = bundle.rootfs / LIBDIR[1:] / "libcuda.so.1"
    for name in names:
        (bundle.rootfs / name[1:]).mkdir(parents=True)
        (bundle.rootfs / name[1:] / "libcuda.so.1").hardlink_to(library)
    (bundle.rootfs / "etc/ld.so.conf").write_text("\n".join(names))
    assert_refused_in_one_line(bundle)
    assert not (bundle.rootfs / "etc/ld.so.cache").exists()
    assert max(path.stat().st_size for path in (bundle.rootfs / "etc").glob("*~")) <= 16 << 20


def assert_refused_in_one_line(bundle: Bundle) -> str:
    """Call the hook on a hostile image; the runtime gets an end, and not much to read."""
    done = bundle.hook()
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"apportion-ldcache: ldconfig .* image.*\n", done.stderr)
    assert len(done.stderr) < 300
    return done.stderr


def test_what_ldconfig_says_of_the_image_is_not_passed_on(bundle: Bundle) -> None:
    (bundle.rootfs / "etc/ld.so.conf").write_text("relative\n" * 1000)
    done = bundle.hook()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "libcuda.so.1" in bundle.cached()


def test_an_error_of_ldconfig_is_told(bundle: Bundle) -> None:
    (bundle.rootfs / "etc/ld.so.cache~").mkdir()
    assert_refused_in_one_line(bundle)


def test_a_folder_of_configuration_that_is_read_only_is_gone_without(bundle: Bundle) -> None:
    """A ConfigMap there, say; ldconfig is told the folders anyway."""
    folder = bundle.rootfs / "etc/ld.so.conf.d"
    folder.mkdir()
    command = (
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && "
        f"exec {SHIM}/apportion-ldcache --ldconfig {LDCONFIG} --folder {LIBDIR}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        input=json.dumps({"bundle": str(bundle.folder)}),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"apportion-ldcache: .*/00-apportion.conf: Read-only.*\n", done.stderr)
    assert list(folder.iterdir()) == []
    assert "libcuda.so.1" in bundle.cached()


def test_no_mount_is_left_behind(bundle: Bundle) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    assert bundle.hook().returncode == 0
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.parametrize(
    "state",
    [
        "", "{", "[]", "null", '"bundle"', "{}", '{"bundle":1}', '{"bundle":""}',
        '{"bundle":"/x"} x',
        '{"bundle":"/none"}', '{"a":{"bundle":"/tmp"}}', '{"bundle":"/tmp","bundle":"/tmp"}',
        '{"bundle":"/t\\u0000mp"}', '{"bundle":"\\ud800"}', '{"bundle":"\\x"}', "[" * 5000,
        '{"a":' * 5000, '{"bundle":"' + "x" * 5000 + '"}', '{"bundle":"/tmp",}', '{"bundle":01}',
        " " * (1 << 20) + "{}",
    ],
)  # fmt: skip
def test_a_state_that_is_none_is_an_error(bundle: Bundle, state: str) -> None:
    done = bundle.hook(state=state)
    assert done.returncode == 1
    assert done.stderr.startswith("apportion-ldcache: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        [], ["--folder", LIBDIR], ["--ldconfig", LDCONFIG], [*GOOD, "--folder"],
        [*GOOD, "--folder", "relative"], [*GOOD, "--folder", "/a b"],
        [*GOOD, "--folder", "/a/../b"], [*GOOD, "--folder", "/a\nb"],
        [*GOOD, "--other", "/a"], ["--ldconfig", "/none", "--folder", LIBDIR],
        ["--ldconfig", "/bin/sh", "--folder", LIBDIR],
        ["--ldconfig", "/etc/hosts", "--folder", LIBDIR],
    ],
)  # fmt: skip
def test_bad_arguments_are_an_error(bundle: Bundle, words: list[str]) -> None:
    done = bundle.hook(*words or ["--help"])
    assert done.returncode == 1
    assert done.stderr.startswith("apportion-ldcache: ")
    assert list((bundle.rootfs / "etc").iterdir()) == []


def test_a_root_that_is_not_there_is_an_error(bundle: Bundle) -> None:
    shutil.rmtree(bundle.rootfs)
    done = bundle.hook()
    assert done.returncode == 1
    assert str(bundle.rootfs) in done.stderr
