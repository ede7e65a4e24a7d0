"""Where the folders of a GPU's MPS daemon lie."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from apportion import names
from apportion.container import Mount
from apportion.model import GpuUuid

_DIGITS = 12
PIPE, CLIENTS, LOG = "pipe", "clients", "log"
DOOR = "control"
"""The socket that a program needs; what else lies beside it is for administrators."""


@dataclass(frozen=True, slots=True)
class Place:
    """A daemon's folders on the node.

    Attributes:
        uuid: its GPU.
        folder: what is the daemon's; pipes and logs lie below it.
    """

    uuid: GpuUuid
    folder: Path

    @property
    def pipe(self) -> Path:
        """The daemon's own: its CUDA_MPS_PIPE_DIRECTORY."""
        return self.folder / PIPE

    @property
    def clients(self) -> Path:
        """What containers get of that: the socket that programs need, and nothing else."""
        return self.folder / CLIENTS

    @property
    def log(self) -> Path:
        """Where it writes: CUDA_MPS_LOG_DIRECTORY."""
        return self.folder / LOG

    @property
    def mount(self) -> Mount:
        """What a container gets, at a place that the front library knows."""
        return Mount(str(self.clients), f"{names.CONTAINER_MPS}/{self.uuid}")


def place(root: Path, driver: str, uuid: GpuUuid) -> Place:
    """Return the folders of a GPU's daemon.

    The name is short: a socket's path has at most 107 bytes, a driver's name up to 63.

    Args:
        root: folder of all daemons of this node.
        driver: name of the DRA driver; another one on the node has its own.
        uuid: the GPU.
    """
    digest = hashlib.sha256(f"{driver} {uuid}".encode()).hexdigest()
    return Place(uuid, root / digest[:_DIGITS])
