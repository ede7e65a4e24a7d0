"""What a machine's mount namespace looks like.

The host's file system, with the folders that a Kubernetes node writes replaced by private ones at
the same, standard paths. Nothing here is seen by the host, and all of it goes with the namespace.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.harness import mounts
from tests.harness.spec import Machine, persistent_folder

# Folders of the host in which a node needs mount points that the host may not have.
_LAYERED = ("/etc", "/var/lib", "/var/log")
_EMPTY = ("/run", "/dev")
_NULL = (1, 3)
_DEVICES = {
    "null": _NULL,
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "kmsg": (1, 11),  # kubelet watches it for the kernel's out-of-memory kills
    "tty": (5, 0),
    "fuse": (10, 229),
}
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_TTY_GROUP = 5


def set_up(machine: Machine) -> None:
    """Build the view; to be called once, in a new mount namespace with private propagation."""
    files = machine.file_system
    kept = _open_visible(files.visible)
    scratch = Path(machine.folder) / "scratch"
    mounts.tmpfs(str(scratch), "0755")
    if files.usr_layer:
        layers = f"lowerdir={_plain(files.usr_layer)}/usr:/usr"
        mounts.mount("overlay", "/usr", "overlay", mounts.RDONLY, layers)
    for folder in _LAYERED:
        _layer(folder, scratch)
    _make_run()
    _make_dev(files.null_devices, files.host_devices)
    _show_again(kept)
    for path in files.persistent:
        source = persistent_folder(Path(machine.folder), path)
        source.mkdir(parents=True, exist_ok=True)
        mounts.bind(str(source), path)
    for path, (source_path, read_only) in sorted(files.binds.items()):
        mounts.bind(source_path, path, read_only=read_only)
        _fill_driver_dev(path, files.null_devices)
    for path, source_path in sorted(files.masks.items()):
        if Path(path).exists():
            mounts.mount(source_path, path, flags=mounts.BIND)
    # As on a real node, so that pods may ask for mount propagation. No peer is on the host.
    mounts.mount("", "/", flags=mounts.REC | mounts.SHARED)


def _plain(path: str) -> str:
    if ":" in path or "," in path:
        raise OSError(f"overlay mounts can't name {path}: no ':' or ',' please")
    return path


def _open_visible(paths: list[str]) -> list[tuple[int, str]]:
    """Hold what the new mounts would hide: open folders can be bound again later."""
    hidden = [point for folder in _LAYERED for point in mounts.points_below(folder)]
    hidden += [path for path in paths if path.startswith(tuple(f"{f}/" for f in _LAYERED + _EMPTY))]
    flags = os.O_PATH | os.O_CLOEXEC
    return [(os.open(path, flags), path) for path in sorted(set(hidden)) if Path(path).exists()]


def _show_again(kept: list[tuple[int, str]]) -> None:
    for number, path in kept:
        mounts.bind(f"/proc/self/fd/{number}", path)
        os.close(number)


def _layer(folder: str, scratch: Path) -> None:
    """Make folder writable without writing to the host's."""
    upper, work = (scratch / f"{folder.replace('/', '-')}.{part}" for part in ("upper", "work"))
    upper.mkdir()
    work.mkdir()
    # Relative names: the scratch folder's own may hold characters that the options can't.
    os.chdir(scratch)
    data = f"lowerdir={folder},upperdir={upper.name},workdir={work.name}"
    mounts.mount("overlay", folder, "overlay", 0, data)
    os.chdir("/")


def _make_run() -> None:
    mounts.tmpfs("/run", "0755")
    if not Path("/var/run").is_symlink():
        mounts.bind("/run", "/var/run")
    Path("/run/lock").mkdir(mode=0o1777)
    Path("/run/cdi").mkdir()


def _make_dev(null_devices: list[str], host_devices: list[str]) -> None:
    held = [(os.open(path, os.O_PATH | os.O_CLOEXEC), path) for path in host_devices]
    mounts.tmpfs("/dev", "0755")
    for name, number in _DEVICES.items():
        _device(f"/dev/{name}", number)
    for name, target in _LINKS.items():
        Path(f"/dev/{name}").symlink_to(target)
    for name in ("pts", "shm", "mqueue"):
        Path(f"/dev/{name}").mkdir()
    options = f"newinstance,ptmxmode=0666,mode=0620,gid={_TTY_GROUP}"
    mounts.mount("devpts", "/dev/pts", "devpts", mounts.NOSUID | mounts.NOEXEC, options)
    mounts.mount("shm", "/dev/shm", "tmpfs", mounts.NOSUID | mounts.NODEV, "mode=1777")
    mounts.mount("mqueue", "/dev/mqueue", "mqueue", mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    for path in null_devices:
        _device(path, _NULL)
    _show_again(held)


def _fill_driver_dev(root: str, null_devices: list[str]) -> None:
    """A driver root with a dev folder has the device nodes there too, as the GPU Operator's."""
    folder = Path(root) / "dev"
    if root != "/run/nvidia/driver" or not folder.is_dir() or not null_devices:
        return
    mounts.tmpfs(str(folder), "0755")
    for path in null_devices:
        _device(str(folder / Path(path).name), _NULL)


def _device(path: str, number: tuple[int, int]) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
    Path(path).chmod(0o666)  # mknod heeds the umask
