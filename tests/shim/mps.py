"""A simulated MPS daemon for tests, as the plugin starts one."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.shim.support import FAKES, WAIT_S, uuid

CONTROL = FAKES / "rootfs" / "usr" / "bin" / "nvidia-cuda-mps-control"


@dataclass
class Daemon:
    """A simulated MPS daemon of one card, and its folder."""

    state: Path
    gpu: str = uuid()
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mps", dir="/tmp")))

    def start(self) -> Self:
        self.folder.chmod(0o755)
        self.run("-d")
        return self

    def run(self, *words: str, said: str = "") -> str:
        """Run the control program, which must succeed, and return what it prints."""
        environment = {
            "FAKEGPU_DIR": str(self.state), "CUDA_VISIBLE_DEVICES": self.gpu,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder), "CUDA_MPS_LOG_DIRECTORY": str(self.folder),
        }  # fmt: skip
        return subprocess.run(
            [CONTROL, *words], env=environment, input=said, text=True, check=True, timeout=WAIT_S,
            stdout=subprocess.PIPE,
        ).stdout.strip()  # fmt: skip

    def end(self) -> None:
        """End it, and its server."""
        self.run(said="quit\n")
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        return int((self.folder / "nvidia-cuda-mps-control.pid").read_text())

    @property
    def server(self) -> int:
        """The server's PID, 0 where there is none."""
        return int(self.run(said="get_server_list\n") or 0)

    def mounted(self) -> str:
        """Return how a container gets it, in the shell's words."""
        inside = f"/run/apportion/mps/{self.gpu}"
        clients = self.folder / "clients"
        clients.mkdir(exist_ok=True)
        if not (clients / "control").exists():
            (clients / "control").hardlink_to(self.folder / "control")
        return (
            f"mkdir -p {inside}; mount --bind {shlex.quote(str(clients))} {inside}; "
            f"mount -o remount,ro,bind {inside}"
        )
