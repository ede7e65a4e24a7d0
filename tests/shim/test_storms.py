"""Many processes at once: killed at random, racing for the last bytes, starting together.

`APPORTION_KILLS=20000 pytest tests/shim/test_storms.py` is the long form of the first test.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pytest

from tests.fakes import FakeDriver
from tests.shim.support import BLOCK, GIB, MIB, OK, OOM, WAIT_S, Container, Share, several

LIMIT = 64 * MIB
F_OFD_SETLKW = 38
# A kill takes some 10 ms on two idle cores.
KILLS = int(os.environ.get("APPORTION_KILLS", "1000"))


def truth(container: Container) -> int:
    """Return what the simulated driver says the living hold of the first card."""
    return FakeDriver(container.state).used(0)


@pytest.mark.timeout(120 + KILLS // 5)
def test_after_random_kills_ledger_and_driver_agree_and_all_went_on(container: Container) -> None:
    """Every survivor of every kill is waited for: one that is stuck is this test's time limit."""
    share = container.share(LIMIT)
    command = container.command("/run/bin/storm", str(KILLS), "8", str(3 * MIB), "7")
    with (
        subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as storm,
        container.client() as fresh,
    ):
        assert storm.stdout
        kills, errors, longest_us = map(int, storm.stdout.readline().split())
        assert (kills, errors) == (KILLS, 0)
        print(f"{kills} kills; a survivor's longest call took {longest_us / 1000:.1f} ms")
        assert share.peak <= LIMIT
        # A refusal looks for the dead first. The living stand still between two calls.
        assert fresh.start().alloc(LIMIT) == OOM
        assert share.total == truth(container) > 0
        storm.communicate(timeout=WAIT_S)
        assert fresh.alloc(LIMIT) == OK
        assert share.total == truth(container) == LIMIT


@contextmanager
def no_charges(container: Container) -> Iterator[None]:
    """Keep the simulated driver from giving memory, so that a sum over processes was true once."""
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 1 << 40, 1, 0)
    with FakeDriver(container.state).state.open("r+b") as state:
        fcntl.fcntl(state.fileno(), F_OFD_SETLKW, whole)
        yield


class Watch:
    """Looks again and again at what the driver and the ledger say, and keeps the most."""

    def __init__(self, container: Container, share: Share) -> None:
        self.most = self.looks = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(container, share))

    def _look(self, container: Container, share: Share) -> None:
        while not self._done.is_set():
            with no_charges(container):
                given = truth(container)
            self.most = max(self.most, given, share.total)
            self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("piece", [BLOCK, 3 * MIB + 512, 129 * MIB, MIB + 1])
def test_sixteen_race_for_the_last_gigabyte(container: Container, piece: int) -> None:
    """Never over by a byte: not in the ledger, and not by what the driver gave."""
    limit = 4 * GIB
    share = container.share(limit)
    charge = -(-piece // BLOCK) * BLOCK
    with container.client().start() as first, several(container, 16) as racers:
        assert first.alloc(3 * GIB) == OK
        with Watch(container, share) as watch:
            for racer in racers:
                racer.send("fill", piece, 100_000)
            answers = [racer.read() for racer in racers]
        assert {result for result, _ in answers} == {OOM}
        assert sum(count for _, count in answers) == GIB // charge
        assert share.total == truth(container) == 3 * GIB + GIB // charge * charge
        assert watch.looks > 0
        assert max(watch.most, share.peak) <= limit


def test_sixteen_race_and_free_for_the_last_gigabyte(container: Container) -> None:
    limit = 4 * GIB
    share = container.share(limit)
    with container.client().start() as first, several(container, 16) as racers:
        assert first.alloc(3 * GIB) == OK
        with Watch(container, share) as watch:
            for seed, racer in enumerate(racers):
                racer.send("churn", 2000, 100 * MIB, seed, 1)
            answers = [racer.read() for racer in racers]
        assert [errors for errors, _, _ in answers] == [0] * 16
        assert sum(refused for _, _, refused in answers) > 0
        assert share.total == truth(container) == 3 * GIB
        # A piece below 1 MiB may turn out not to fit: a block for each process, for that call.
        assert share.peak <= limit
        assert watch.most <= limit + 16 * BLOCK


def test_sixty_four_start_together(container: Container) -> None:
    share = container.share(64 * BLOCK)
    with several(container, 64) as clients:
        for client in clients:
            client.send("alloc", BLOCK)
        assert [client.read()[0] for client in clients] == [OK] * 64
        assert share.total == truth(container) == 64 * BLOCK
        assert share.slots()[:64] == [BLOCK] * 64
        assert clients[0].alloc(1) == OOM


def test_those_that_start_while_others_are_killed_are_held(container: Container) -> None:
    """SIGKILL at a random moment of loading, cuInit, the first context and the first allocation."""
    share = container.share(LIMIT)
    moments = random.Random(5)  # noqa: S311 - which moments is no secret
    for _ in range(60):
        victim = container.client()
        victim.send("start", 0)
        victim.send("alloc", BLOCK)
        # From the shell that makes the container to the allocation: some 60 ms here.
        time.sleep(moments.uniform(0, 0.06))
        victim.kill()
    with several(container, 2) as (one, two):
        assert one.alloc(LIMIT) == OK
        assert two.alloc(BLOCK) == OOM
        assert share.total == truth(container) == LIMIT
