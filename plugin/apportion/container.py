"""What is put into a container: values that say nothing of who puts it there."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount from the host into the container."""

    host_path: str
    container_path: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node: its path in the container and where it lies on the host."""

    path: str
    host_path: str


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What of the driver goes into a container, found below a driver root.

    Attributes:
        libdir: folder of the libraries inside the container, for example
            `/usr/lib/x86_64-linux-gnu`.
        cuda: host path of the real libcuda, with links resolved.
        nvml: host path of the real libnvidia-ml.
        mounts: everything else: other libraries, programs, firmware.
        nodes: device nodes that all GPUs need (nvidiactl, nvidia-uvm, …).
    """

    libdir: str
    cuda: str
    nvml: str
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Hook:
    """A createContainer hook: a program on the host and its arguments after argv[0]."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edits:
    """What is added to a container: CDI's containerEdits without their JSON."""

    mounts: tuple[Mount, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    env: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.mounts + other.mounts,
            self.nodes + other.nodes,
            self.env + other.env,
            self.hooks + other.hooks,
        )
