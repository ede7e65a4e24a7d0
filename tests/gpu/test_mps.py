"""Cores by MPS before a real NVIDIA driver: parts, memory, and a daemon that is killed.

`python3 -m pytest tests/gpu/test_mps.py -m gpu -s` as root on a machine with a GPU and gcc; the
daemon is started and looked after by the plugin's own parts. Figures go to standard output.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from apportion.model import GpuUuid
from apportion.mps import places
from apportion.mps.control import Control, Driver
from apportion.mps.daemon import Daemon, Kind

from tests.gpu import support
from tests.gpu.support import Share
from tests.shim.support import GIB, MIB, memory_folder

OK, OOM, MPS_CONNECTION_FAILED = 0, 2, 805
SECONDS = 4


@dataclass
class Card:
    """The first card with a daemon of its own."""

    uuid: str
    program: Path
    folder: Path
    place: places.Place
    control: Control
    daemon: Daemon
    told: list[Kind] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path) -> Card:
        uuid = GpuUuid(support.smi("--query-gpu=uuid", "--format=csv,noheader").split()[0])
        place = places.place(folder, "apportion.gpu", uuid)
        libdir = str(support.real("libcuda.so.1").parent)
        control = Control(place, Driver(Path("/"), Path("/"), libdir, leave=False))
        told: list[Kind] = []
        daemon = Daemon(place, control, lambda kind, _text: told.append(kind))
        return cls(uuid, support.compiled("mps", folder), folder, place, control, daemon, told)

    def wait(self, seconds: float = 30.0) -> float:
        """Look after the daemon as the plugin does until it is ready; return for how long."""
        began = time.monotonic()
        self.daemon.look()
        while not self.daemon.view.ready:
            assert time.monotonic() - began < seconds, self.daemon.view.text
            time.sleep(0.1)
            self.daemon.look()
        return time.monotonic() - began


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    folder = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    folder.chmod(0o755)
    made = Card.make(folder)
    made.wait()
    yield made
    made.daemon.quit()
    shutil.rmtree(folder)


class Part:
    """A share of the card in a container of its own, with tests/gpu/programs/mps.c in it."""

    def __init__(
        self, card: Card, shim: Path, cores: int, memory: int = 8 * GIB, *, user: int = 0
    ) -> None:
        self._stack = ExitStack()
        folder = self._stack.enter_context(memory_folder())
        self.share = Share.make(shim, folder, memory)
        limits = self.share.folder / "limits"
        text = limits.read_text().replace("cores 30\n", f"cores {cores}\n")
        limits.write_text(text + "cores-mode mps\n")
        self._child = subprocess.Popen(
            self._command(card, user), env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def _command(self, card: Card, user: int) -> list[str]:
        inside = f"/run/apportion/mps/{card.uuid}"
        pipe = shlex.quote(str(card.place.clients))
        mounts = (
            f"mkdir -p {inside} && mount --bind {pipe} {inside} && "
            f"mount -o remount,ro,bind {inside} && mount -t tmpfs none /dev/shm\n"
        )
        program = [str(card.program)]
        if user:
            program = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *program]
        words = self.share.command(*program)
        # The namespaces of a container, and its own /dev/shm.
        flags = ["--mount", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words[words.index("--mount") : words.index("--mount") + 1] = flags
        return [word.replace('exec "$@"', mounts + 'exec "$@"') for word in words]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()
        self._stack.close()

    def send(self, words: str) -> None:
        assert self._child.stdin
        self._child.stdin.write(words + "\n")

    def read(self) -> list[int]:
        assert self._child.stdout
        line = self._child.stdout.readline()
        assert line, "the program ended"
        return [int(word) for word in line.split()]

    def ask(self, words: str) -> list[int]:
        self.send(words)
        return self.read()

    def start(self) -> Self:
        assert self.ask("start") == [OK, OK]
        return self


def rate(answer: list[int]) -> float:
    """Return kernels per second of the answer to `run`."""
    count, nanoseconds, result = answer
    assert result == OK
    return count / nanoseconds * 1e9


def together(*parts: Part) -> list[float]:
    """Return the rates of several that run at once."""
    for part in parts:
        part.send(f"run {SECONDS}")
    return [rate(part.read()) for part in parts]


@pytest.fixture(scope="module")
def alone(card: Card, shim: Path) -> float:
    """Kernels per second of a share of all cores, which does without the daemon."""
    with Part(card, shim, 100).start() as part:
        found = rate(part.ask(f"run {SECONDS}"))
    print(f"alone: {found:.1f} kernels/s")
    return found


def test_a_pair_gets_its_parts(card: Card, shim: Path, alone: float) -> None:
    with Part(card, shim, 30).start() as small, Part(card, shim, 70).start() as large:
        got = [100 * found / alone for found in together(small, large)]
    print(f"30/70: {got[0]:.1f} + {got[1]:.1f} = {sum(got):.1f} %")
    assert abs(got[0] - 30) <= 2
    assert abs(got[1] - 70) <= 2
    assert sum(got) >= 97


@pytest.mark.parametrize("cores", [10, 30, 50, 80])
def test_one_alone_gets_no_more(card: Card, shim: Path, alone: float, cores: int) -> None:
    with Part(card, shim, cores).start() as part:
        processors = part.ask("processors")[0]
        got = 100 * rate(part.ask("run 2")) / alone
        halves = part.ask("latency 300")
    print(f"{cores} %: {got:.1f} %, {processors} SMs, latency us {[n / 1000 for n in halves]}")
    assert abs(got - cores) <= 3


def test_a_short_kernel_does_not_wait_for_its_neighbour(
    card: Card, shim: Path, alone: float
) -> None:
    """The figure beside those of the periods: a kernel of 1 ms on the whole GPU, at 30 cores."""
    loops = round(4000 * alone / 1000)
    with Part(card, shim, 30).start() as small, Part(card, shim, 70).start() as large:
        small.ask(f"loops {loops}")
        quiet = small.ask("latency 300")
        large.send(f"run {SECONDS}")
        time.sleep(0.5)
        busy = small.ask("latency 300")
        assert rate(large.read()) > 0
    for what, found in (("alone", quiet), ("beside a busy 70 %", busy)):
        print(f"1 ms at 30 %, {what}: p50, p99 = {[n / 1e6 for n in found]} ms")
    assert busy[1] < 2 * quiet[0]


def test_memory_over_the_share_is_refused(card: Card, shim: Path) -> None:
    with Part(card, shim, 30, memory=2 * GIB).start() as part:
        assert part.ask("alloc 1024") == [OK]
        assert part.ask("alloc 1024") == [OOM]
        charged = part.share.total // MIB
        print(f"1024 MiB allocated: {charged} MiB charged, NVML {support.truth() // MIB} MiB")
        assert charged > 1024, "the context counts"


def test_the_driver_refuses_as_well_what_goes_past_the_front(card: Card) -> None:
    """The second line: a client without the front, but with what the front puts in place."""
    environment = {
        "PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(card.place.clients),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
    }  # fmt: skip
    said = subprocess.run(
        [card.program], input="start\nalloc 1024\nalloc 2048\n", env=environment,
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    assert said == ["0", "0", "0", "2"]


def test_any_user_is_a_client_beside_root(card: Card, shim: Path) -> None:
    with Part(card, shim, 30).start() as one, Part(card, shim, 30, user=1000).start() as other:
        assert min(together(one, other)) > 0


def test_a_killed_daemon_serves_new_programs_within_five_seconds(card: Card, shim: Path) -> None:
    card.told.clear()
    with Part(card, shim, 30).start() as running:
        running.send("run 6")
        os.kill(card.daemon.view.processes[0].pid, signal.SIGKILL)
        began = time.monotonic()
        time.sleep(0.5)  # as long as the plugin takes to look, at most
        card.wait()
        with Part(card, shim, 30).start() as new:
            passed = time.monotonic() - began
            assert rate(new.ask("run 1")) > 0
        count, _, result = running.read()
    print(f"new program after {passed:.2f} s; running: {count} kernels, then result {result}")
    assert passed < 5
    assert card.told[0] is Kind.DAEMON_ENDED


def test_without_a_daemon_there_is_no_context(card: Card, shim: Path) -> None:
    card.daemon.quit()
    try:
        with Part(card, shim, 30) as part:
            print("without a daemon:", part.ask("start"))
            assert part.ask("start")[1] != OK
    finally:
        card.wait()


def test_a_fatal_fault_is_seen_and_passes(card: Card, shim: Path) -> None:
    """What it does to others is the driver's affair: this shows it, and that new ones work."""
    card.told.clear()
    with Part(card, shim, 30).start() as other, Part(card, shim, 30).start() as guilty:
        other.send("run 3")
        time.sleep(1)
        print("the fault itself:", guilty.ask("fault"))
        print("its neighbour: kernels, ns, result", other.read())
        card.daemon.look()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        card.daemon.look()
        with Part(card, shim, 30) as new:
            if new.ask("start") == [OK, OK]:
                assert rate(new.ask("run 1")) > 0
                break
        time.sleep(0.2)
    else:
        pytest.fail("no new program works")
    print("told:", card.told)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-s", "-m", "gpu"]))
