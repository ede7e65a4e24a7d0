"""Builds the simulated driver, writes its configuration and reads its accounts.

The configuration (`gpus.conf`) and the accounts (`state`) lie in one folder, which processes find
by the environment variable `FAKEGPU_DIR`, or at `/run/fakegpu` without it.
"""

from __future__ import annotations

import configparser
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
DEFAULT_BUILD: Final = HERE.parent.parent / "build" / "fakes"
LIBDIR: Final = Path("usr/lib/x86_64-linux-gnu")
"""The driver libraries' folder, relative to the driver root."""

MIB: Final = 1 << 20
RECHECK_S: Final = 0.002
"""Longer than the libraries go on with a configuration without a look at the file."""

# The layout of common/fakegpu.h; tests/shim/test_fakes.py proves them equal.
MAGIC: Final = int.from_bytes(b"FAKEGPU1", "little")
VERSION: Final = 1
MAX_GPUS: Final = 16
SLOTS: Final = 1024
HEADER_SIZE: Final = 4096
HEADER: Final = struct.Struct(f"<QIIIIII{MAX_GPUS}Q")
SLOT: Final = struct.Struct(f"<IiQQ64s{MAX_GPUS}Q{MAX_GPUS}Q{MAX_GPUS}I72xQ24x")
FIRST_SLOT_BYTE: Final = (1 << 40) + 1

FLOCK: Final = struct.Struct("hhllixxxx")
"""The kernel's struct flock on a 64-bit machine."""


_TROUBLES: Final = (
    "clock_reasons",
    "ecc_uncorrected",
    "events",
    "fault",
    "hang_ms",
    "lost",
    "recovery_action",
    "remap_failed",
    "remap_pending",
    "xid",
)


@dataclass(frozen=True)
class T4:
    """One simulated card; the defaults are a Tesla T4's.

    Sizes are in MiB. `minor` is the N of /dev/nvidiaN; None takes the card's place in the list.
    """

    uuid: str
    pci: str
    name: str = "Tesla T4"
    minor: int | None = None
    brand: str = "Tesla"
    architecture: str = "Turing"
    compute_capability: str = "7.5"
    memory_mib: int = 15360
    reserved_mib: int = 443
    context_mib: int = 100
    multiprocessors: int = 40
    mig: str = "unsupported"
    numa_node: int = -1
    lost: bool = False

    @property
    def usable(self) -> int:
        """Bytes that programs can have: nominal less reserved."""
        return (self.memory_mib - self.reserved_mib) * MIB

    def options(self, key: int) -> dict[str, str]:
        """The card's section of gpus.conf."""
        return {
            "uuid": self.uuid,
            "name": self.name,
            "pci": self.pci,
            "minor": str(key if self.minor is None else self.minor),
            "brand": self.brand,
            "architecture": self.architecture,
            "compute_capability": self.compute_capability,
            "memory_mib": str(self.memory_mib),
            "reserved_mib": str(self.reserved_mib),
            "context_mib": str(self.context_mib),
            "multiprocessors": str(self.multiprocessors),
            "mig": self.mig,
            "numa_node": str(self.numa_node),
            "lost": "yes" if self.lost else "no",
        }


DEFAULT_GPUS: Final = (
    T4(uuid="GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76", pci="00000000:3B:00.0"),
    T4(uuid="GPU-1c9a2e6b-5d1f-4c84-9b3e-2f6a70d41e95", pci="00000000:AF:00.0"),
)


@dataclass(frozen=True)
class Account:
    """What one live process holds, by card.

    `pid` is as the process sees itself in the PID namespace with inode `pid_namespace`; `start`
    is in clock ticks after boot; `used` is in bytes, contexts included.
    """

    pid: int
    pid_namespace: int
    start: int
    name: str
    used: tuple[int, ...]
    launches: tuple[int, ...]
    contexts: tuple[int, ...]


def build(build_dir: Path | None = None) -> Path:
    """Builds the driver root and the test programs with make, unless they are up to date.

    Returns the folder with `root/` and `bin/`. Raises RuntimeError with make's output when it
    fails. Parallel callers wait for each other.
    """
    target = DEFAULT_BUILD if build_dir is None else build_dir.resolve()
    target.mkdir(parents=True, exist_ok=True)
    with _locked(target / ".lock"):
        result = subprocess.run(
            ["make", "--no-print-directory", "-C", str(HERE), f"BUILD={target}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise RuntimeError(f"the simulated driver does not build:\n{result.stdout}")
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class FakeDriver:
    """One simulated machine: the folder that its driver's configuration and accounts lie in.

    `gpu` in the methods is a card's number N, from its section `[gpu N]`. Every change takes
    effect at the next call into the libraries, in all processes.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.config = state_dir / "gpus.conf"
        self.state = state_dir / "state"

    def write_config(
        self,
        gpus: Sequence[T4] = DEFAULT_GPUS,
        *,
        version: str = "580.159.04",
        cuda: str = "13.0",
        device_nodes: str = "ignored",
        device_dir: Path = Path("/dev"),
    ) -> None:
        """Writes a whole configuration in place of the present one."""
        parser = _parser()
        parser["driver"] = {
            "version": version,
            "cuda": cuda,
            "device_nodes": device_nodes,
            "device_dir": str(device_dir),
        }
        for key, gpu in enumerate(gpus):
            parser[f"gpu {key}"] = gpu.options(key)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        # Processes of any user make the accounts file.
        self.state_dir.chmod(0o777)
        self._write(parser)

    def inject(self, gpu: int | None, function: str, code: int) -> None:
        """Makes a function return `code`: for one card, or for the driver where `gpu` is None.

        A name without version suffix stands for all versions of the function.
        """
        with self._change() as parser:
            _add(parser, _section(gpu), "fault", function, code)

    def hang(self, gpu: int | None, function: str, milliseconds: int) -> None:
        """Makes a function sleep before it does anything else."""
        with self._change() as parser:
            _add(parser, _section(gpu), "hang_ms", function, milliseconds)

    def clear(self) -> None:
        """Takes all faults, hangs, XIDs, losses and bad readings away."""
        with self._change() as parser:
            for section in parser.sections():
                # The XID's number in sequence stays, so that the next one is new.
                for option in _TROUBLES:
                    parser.remove_option(section, option)

    def set_xid(self, gpu: int, xid: int) -> None:
        """Raises an XID event on a card, also when the last one was the same."""
        with self._change() as parser:
            section = parser[_section(gpu)]
            section["xid"] = str(xid)
            section["xid_seq"] = str(int(section.get("xid_seq", "0")) + 1)

    def set_option(self, gpu: int | None, option: str, value: str) -> None:
        """Sets one option of a card, or of the driver, as gpus.conf spells it."""
        with self._change() as parser:
            parser[_section(gpu)][option] = value

    def count(self, function: str) -> None:
        """Counts the calls of a function, in whatever process, from now on."""
        self.set_option(None, "count", function)
        self.state_dir.joinpath("counted").write_bytes(b"")
        self.state_dir.joinpath("counted").chmod(0o666)

    @property
    def counted(self) -> int:
        """How often the function of `count` has been called."""
        return self.state_dir.joinpath("counted").stat().st_size

    def lose(self, gpu: int) -> None:
        """The card falls off the bus: NVML answers GPU_IS_LOST for it."""
        self.set_option(gpu, "lost", "yes")

    def remove(self, gpu: int) -> None:
        """The card is not there any more; the others keep their numbers."""
        with self._change() as parser:
            parser.remove_section(_section(gpu))

    def unload(self) -> None:
        """The driver is not loaded: no configuration."""
        self.config.unlink(missing_ok=True)
        time.sleep(RECHECK_S)

    def accounts(self) -> tuple[Account, ...]:
        """The live processes, by namespace and PID."""
        try:
            file = self.state.open("rb")
        except FileNotFoundError:
            return ()
        with file:
            header = HEADER.unpack(file.read(HEADER.size))
            if header[:2] != (MAGIC, VERSION):
                raise ValueError(f"{self.state} is not an accounts file of version {VERSION}")
            found = []
            for index in range(header[6]):
                slot = SLOT.unpack(
                    os.pread(file.fileno(), SLOT.size, HEADER_SIZE + index * SLOT.size)
                )
                if slot[0] and (
                    is_locked(file.fileno(), FIRST_SLOT_BYTE + index)
                    or self._lingers(int(slot[-1]))
                ):
                    found.append(_account(slot))
        return tuple(sorted(found, key=lambda a: (a.pid_namespace, a.pid)))

    def _lingers(self, died: int) -> bool:
        """Whether a dead process's memory stays; `died` in milliseconds, 0: not noticed yet."""
        parser = _parser()
        parser.read(self.config)
        stays = parser.getint("driver", "dead_ms", fallback=0)
        return stays > 0 and (died == 0 or time.monotonic() * 1000 - died < stays)

    def used(self, gpu: int) -> int:
        """Bytes in use on a card, over all live processes, and dead ones not freed yet."""
        return sum(account.used[gpu] for account in self.accounts())

    def environment(self, build_dir: Path) -> dict[str, str]:
        """Variables with which a process on this machine finds this driver."""
        return {
            "FAKEGPU_DIR": str(self.state_dir),
            "LD_LIBRARY_PATH": str(build_dir / "rootfs" / LIBDIR),
        }

    @contextmanager
    def _change(self) -> Iterator[configparser.ConfigParser]:
        with _locked(self.state_dir / ".lock"):
            parser = _parser()
            with self.config.open() as file:
                parser.read_file(file)
            yield parser
            self._write(parser)

    def _write(self, parser: configparser.ConfigParser) -> None:
        # A new file by rename: readers see the old one or the new one.
        fresh = self.state_dir / f".gpus.conf.{os.getpid()}"
        with fresh.open("w") as file:
            parser.write(file)
        fresh.chmod(0o644)
        fresh.rename(self.config)
        time.sleep(RECHECK_S)


def _parser() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    # Option names keep their case, as function names in them must.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    return parser


def _section(gpu: int | None) -> str:
    return "driver" if gpu is None else f"gpu {gpu}"


def _add(
    parser: configparser.ConfigParser, section: str, option: str, function: str, value: int
) -> None:
    """Adds or replaces one `function:value` in an option's list."""
    items = dict(item.split(":", 1) for item in parser[section].get(option, "").split(", ") if item)
    items[function] = str(value)
    parser[section][option] = ", ".join(f"{name}:{items[name]}" for name in sorted(items))


def is_locked(descriptor: int, byte: int) -> bool:
    """Whether a process holds the lock on a byte, which it does for as long as it lives."""
    request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, "cannot ask for a slot's lock") from error
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _account(slot: tuple[object, ...]) -> Account:
    numbers = [int(str(value)) for value in slot[5:-1]]
    name = slot[4]
    assert isinstance(name, bytes)
    return Account(
        pid=int(str(slot[1])),
        pid_namespace=int(str(slot[2])),
        start=int(str(slot[3])),
        name=name.split(b"\0", 1)[0].decode(errors="replace"),
        used=tuple(numbers[:MAX_GPUS]),
        launches=tuple(numbers[MAX_GPUS : 2 * MAX_GPUS]),
        contexts=tuple(numbers[2 * MAX_GPUS :]),
    )
