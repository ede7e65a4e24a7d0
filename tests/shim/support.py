"""Containers as the front libraries see them: the real binaries in a mount namespace of their own.

The whole of /run is private there: the simulated driver and its state, the shares, the fronts, and
a linker cache that finds them, so that programs need no environment variable.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

REPO: Final = Path(__file__).resolve().parents[2]
# Set by test_sanitizers.py, which runs tests of this tier again on fronts and applications that a
# sanitizer watches: "address" (with undefined behaviour) or "thread".
SANITIZER: Final = os.environ.get("SHIM_SANITIZER", "")
_WATCHED: Final = f"-{SANITIZER}" if SANITIZER else ""
SANITIZERS: Final = {
    "address": "-g -fsanitize=address,undefined -fno-sanitize-recover=all",
    "thread": "-g -fsanitize=thread",
}
SHIM: Final = REPO / "build" / f"shim{_WATCHED}"
FAKES: Final = REPO / "build" / "fakes"
PROGRAMS: Final = REPO / "build" / f"shim-tests{_WATCHED}"
LIBDIR: Final = FAKES / "rootfs" / "usr" / "lib" / "x86_64-linux-gnu"
DRIVER_DIR: Final = "/run/apportion/driver"
LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")

MIB: Final = 1 << 20
GIB: Final = 1 << 30
BLOCK: Final = 2 * MIB
OK, INVALID, OOM, NOT_INITIALIZED, NO_CONTEXT = 0, 1, 2, 3, 201
SENTINEL: Final = 0xDEADBEEF

LEDGER_SIZE: Final = 4096 + 1024 * 64
MARK: Final = "security.apportion"
LEDGER_MAGIC: Final = b"APPLEDG1"
WAIT_S: Final = 60


def uuid(index: int = 0) -> str:
    """Return the UUID of the `index`-th simulated card."""
    return f"GPU-6d1c2f5{index}-8a3b-4c7d-9e0f-{index:012x}"


def build(*programs: str) -> None:
    """Build all that a `Container` mounts, of the test programs `programs` alone, one at a time."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    with (PROGRAMS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        flags = SANITIZERS.get(SANITIZER, "")
        only = [f"{SHIM}/{name}" for name in LIBRARIES] if SANITIZER else []
        made = [f"CFLAGS={flags}", f"LDFLAGS={flags}"] if SANITIZER else []
        make(REPO / "shim", f"BUILD={SHIM}", *made, *only)
        make(REPO / "tests" / "fakes", f"BUILD={FAKES}")
        make(
            REPO / "tests" / "shim" / "programs",
            f"BUILD={PROGRAMS}", f"DRIVER={LIBDIR}", f"SANITIZE={SANITIZER}",
            *(f"{PROGRAMS}/{name}" for name in programs),
        )  # fmt: skip
        _make_cache()


def make(folder: Path, *arguments: str) -> None:
    """Run make quietly; the output of a failure is the error."""
    done = subprocess.run(
        ["make", "-s", "-C", str(folder), *arguments],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def gpus_conf(count: int = 2, *, context_mib: int = 0, **driver: str) -> str:
    """Return the simulated driver's configuration with `count` Tesla T4s; contexts cost nothing."""
    lines = ["[driver]", "device_nodes = ignored", *(f"{k} = {v}" for k, v in driver.items())]
    for index in range(count):
        lines += [
            f"[gpu {index}]",
            f"uuid = {uuid(index)}",
            f"pci = 00000000:{0x3B + index:02x}:00.0",
            f"context_mib = {context_mib}",
        ]
    return "\n".join(lines) + "\n"


def limits_text(key: str, gpu: str, memory: int) -> str:
    """Return a limits file as the plugin writes it."""
    return (
        f"apportion-limits 1\nshare {key}\nuuid {gpu}\nmemory {memory}\n"
        "cores 30\ncores-policy cap\n"
    )


def fresh_ledger() -> bytes:
    """Return a ledger as the plugin creates it."""
    header = LEDGER_MAGIC + b"".join(v.to_bytes(4, "little") for v in (1, 64, 64, 1024))
    return header.ljust(LEDGER_SIZE, b"\0")


def mark(folder: Path, key: str) -> None:
    """Mark the files of a share as the plugin's."""
    for name in ("limits", "ledger"):
        os.setxattr(folder / name, MARK, key.encode())


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Give a folder on a tmpfs, where shares must lie, and remove it in the end."""
    with tempfile.TemporaryDirectory(prefix="apportion-", dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@dataclass
class Share:
    """A share folder on the host."""

    folder: Path
    read_only: bool = True
    forged: bool = False

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def field(self, offset: int, size: int = 8) -> int:
        """Return an integer of the ledger."""
        return int.from_bytes(self.ledger.read_bytes()[offset : offset + size], "little")

    @property
    def total(self) -> int:
        return self.field(24)

    @property
    def denied(self) -> int:
        return self.field(32)

    @property
    def peak(self) -> int:
        return self.field(40)

    def slots(self) -> list[int]:
        """Return `used` of every slot."""
        data = self.ledger.read_bytes()[4096:]
        return [int.from_bytes(data[i + 8 : i + 16], "little") for i in range(0, len(data), 64)]


@dataclass
class Container:
    """What one container is given, on a node of its own unless `state` is shared.

    `folder` lies on a tmpfs, as the plugin's share folders do. `extra` is what else is done in the
    container before its program runs, in the shell's words; `entry` is the command that starts it,
    such as unshare.
    """

    folder: Path
    state: Path
    shares: list[Share] = field(default_factory=list)
    fronts: Path = SHIM
    driver: Path = LIBDIR
    extra: str = ""
    entry: str = ""

    def share(
        self,
        memory: int = 64 * MIB,
        *,
        gpu: str = uuid(),
        key: str | None = None,
        text: str | None = None,
        ledger: bytes | None = None,
    ) -> Share:
        """Make a share folder, to be mounted into the container."""
        name = key or f"0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10-{len(self.shares)}"
        folder = self.folder / "shares" / name
        folder.mkdir(parents=True)
        (folder / "limits").write_text(limits_text(name, gpu, memory) if text is None else text)
        (folder / "limits").chmod(0o444)
        (folder / "ledger").write_bytes(fresh_ledger() if ledger is None else ledger)
        (folder / "ledger").chmod(0o666)
        mark(folder, name)
        made = Share(folder)
        self.shares.append(made)
        return made

    def script(self) -> str:
        """Return the shell script that mounts everything and becomes the program."""
        lines = [
            "set -e",
            "mount -t tmpfs -o mode=0755 none /run",
            f"mkdir -p {DRIVER_DIR} /run/apportion/shares /run/fakegpu /run/front /run/bin",
            f"mount --bind {shlex.quote(str(self.state))} /run/fakegpu",
            f"mount --bind {shlex.quote(str(PROGRAMS))} /run/bin",
            f"mount --bind {shlex.quote(str(self.fronts))} /run/front",
        ]
        for name in LIBRARIES:
            lines += [
                f"touch {DRIVER_DIR}/{name}",
                f"mount --bind {shlex.quote(str(self.driver / name))} {DRIVER_DIR}/{name}",
            ]
        for share in self.shares:
            lines += self._mounts(share)
        cache = PROGRAMS / "ld.so.cache"
        lines += [
            f"mount --bind {shlex.quote(str(cache))} /etc/ld.so.cache",
            self.extra,
            "cd /",
            f'exec {self.entry} {watched_by(SANITIZER)}"$@"',
        ]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _mounts(share: Share) -> list[str]:
        inside = shlex.quote(f"/run/apportion/shares/{share.key}")
        outside = shlex.quote(str(share.folder))
        if share.forged:
            return [f"cp -r {outside} {inside}"]
        lines = [f"mkdir {inside}", f"mount --bind {outside} {inside}"]
        if share.read_only:
            lines.append(f"mount -o remount,ro,bind {inside}")
        return [*lines, f"mount --bind {outside}/ledger {inside}/ledger"]

    def command(self, *arguments: str, user: int = 0) -> list[str]:
        """Return the command line that runs `arguments` in the container."""
        entry = ["unshare", "--mount", "--propagation", "private", "sh", "-c", self.script(), "sh"]
        if user:
            entry += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        return [*entry, *arguments]

    def run(
        self,
        *arguments: str,
        user: int = 0,
        env: dict[str, str] | None = None,
        stdin: str = "",
    ) -> str:
        """Run a program to its end and return its output; it must succeed."""
        done = subprocess.run(
            self.command(*arguments, user=user), input=stdin, env=env,
            capture_output=True, text=True, check=False, timeout=WAIT_S * 2,
        )  # fmt: skip
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    def client(
        self, *, user: int = 0, env: dict[str, str] | None = None, program: str = "client"
    ) -> Client:
        """Start the test application; `start` it with a device before anything else."""
        return Client(self.command(f"/run/bin/{program}", user=user), env)


class Client:
    """An application in a container that obeys line by line."""

    def __init__(self, command: list[str], env: dict[str, str] | None) -> None:
        self.process = subprocess.Popen(
            command, env=env, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def send(self, *words: str | int) -> None:
        """Give a command without waiting for the answer."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def read(self) -> list[int]:
        """Return the next answer's numbers."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the application ended: {self.process.wait(WAIT_S)}, {self.errors()}"
        return [int(word) for word in line.split()]

    def errors(self) -> str:
        """Return what it wrote on standard error by its end."""
        assert self.process.stderr
        return self.process.stderr.read()

    def ask(self, *words: str | int) -> list[int]:
        """Give a command and return the answer's numbers."""
        self.send(*words)
        return self.read()

    def start(self, device: int = 0) -> Client:
        """Initialise the driver and make a device's primary context current."""
        assert self.ask("start", device) == [OK]
        return self

    def alloc(self, size: int) -> int:
        """Return the driver's result of an allocation."""
        return self.ask("alloc", size)[0]

    def info(self) -> tuple[int, int]:
        """Return free and total bytes as CUDA reports them."""
        result, free, total = self.ask("info")
        assert result == OK
        return free, total

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(WAIT_S)
        self._close()

    def end(self) -> None:
        """End it as a program ends; it must have been silent on standard error."""
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(WAIT_S) == 0
        assert self.errors() == ""
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._close()


def watched_by(sanitizer: str) -> str:
    """Return the command that puts a program under a sanitizer, which writes what it finds."""
    if not sanitizer:
        return ""
    library = subprocess.run(
        ["gcc", f"-print-file-name=lib{sanitizer[0]}san.so"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    # What is still held at the end is the application's affair, and a child that goes on after a
    # fork from a process with threads is what some tests are about.
    options = "log_path=/run/fakegpu/sanitizer:halt_on_error=1:exitcode=77"
    return (
        f"env LD_PRELOAD={Path(library).resolve()} UBSAN_OPTIONS={options} "
        f"ASAN_OPTIONS={options}:detect_leaks=0 TSAN_OPTIONS={options}:die_after_fork=0 "
    )


def _make_cache() -> None:
    """Write the linker cache that finds the fronts at /run/front."""
    cache = PROGRAMS / "ld.so.cache"
    script = (
        "set -e; mount -t tmpfs none /run; mkdir /run/front; "
        f"mount --bind {shlex.quote(str(SHIM))} /run/front; "
        f"ldconfig -X -C {shlex.quote(str(cache))}.part /run/front; "
        f"mv {shlex.quote(str(cache))}.part {shlex.quote(str(cache))}"
    )
    subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        check=True, timeout=WAIT_S, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def several(container: Container, count: int) -> Iterator[list[Client]]:
    """Start `count` applications in one container's share, all with a context."""
    clients = [container.client() for _ in range(count)]
    try:
        for client in clients:
            client.send("start", 0)
        assert [client.read() for client in clients] == [[OK]] * count
        yield clients
    finally:
        for client in clients:
            client.__exit__()


def state_folder(folder: Path, conf: str) -> Path:
    """Return a folder for the simulated driver's state that every user may write to."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    (folder / "gpus.conf").write_text(conf)
    return folder


def is_root() -> bool:
    """Return whether namespaces and mounts can be made."""
    return os.geteuid() == 0
