"""The NVIDIA driver on the node: where its files lie, by a list of names, links inside its root.

What the list leaves out on purpose: OpenGL, OpenCL, Vulkan, EGL, OptiX and VDPAU libraries. Their
memory does not pass the front libraries, so no share could be held to its limit. Source of the
names: the lists of nvidia-container-toolkit and libnvidia-container, and the README of driver
580.159.04.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from apportion.container import DeviceNode, DriverFiles, Mount
from apportion.errors import EnforcementError

LIBRARY_DIRS: tuple[str, ...] = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/nvidia",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "usr/lib",
    "lib",
)
"""Folders below a driver root where the driver's libraries lie, the first with one wins.

Debian's and Fedora's places, Flatcar's and GKE's, and the GPU Operator's driver container. The
same list finds libnvidia-ml for the plugin and the files for containers: two lists would differ.
"""

_CUDA = "libcuda.so"
_NVML = "libnvidia-ml.so"

# Name and the number that programs link to; "" is the driver's version.
_LIBRARIES: tuple[tuple[str, str], ...] = (
    ("libcudadebugger.so", "1"),
    ("libnvcuvid.so", "1"),
    ("libnvidia-allocator.so", "1"),
    ("libnvidia-cfg.so", "1"),
    ("libnvidia-compiler.so", ""),
    ("libnvidia-encode.so", "1"),
    ("libnvidia-fatbinaryloader.so", ""),
    ("libnvidia-gpucomp.so", ""),
    ("libnvidia-nvvm.so", "4"),
    ("libnvidia-nvvm70.so", "4"),
    ("libnvidia-opticalflow.so", "1"),
    ("libnvidia-pkcs11-openssl3.so", ""),
    ("libnvidia-pkcs11.so", ""),
    ("libnvidia-ptxjitcompiler.so", "1"),
    ("libnvidia-sandboxutils.so", "1"),
    ("libnvidia-tileiras.so", ""),
)
_PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)
PROGRAM_DIRS = (
    "usr/bin",
    "usr/local/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "opt/bin",
    "usr/local/nvidia/bin",
)
"""Folders below a driver root where the driver's programs lie."""

_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_FIRMWARE_DIRS = ("lib/firmware/nvidia", "usr/lib/firmware/nvidia")
_CONTROL = "nvidiactl"
_NODES = (_CONTROL, "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")

_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_MAX_LINKS = 40  # as in the kernel


def resolve(root: Path, path: str) -> str | None:
    """Return what `path` below `root` stands for, links followed as after a chroot into `root`.

    Args:
        root: what the links stay inside of.
        path: relative to `root`, as the answer is; ".." never leads above `root`.

    Returns:
        None where there is nothing, or a loop of links.
    """
    todo = [part for part in reversed(path.split("/")) if part]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part in {".", ".."}:
            done = done[:-1] if part == ".." else done
            continue
        here = root.joinpath(*done, part)
        try:
            target = str(here.readlink()) if here.is_symlink() else None
        except OSError:
            return None
        if target is None:
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            return None
        done = [] if target.startswith("/") else done
        todo += [step for step in reversed(target.split("/")) if step]
    return "/".join(done) if root.joinpath(*done).exists() else None


def find_driver_files(root_mount: Path, root: Path, dev: Path = Path("/dev")) -> DriverFiles:
    """Return what of the driver goes into a container; see model.DriverFiles.

    Args:
        root_mount: where this process sees the driver's root.
        root: the driver's root on the host; host paths begin with it.
        dev: where this process sees the host's /dev, for a driver root without nodes of its own.

    Raises:
        EnforcementError: libcuda, libnvidia-ml or nvidiactl is missing; says where it looked.
    """
    tree = _Tree(root_mount, root)
    libdir = _library_dir(tree)
    cuda, nvml = (_real(tree, libdir, stem) for stem in (_CUDA, _NVML))
    version = _version(cuda) or _version(nvml)
    mounts = {
        mount.container_path: mount
        for found in (
            _libraries(tree, libdir, version),
            _programs(tree),
            _sockets(tree),
            _firmware(tree, version),
        )
        for mount in found
    }
    return DriverFiles(
        libdir=f"/{libdir}",
        cuda=tree.host(cuda),
        nvml=tree.host(nvml),
        mounts=tuple(mounts[path] for path in sorted(mounts)),
        nodes=_nodes(root_mount, root, dev),
    )


def gpu_node(found: DriverFiles, minor: int) -> DeviceNode:
    """Return the node of the GPU with this minor number; it lies where nvidiactl does."""
    control = next(node for node in found.nodes if node.path == f"/dev/{_CONTROL}")
    name = f"nvidia{minor}"
    return DeviceNode(f"/dev/{name}", f"{control.host_path.removesuffix(_CONTROL)}{name}")


def seen(host_path: str, root_mount: Path, root: Path, dev: Path = Path("/dev")) -> Path:
    """Return where this process sees a file of the driver; arguments as find_driver_files."""
    above = f"{root}/"
    if host_path.startswith(above) and above != "//":
        return root_mount / host_path.removeprefix(above)
    path = PurePosixPath(host_path)
    if path.is_relative_to("/dev") and not (root_mount / "dev" / _CONTROL).exists():
        return dev / path.relative_to("/dev")
    return root_mount / path.relative_to("/")


class DriverFinder:
    """Finds the driver's files anew only when the driver or its device nodes changed.

    Args:
        root_mount: where this process sees the driver's root.
        root: the driver's root on the host.
        dev: where this process sees the host's /dev.
    """

    def __init__(self, root_mount: Path, root: Path, dev: Path = Path("/dev")) -> None:
        self._where = (root_mount, root, dev)
        self._mutex = threading.Lock()
        self._found: DriverFiles | None = None
        self._watched: tuple[str, ...] = ()
        self._signs: object = None

    def __call__(self) -> DriverFiles:
        """Return the driver's files; the same object as before when nothing changed.

        Raises:
            EnforcementError: see find_driver_files.
        """
        with self._mutex:
            if self._found is None or self._signs != _signs(self._watched):
                self._found = None
                found = find_driver_files(*self._where)
                self._watched = self._what_changes(found)
                self._signs = _signs(self._watched)
                self._found = found
            return self._found

    def _what_changes(self, found: DriverFiles) -> tuple[str, ...]:
        """Return paths of which one changes when a driver is installed, removed or updated."""
        root_mount, root, dev = self._where
        folders = (root_mount / found.libdir.lstrip("/"), root_mount / PROGRAM_DIRS[0])
        libraries = (seen(path, root_mount, root) for path in (found.cuda, found.nvml))
        nodes = (folder / name for folder in (root_mount / "dev", dev) for name in _NODES)
        return tuple(str(path) for path in (*folders, *libraries, *nodes))


class _Tree:
    """The driver's root: paths in it are relative, and a link never leads out of it."""

    def __init__(self, mount: Path, root: Path) -> None:
        self._mount = mount
        self._root = root

    def host(self, path: str) -> str:
        return str(self._root / path)

    def resolve(self, path: str) -> str | None:
        return resolve(self._mount, path)

    def names(self, folder: str) -> list[str]:
        real = self.resolve(folder)
        if real is None:
            return []
        try:
            return sorted(path.name for path in (self._mount / real).iterdir())
        except OSError:
            return []

    def mode(self, path: str) -> int:
        try:
            return (self._mount / path).stat().st_mode
        except OSError:
            return 0


def _library_dir(tree: _Tree) -> str:
    for folder in LIBRARY_DIRS:
        if tree.resolve(f"{folder}/{_CUDA}.1") is not None:
            return folder
    raise EnforcementError(
        f"no {_CUDA}.1 below the driver root {tree.host('')}, looked in "
        f"{', '.join(LIBRARY_DIRS)}; install the NVIDIA driver, or set driver_root "
        "(/run/nvidia/driver with the GPU Operator) and driver_root_mount"
    )


def _real(tree: _Tree, libdir: str, stem: str) -> str:
    """Return a library's real file; NVML may lie in another of the folders than CUDA."""
    for folder in (libdir, *LIBRARY_DIRS):
        real = tree.resolve(f"{folder}/{stem}.1")
        if real is not None:
            return real
    raise EnforcementError(
        f"{_CUDA}.1 is in {tree.host(libdir)}, but {stem}.1 is nowhere below the driver root; "
        "install the whole NVIDIA driver (on Debian: libnvidia-ml1)"
    )


def _version(path: str) -> str:
    match = _VERSION.search(path)
    return match.group(1) if match else ""


def _libraries(tree: _Tree, libdir: str, version: str) -> Iterator[Mount]:
    """Mount each library under the name of its file and the names that lead to it."""
    present = tree.names(libdir)
    for stem, number in _LIBRARIES:
        named = [name for name in present if re.fullmatch(re.escape(stem) + r"(\.\d+)*", name)]
        full = f"{stem}.{version}"
        wanted = full if full in named else f"{stem}.{number}" if number else ""
        real = tree.resolve(f"{libdir}/{wanted}") if wanted in named else None
        if real is None:
            continue
        leading = {name for name in named if tree.resolve(f"{libdir}/{name}") == real}
        soname = {f"{stem}.{number}"} if number else set()
        for name in sorted(leading | soname | {PurePosixPath(real).name}):
            yield Mount(tree.host(real), f"/{libdir}/{name}")


def _programs(tree: _Tree) -> Iterator[Mount]:
    for name in _PROGRAMS:
        for folder in PROGRAM_DIRS:
            real = tree.resolve(f"{folder}/{name}")
            if real is not None:
                # Where every PATH looks, also when the driver's own folder is an odd one.
                yield Mount(tree.host(real), f"/usr/bin/{name}")
                break


def _sockets(tree: _Tree) -> Iterator[Mount]:
    for path in _SOCKETS:
        real = tree.resolve(path)
        if real is not None and stat.S_ISSOCK(tree.mode(real)):
            yield Mount(tree.host(real), f"/{path}")


def _firmware(tree: _Tree, version: str) -> Iterator[Mount]:
    for folder in _FIRMWARE_DIRS if version else ():
        found = [
            name
            for name in tree.names(f"{folder}/{version}")
            if name.startswith("gsp") and name.endswith(".bin")
        ]
        for name in found:
            real = tree.resolve(f"{folder}/{version}/{name}")
            if real is not None:
                yield Mount(tree.host(real), f"/lib/firmware/nvidia/{version}/{name}")
        if found:
            return


def _nodes(root_mount: Path, root: Path, dev: Path) -> tuple[DeviceNode, ...]:
    places = ((root_mount / "dev", root / "dev"), (dev, Path("/dev")))
    for seen, host in places:
        if (seen / _CONTROL).exists():
            return tuple(
                DeviceNode(f"/dev/{name}", str(host / name))
                for name in _NODES
                if (seen / name).exists()
            )
    raise EnforcementError(
        f"no device node {_CONTROL} in {' or '.join(str(host) for _seen, host in places)}; "
        "load the NVIDIA kernel module and make its nodes (nvidia-modprobe, or run nvidia-smi once)"
    )


def _signs(paths: tuple[str, ...]) -> list[tuple[int, int, int] | None]:
    return [_sign(path) for path in paths]


def _sign(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - on the hot path
    except OSError:
        return None
    # A device node has its times changed by use.
    changed = 0 if stat.S_ISCHR(found.st_mode) else found.st_mtime_ns
    return (found.st_ino, found.st_size, changed)
