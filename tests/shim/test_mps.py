"""Shares whose cores MPS divides: the front makes a process a client, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from tests.fakes import FakeDriver
from tests.fakes.card import Card, card
from tests.shim.load import Load
from tests.shim.mps import Daemon
from tests.shim.schedules import MS
from tests.shim.support import GIB, MIB, OK, OOM, WAIT_S, Container, memory_folder, uuid

SCRIPT = Path(__file__).parent / "inside_mps.py"
ILLEGAL_ADDRESS = 700
CONNECTION_FAILED, RPC_FAILURE, NOT_READY = 805, 806, 807
ALL, PART = 40, 12  # multiprocessors of a T4, and 30 % of them


@pytest.fixture
def daemon(container: Container) -> Iterator[Daemon]:
    made = Daemon(container.state).start()
    container.extra = made.mounted()
    yield made
    made.end()


class App:
    """inside_mps.py in a container."""

    def __init__(self, container: Container, user: int = 0, **environment: str) -> None:
        self._child = subprocess.Popen(
            container.command(sys.executable, str(SCRIPT), user=user), env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def ask(self, word: str) -> Any:
        """Give a word and return the answer."""
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(word + "\n")
        return json.loads(self._child.stdout.readline())

    def fails(self) -> int:
        """Launch until it fails, and return how: who dies, or fails, is not seen at once."""
        deadline = time.monotonic() + WAIT_S
        while (result := self.ask("launch")) == OK and time.monotonic() < deadline:
            continue
        return int(result)

    def start(self) -> Self:
        """Initialise the driver and make a context."""
        assert [self.ask("init"), self.ask("context")] == [OK, OK]
        return self


def limits(
    container: Container, cores: int = 30, *, mode: str = "mps", gpu: str = uuid(), n: int = 0
) -> None:
    """Give the container a share of 1 GiB."""
    key = f"0b1ba5f2-4f0a-4d2c-9f6e-6a2f4f1c8d10-{n}"
    container.share(
        key=key,
        text=f"apportion-limits 1\nshare {key}\nuuid {gpu}\nmemory {GIB}\ncores {cores}\n"
        f"cores-policy cap\ncores-mode {mode}\n",
    )


@pytest.mark.usefixtures("daemon")
def test_a_process_becomes_a_client_with_its_part_of_the_cores(container: Container) -> None:
    limits(container)
    with App(container).start() as app:
        assert app.ask("enabled") == 1
        assert app.ask("processors") == PART


@pytest.mark.usefixtures("daemon")
def test_what_the_tenant_set_has_no_say(container: Container) -> None:
    limits(container)
    chosen = {
        "CUDA_MPS_PIPE_DIRECTORY": "/nowhere", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_CLIENT_PRIORITY": "0", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G",
        "MINE": "kept",
    }  # fmt: skip
    with App(container, 0, **chosen).start() as app:
        assert app.ask("processors") == PART
        assert app.ask("environment") == {
            "CUDA_MPS_PIPE_DIRECTORY": f"/run/apportion/mps/{uuid()}",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M",
            "CUDA_MPS_CLIENT_PRIORITY": None,
            "MINE": "kept",
        }
        assert app.ask("init") == OK
        assert app.ask("put") == OK
        assert "MINE=later" in app.ask("child")
        assert app.ask("environment")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"


def test_without_a_daemon_there_is_no_context(container: Container) -> None:
    limits(container)
    with App(container) as app:
        assert app.ask("init") == OK
        assert app.ask("context") == CONNECTION_FAILED
        assert app.ask("create") == CONNECTION_FAILED


def test_a_daemon_of_the_tenants_own_is_not_taken(container: Container) -> None:
    own = Daemon(container.state).start()
    limits(container)
    with App(container, CUDA_MPS_PIPE_DIRECTORY=str(own.folder)) as app:
        assert [app.ask("init"), app.ask("context")] == [OK, CONNECTION_FAILED]
    own.end()


@pytest.mark.usefixtures("daemon")
def test_shares_of_one_card_add_up_and_all_cores_need_no_daemon(container: Container) -> None:
    limits(container, 30, n=0)
    limits(container, 20, n=1)
    with App(container).start() as app:
        assert app.ask("processors") == ALL // 2
    container.shares.clear()
    limits(container, 100, n=2)
    with App(container).start() as app:
        assert [app.ask("enabled"), app.ask("processors")] == [0, ALL]


@pytest.mark.usefixtures("daemon")
def test_the_card_that_is_named_decides_whose_client_a_process_is(container: Container) -> None:
    limits(container, 30, gpu=uuid(0), n=0)
    limits(container, 20, gpu=uuid(1), n=1)
    with App(container, CUDA_VISIBLE_DEVICES=uuid(1)) as app:
        assert app.ask("init") == OK
        assert app.ask("environment")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
    with App(container).start() as app:
        assert app.ask("environment")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("mode", ["none", "timeslice"])
def test_other_shares_are_left_alone(container: Container, mode: str) -> None:
    limits(container, mode=mode)
    with App(container, CUDA_MPS_CLIENT_PRIORITY="1") as app:
        assert app.ask("init") == OK
        assert app.ask("enabled") == 0
        assert app.ask("environment")["CUDA_MPS_CLIENT_PRIORITY"] == "1"


@pytest.mark.usefixtures("daemon")
def test_users_of_any_id_are_clients_of_one_server(container: Container, daemon: Daemon) -> None:
    limits(container)
    with App(container).start() as one, App(container, user=1000).start() as other:
        assert [one.ask("enabled"), other.ask("enabled")] == [1, 1]
        assert daemon.server


def test_a_servers_end_fails_its_clients_and_no_new_ones(
    container: Container, daemon: Daemon
) -> None:
    limits(container)
    with App(container).start() as app:
        os.kill(daemon.server, signal.SIGKILL)
        assert app.fails() == RPC_FAILURE
        with App(container).start() as other:
            assert other.ask("launch") == OK


def test_a_fatal_fault_fails_all_clients_until_they_have_ended(
    container: Container, daemon: Daemon
) -> None:
    """What the driver does, and no library can keep from others (docs/mps.md)."""
    limits(container)
    conf = (container.state / "gpus.conf").read_text()
    with App(container).start() as guilty, App(container).start() as other:
        (container.state / "gpus.conf").write_text(
            conf.replace("[gpu 0]", "fault = cuLaunchKernel:700\n[gpu 0]")
        )
        assert guilty.fails() == ILLEGAL_ADDRESS
        (container.state / "gpus.conf").write_text(conf)
        assert guilty.ask("alloc") == ILLEGAL_ADDRESS
        assert other.fails() == ILLEGAL_ADDRESS
        with App(container) as late:
            assert late.ask("init") == NOT_READY
    assert daemon.pid
    with App(container).start() as new:
        assert new.ask("launch") == OK


@pytest.mark.usefixtures("daemon")
def test_memory_is_held_as_without_mps(container: Container) -> None:
    limits(container)
    with App(container).start() as app:
        results = [app.ask("alloc") for _ in range(GIB // (2 * MIB) + 1)]
        assert results == [OK] * (GIB // (2 * MIB)) + [OOM]


def test_a_pair_gets_its_parts_by_the_cards_own_accounts(
    container: Container, daemon: Daemon
) -> None:
    conf = container.state / "gpus.conf"
    conf.write_text(conf.read_text().replace("context_mib", "executes = yes\ncontext_mib"))
    driver = FakeDriver(container.state)
    with memory_folder() as folder, ExitStack() as running:
        other = Container(folder, container.state, extra=daemon.mounted())
        limits(container, 30)
        limits(other, 70)
        loads = [
            running.enter_context(Load(each.command("/run/bin/load"))).start(0)
            for each in (container, other)
        ]
        for load in loads:
            load.ask("queue", 100 * MS, 40, "plain")
        begin = until(driver, loads[0], lambda seen: all(q.served > 0 for q in seen.queues))
        end = until(driver, loads[0], lambda seen: seen.at > begin.at + 100 * MS)
    passed = end.at - begin.at
    got = [100 * (end.served(load.pid) - begin.served(load.pid)) / passed for load in loads]
    assert got == pytest.approx([30, 70], abs=0.1)
    assert end.switching == begin.switching


def until(driver: FakeDriver, asker: Load, true: Callable[[Card], bool]) -> Card:
    """Let the card's time pass until something is true of it."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        asker.ask("query")
        if true(seen := card(driver, 0)):
            return seen
        time.sleep(0.001)
    raise AssertionError(seen)
