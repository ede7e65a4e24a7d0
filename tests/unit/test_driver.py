from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from apportion import driver
from apportion.container import DeviceNode, Mount
from apportion.driver import DriverFinder, find_driver_files, gpu_node, seen
from apportion.errors import EnforcementError

from tests.node.prepare.world import LIBDIR, VERSION, make_driver_root

ROOT = Path("/run/nvidia/driver")
HOST = f"{ROOT}/{LIBDIR}"
NO_DEV = Path("/nonexistent")


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    make_driver_root(tmp_path / "driver")
    return tmp_path / "driver"


def test_the_real_libraries_are_found_through_their_links(mount: Path) -> None:
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert found.libdir == f"/{LIBDIR}"
    assert found.cuda == f"{HOST}/libcuda.so.{VERSION}"
    assert found.nvml == f"{HOST}/libnvidia-ml.so.{VERSION}"


def test_others_are_mounted_by_full_version_and_by_soname_and_the_fronts_are_not(
    mount: Path,
) -> None:
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert [item for item in found.mounts if ".so" not in item.container_path] == [
        Mount(f"{ROOT}/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi")
    ]
    assert [item for item in found.mounts if ".so" in item.container_path] == [
        Mount(f"{HOST}/{stem}.{VERSION}", f"/{LIBDIR}/{stem}.{ending}")
        for stem, ending in (
            ("libnvidia-gpucomp.so", VERSION),
            ("libnvidia-nvvm.so", "4"),
            ("libnvidia-nvvm.so", VERSION),
            ("libnvidia-ptxjitcompiler.so", "1"),
            ("libnvidia-ptxjitcompiler.so", VERSION),
        )
    ]


def test_a_soname_link_that_the_driver_root_lacks_is_there_in_the_container(mount: Path) -> None:
    (mount / LIBDIR / "libnvidia-ptxjitcompiler.so.1").unlink()
    found = find_driver_files(mount, ROOT, NO_DEV)
    inside = {item.container_path for item in found.mounts}
    assert f"/{LIBDIR}/libnvidia-ptxjitcompiler.so.1" in inside


def test_a_library_of_another_driver_version_is_left_out(mount: Path) -> None:
    link = mount / LIBDIR / "libnvidia-nvvm.so.4"
    link.unlink()
    link.with_name(f"libnvidia-nvvm.so.{VERSION}").rename(link.with_name("libnvidia-nvvm.so.1.2"))
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert not [item for item in found.mounts if "nvvm" in item.host_path]


def test_graphics_libraries_stay_out_since_no_share_holds_them(mount: Path) -> None:
    for stem in ("libnvidia-glcore.so", "libGLX_nvidia.so", "libnvoptix.so"):
        (mount / LIBDIR / f"{stem}.{VERSION}").touch()
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert not [item for item in found.mounts if "gl" in item.host_path.lower().split("/")[-1][:9]]
    assert not [item for item in found.mounts if "GLX" in item.host_path]
    assert not [item for item in found.mounts if "optix" in item.host_path]


def test_absolute_links_stay_inside_the_root(mount: Path) -> None:
    link = mount / LIBDIR / "libcuda.so.1"
    link.unlink()
    link.symlink_to(f"/opt/../{LIBDIR}/./libcuda.so.{VERSION}")
    (mount / "opt").mkdir()
    assert find_driver_files(mount, ROOT, NO_DEV).cuda == f"{HOST}/libcuda.so.{VERSION}"


def test_a_link_out_of_the_root_finds_nothing_outside(mount: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.so").touch()
    link = mount / LIBDIR / "libcuda.so.1"
    link.unlink()
    link.symlink_to("../" * 20 + str(tmp_path / "outside.so"))
    with pytest.raises(EnforcementError, match=r"no libcuda\.so\.1"):
        find_driver_files(mount, ROOT, NO_DEV)


def test_a_loop_of_links_ends(mount: Path) -> None:
    link = mount / LIBDIR / "libcuda.so.1"
    link.unlink()
    link.symlink_to("libcuda.so.1")
    with pytest.raises(EnforcementError, match=r"no libcuda\.so\.1"):
        find_driver_files(mount, ROOT, NO_DEV)


def test_merged_usr_and_rpm_folders_are_found(mount: Path) -> None:
    (mount / "usr/lib64").symlink_to("lib/x86_64-linux-gnu")
    (mount / LIBDIR).rename(mount / "usr/lib/elsewhere")
    (mount / "usr/lib64").unlink()
    (mount / "usr/lib64").symlink_to("lib/elsewhere")
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert found.libdir == "/usr/lib64"
    assert found.cuda == f"{ROOT}/usr/lib/elsewhere/libcuda.so.{VERSION}"
    assert f"/usr/lib64/libnvidia-nvvm.so.{VERSION}" in {m.container_path for m in found.mounts}


def test_libraries_without_a_version_in_their_name_are_found(mount: Path) -> None:
    for stem in ("libcuda.so", "libnvidia-ml.so", "libnvidia-nvvm.so"):
        for path in (mount / LIBDIR).glob(f"{stem}*"):
            path.unlink()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4"):
        (mount / LIBDIR / name).touch()
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert found.cuda == f"{HOST}/libcuda.so.1"
    nvvm = Mount(f"{HOST}/libnvidia-nvvm.so.4", f"/{LIBDIR}/libnvidia-nvvm.so.4")
    assert [item for item in found.mounts if "nvvm" in item.host_path] == [nvvm]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (f"{LIBDIR}/libcuda.so.1", r"no libcuda\.so\.1 below .*install the NVIDIA driver"),
        (f"{LIBDIR}/libnvidia-ml.so.1", r"libnvidia-ml\.so\.1 is nowhere.*install the whole"),
        ("dev/nvidiactl", r"no device node nvidiactl in .*kernel module"),
    ],
)
def test_what_must_be_there_and_is_not_is_an_error_with_what_to_do(
    mount: Path, missing: str, said: str
) -> None:
    (mount / missing).unlink()
    with pytest.raises(EnforcementError, match=said):
        find_driver_files(mount, ROOT, NO_DEV)


def test_sockets_and_firmware_go_along(mount: Path) -> None:
    folder = mount / "run/nvidia-persistenced"
    folder.mkdir(parents=True)
    before = Path.cwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)  # a socket's path may have 107 characters
        try:
            server.bind("socket")
        finally:
            os.chdir(before)
    firmware = mount / "lib/firmware/nvidia" / VERSION
    firmware.mkdir(parents=True)
    (firmware / "gsp_tu10x.bin").touch()
    (firmware / "other.txt").touch()
    found = {item.container_path: item.host_path for item in _mounts(mount)}
    path = f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"
    assert found[path] == f"{ROOT}{path}"
    assert found["/run/nvidia-persistenced/socket"] == f"{ROOT}/run/nvidia-persistenced/socket"
    assert not [item for item in found if item.endswith("other.txt")]


def _mounts(mount: Path) -> tuple[Mount, ...]:
    return find_driver_files(mount, ROOT, NO_DEV).mounts


def test_nodes_lie_below_the_driver_root_where_nvidiactl_does(mount: Path) -> None:
    found = find_driver_files(mount, ROOT, NO_DEV)
    assert found.nodes == tuple(
        DeviceNode(f"/dev/{name}", f"{ROOT}/dev/{name}")
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    )
    assert gpu_node(found, 1) == DeviceNode("/dev/nvidia1", f"{ROOT}/dev/nvidia1")


def test_else_nodes_are_the_hosts(mount: Path, tmp_path: Path) -> None:
    (mount / "dev").rename(tmp_path / "host-dev")
    found = find_driver_files(mount, ROOT, tmp_path / "host-dev")
    assert found.nodes[0] == DeviceNode("/dev/nvidiactl", "/dev/nvidiactl")
    assert gpu_node(found, 0) == DeviceNode("/dev/nvidia0", "/dev/nvidia0")
    assert seen("/dev/nvidia0", mount, ROOT, tmp_path / "host-dev").exists()


def test_paths_of_the_host_are_seen_below_the_mount(mount: Path) -> None:
    assert seen(f"{HOST}/x", mount, ROOT) == mount / LIBDIR / "x"
    assert seen(f"{ROOT}/dev/nvidia0", mount, ROOT) == mount / "dev/nvidia0"
    assert seen("/dev/nvidia0", mount, Path("/")) == mount / "dev/nvidia0"
    assert seen("/usr/lib/x", mount, Path("/")) == mount / "usr/lib/x"


def test_the_finder_gives_the_same_object_until_the_driver_changes(mount: Path) -> None:
    finder = DriverFinder(mount, ROOT, NO_DEV)
    first = finder()
    assert finder() is first
    libdir = mount / LIBDIR
    for path in libdir.glob(f"libcuda.so.{VERSION}"):
        path.rename(libdir / "libcuda.so.590.1.2")
    (libdir / "libcuda.so.1").unlink()
    (libdir / "libcuda.so.1").symlink_to("libcuda.so.590.1.2")
    assert finder().cuda == f"{HOST}/libcuda.so.590.1.2"


def test_the_finder_sees_nodes_appear_and_the_driver_go_and_come(mount: Path) -> None:
    finder = DriverFinder(mount, ROOT, NO_DEV)
    assert len(finder().nodes) == 3
    (mount / "dev/nvidia-modeset").touch()
    assert len(finder().nodes) == 4
    (mount / LIBDIR).rename(mount / "away")
    for _ in range(2):
        with pytest.raises(EnforcementError):
            finder()
    (mount / "away").rename(mount / LIBDIR)
    assert len(finder().nodes) == 4


def test_library_folders_are_relative_and_each_there_once() -> None:
    assert len(set(driver.LIBRARY_DIRS)) == len(driver.LIBRARY_DIRS)
    assert not [folder for folder in driver.LIBRARY_DIRS if folder.startswith("/")]


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("opt/file", "opt/file"),
        ("/opt/./file", "opt/file"),
        ("opt", "opt"),
        ("../../opt/file", "opt/file"),
        ("absolute/file", "opt/file"),
        ("above/file", "opt/file"),
        ("usr/back", "opt/file"),
        ("opt/none", None),
        ("broken", None),
        ("loop", None),
        ("a/loop/file", None),
    ],
)
def test_links_are_followed_as_after_a_chroot(tmp_path: Path, path: str, real: str | None) -> None:
    root = tmp_path / "root"
    for folder in ("opt", "usr", "a"):
        (root / folder).mkdir(parents=True)
    (root / "opt/file").touch()
    (tmp_path / "none").touch()
    for link, target in {
        "absolute": "/usr/../opt",
        "above": "../../../opt",
        "usr/back": "../absolute/file",
        "broken": "../none",
        "loop": "a/loop",
        "a/loop": "/loop",
    }.items():
        (root / link).symlink_to(target)
    assert driver.resolve(root, path) == real


def test_as_many_links_are_followed_as_the_kernel_follows(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    for number in range(1, 42):
        (tmp_path / str(number)).symlink_to(str(number - 1))
    assert driver.resolve(tmp_path, "40") == "0"
    assert driver.resolve(tmp_path, "41") is None
