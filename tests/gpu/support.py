"""A share on a real card: the front libraries mounted over the driver's, as in a container."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.shim.support import DRIVER_DIR, GIB, REPO, fresh_ledger, limits_text, make, mark

KEY = "0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10-0"
LIMIT = 4 * GIB
WAIT_S = 240


def build() -> Path:
    """Build the front libraries; return their folder."""
    target = REPO / "build" / "shim"
    make(REPO / "shim", f"BUILD={target}")
    return target


def compiled(name: str, folder: Path) -> Path:
    """Compile a program of tests/gpu/programs into `folder`; return its path."""
    source = Path(__file__).with_name("programs") / f"{name}.c"
    subprocess.run(
        ["gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", folder / name, source,
         "-ldl"],
        check=True,
    )  # fmt: skip
    return folder / name


def real(name: str) -> Path:
    """Return the driver's library, wherever the dynamic linker finds it."""
    program = f"import ctypes; ctypes.CDLL('{name}'); print(open('/proc/self/maps').read())"
    maps = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    stem = name.split(".so", maxsplit=1)[0]
    found = next(line.split()[-1] for line in maps.stdout.splitlines() if f"/{stem}.so" in line)
    return Path(found)


def smi(*query: str) -> str:
    """Return what the driver's own nvidia-smi says, outside any share."""
    command = ["nvidia-smi", *query]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def truth() -> int:
    """Return the bytes that all processes on the card hold together, by the driver's word."""
    text = smi("--query-compute-apps=used_memory", "--format=csv,noheader,nounits")
    return sum(int(line) for line in text.split()) << 20


@dataclass(frozen=True)
class Share:
    """One share of the first card: its folder, and how programs are run with it."""

    shim: Path
    folder: Path

    @classmethod
    def make(cls, shim: Path, parent: Path, memory: int = LIMIT) -> Share:
        """Make the folder as the plugin does."""
        folder = parent / KEY
        folder.mkdir()
        uuid = smi("--query-gpu=uuid", "--format=csv,noheader").split()[0]
        (folder / "limits").write_text(limits_text(KEY, uuid, memory))
        (folder / "limits").chmod(0o444)
        (folder / "ledger").write_bytes(fresh_ledger())
        (folder / "ledger").chmod(0o666)
        mark(folder, KEY)
        return cls(shim, folder)

    @property
    def total(self) -> int:
        """Bytes that the ledger says are charged."""
        return int.from_bytes((self.folder / "ledger").read_bytes()[24:32], "little")

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs `arguments` as in a container with this share."""
        inside = f"/run/apportion/shares/{KEY}"
        lines = [
            "set -e",
            "mount -t tmpfs -o mode=0755 none /run",
            f"mkdir -p {DRIVER_DIR} {inside}",
        ]
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            library = shlex.quote(str(real(name)))
            lines += [
                f"touch {DRIVER_DIR}/{name}",
                f"mount --bind {library} {DRIVER_DIR}/{name}",
                f"mount --bind {shlex.quote(str(self.shim / name))} {library}",
            ]
        outside = shlex.quote(str(self.folder))
        lines += [
            f"mount --bind {outside} {inside}",
            f"mount -o remount,ro,bind {inside}",
            f"mount --bind {outside}/ledger {inside}/ledger",
            'exec "$@"',
        ]
        script = "\n".join(lines)
        start = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        return [*start, *arguments]

    def run(self, *arguments: str, **env: str) -> str:
        """Run a program with the share; return what it printed."""
        return output(self.command(*arguments), **env)

    def python(self, program: str, **env: str) -> dict[str, Any]:
        """Run a Python program that prints one line of JSON last; return that."""
        return answer(self.run(sys.executable, "-c", textwrap.dedent(program), **env))

    @contextmanager
    def holding(self, *arguments: str, **env: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """Run a program that prints a line and waits; give that line. Ended with the context."""
        with subprocess.Popen(
            self.command(*arguments), env={**os.environ, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                yield _line(process.stdout), process
            finally:
                process.kill()


def _line(stream: IO[str] | None) -> str:
    assert stream
    return stream.readline().strip()


def output(command: list[str], **env: str) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(
        command, env={**os.environ, **env},
        capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answer(text: str) -> dict[str, Any]:
    """Return the JSON of the last line."""
    parsed: dict[str, Any] = json.loads(text.splitlines()[-1])
    return parsed


def native(program: str, **env: str) -> dict[str, Any]:
    """Run a Python program without a share, before the driver alone; return its last line."""
    return answer(output([sys.executable, "-c", textwrap.dedent(program)], **env))
