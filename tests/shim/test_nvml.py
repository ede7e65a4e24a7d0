"""Process lists and utilisation: the share's, and nothing that a neighbour does."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pynvml
import pytest

from tests.shim.inside import LISTS
from tests.shim.support import LIBDIR, MIB, Client, Container

LIMIT: Final = 256 * MIB
NONE: Final = 0xFFFFFFFF
OK, INVALID, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT, LOST, MISMATCH = 0, 2, 3, 6, 7, 15, 25
NOBODY: Final = {name: [0, 0, []] for name in LISTS}
COMPUTE: Final = [name for name in LISTS if "GetCompute" in name]
OTHERS: Final = {"graphics": "GetGraphics", "mps": "GetMPS"}


class Application(Client):
    """tests/shim/inside.py in a container."""

    def tell(self, *command: Any) -> Any:
        """Give a command and return its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        answer = self.process.stdout.readline()
        assert answer, self.errors()
        return json.loads(answer)


@contextlib.contextmanager
def application(container: Container, *, alone: bool = True) -> Iterator[Application]:
    """Run an application with a context, in a PID namespace of its own or in the host's."""
    script = Path(__file__).parent / "inside.py"
    command = container.command(sys.executable, str(script))
    if alone:
        command[1:1] = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    environment = {**os.environ, "PYTHONPATH": str(Path(pynvml.__file__).parent)}
    with Application(command, environment) as app:
        assert (app.tell("start") > 0) is bool(container.shares), "without a share, no context"
        yield app


@pytest.fixture
def container(container: Container) -> Container:
    """A container with a share."""
    container.share(LIMIT)
    return container


def configure(container: Container, option: str, value: str) -> None:
    """Set an option of both cards."""
    path = container.state / "gpus.conf"
    path.write_text(path.read_text().replace("uuid =", f"{option} = {value}\nuuid ="))
    time.sleep(0.01)  # the driver looks for changes once in a millisecond


def neighbour(container: Container) -> Container:
    """Return a container with another share of the same card."""
    other = replace(container, shares=[], folder=container.folder / "other")
    other.share(LIMIT, key="neighbour")
    return other


def pids(app: Application, name: str) -> dict[int, int]:
    """Return bytes by PID as a list says it."""
    result, count, entries = app.tell("lists", 16)[name]
    assert (result, count) == (OK, len(entries))
    return {entry[0]: entry[1] for entry in entries}


def own_used(app: Application) -> int:
    total, free, used = app.tell("memory")
    assert free + used == total == LIMIT
    return int(used)


@pytest.mark.parametrize("alone", [True, False])
def test_compute_lists_are_the_shares_processes(container: Container, *, alone: bool) -> None:
    """Also where a neighbour's PIDs are in sight of the driver."""
    with (
        application(container, alone=alone) as app,
        application(neighbour(container), alone=alone) as other,
    ):
        assert other.tell("alloc", 20 * MIB) == OK
        assert app.tell("alloc", 10 * MIB) == OK
        mine = app.tell("start")
        beside = app.tell("beside", "start")
        assert app.tell("beside", "alloc", 4 * MIB) == OK
        for name in COMPUTE:
            assert pids(app, name) == {mine: 10 * MIB, beside: 4 * MIB}
        assert app.tell("beside", "lists", 16) == app.tell("lists", 16)
        assert own_used(app) == 14 * MIB
        assert app.tell("lists", 16, 1) == NOBODY
        app.tell("end_beside")
        assert pids(app, COMPUTE[0]) == {mine: 10 * MIB}


def test_entries_are_whole(container: Container) -> None:
    with application(container) as app:
        assert app.tell("alloc", 10 * MIB) == OK
        found = app.tell("lists", 16)
        mine = app.tell("start")
        assert found[COMPUTE[0]] == [OK, 1, [[mine, 10 * MIB]]]
        assert found[COMPUTE[1]] == found[COMPUTE[2]] == [OK, 1, [[mine, 10 * MIB, NONE, NONE]]]
        assert app.tell("details", 0, 4) == [OK, 1, [[mine, 10 * MIB, NONE, NONE, 0]]]


def test_too_little_room_is_said_as_the_driver_says_it(container: Container) -> None:
    with application(container) as app:
        assert app.tell("lists", 0) == NOBODY
        assert app.tell("raw", COMPUTE[2], 64) == [OK, 0]
        assert app.tell("alloc", 10 * MIB) == OK
        app.tell("beside", "start")
        assert app.tell("beside", "alloc", 4 * MIB) == OK
        for name in COMPUTE:
            assert app.tell("lists", 0)[name] == [INSUFFICIENT, 2, []]
            assert app.tell("lists", 1)[name] == [INSUFFICIENT, 2, []]
            assert app.tell("raw", name, 64) == [INVALID, 2]
            assert app.tell("nothing", name) == INVALID
        assert app.tell("details", 0, 1) == [INSUFFICIENT, 2, []]
        assert app.tell("details", 3, 4)[0] == INVALID
        assert app.tell("details", 0, 4, 0x2000018)[0] == MISMATCH


def test_hc112_two_containers_of_one_share_name_their_own(container: Container) -> None:
    """Both applications are PID 1 where they live: neither may be taken for the other."""
    with application(container) as one, application(container) as two:
        assert one.tell("alloc", 10 * MIB) == OK
        assert two.tell("alloc", 6 * MIB) == OK
        assert one.tell("start") == two.tell("start") == 1
        for name in COMPUTE:
            assert pids(one, name) == {1: 10 * MIB}
            assert pids(two, name) == {1: 6 * MIB}
        assert own_used(one) == own_used(two) == 16 * MIB


def test_two_shares_of_one_card_are_one_process(container: Container) -> None:
    container.share(LIMIT)
    with application(container) as app:
        assert app.tell("alloc", LIMIT + 10 * MIB) == OK
        assert pids(app, COMPUTE[0]) == {1: LIMIT + 10 * MIB}


@pytest.mark.parametrize("work", ["graphics", "mps"])
def test_other_lists_are_the_drivers_but_for_strangers(container: Container, work: str) -> None:
    configure(container, "work", work)
    with (
        application(container, alone=False) as app,
        application(neighbour(container), alone=False) as other,
    ):
        assert app.tell("alloc", 10 * MIB) == OK
        assert other.tell("alloc", 20 * MIB) == OK
        mine = app.tell("start")
        for name in LISTS:
            listed = "GetCompute" in name or OTHERS[work] in name
            assert pids(app, name) == ({mine: 10 * MIB} if listed else {})
        assert app.tell("details", 1 if work == "graphics" else 2, 4)[1] == 1
        assert app.tell("details", 2 if work == "graphics" else 1, 4)[1] == 0


def test_without_a_share_there_is_nobody(container: Container) -> None:
    bare = replace(container, shares=[])
    with application(container, alone=False) as app, application(bare, alone=False) as other:
        assert app.tell("alloc", 10 * MIB) == OK
        app.tell("launch", 9)
        assert other.tell("lists", 4) == NOBODY
        assert other.tell("memory") == [0, 0, 0]
        assert other.tell("call", "nvmlDeviceGetUtilizationRates") == [0, 0]


def test_the_drivers_errors_stay(container: Container) -> None:
    with application(container) as app:
        configure(container, "lost", "yes")
        assert {result for result, _, _ in app.tell("lists", 4).values()} == {LOST}
        assert app.tell("call", "nvmlDeviceGetUtilizationRates") == {"error": LOST}
        assert app.tell("call", "nvmlDeviceGetBAR1MemoryInfo") == {"error": LOST}


@pytest.mark.parametrize("alone", [True, False])
def test_hc112_utilisation_is_of_the_shares_processes_though_the_driver_names_all(
    container: Container, *, alone: bool
) -> None:
    """The driver samples all processes of the card, whatever namespace they are in."""
    configure(container, "utilization", "97")
    with (
        application(container, alone=alone) as app,
        application(neighbour(container), alone=alone) as other,
    ):
        mine = app.tell("start")
        for one in (app, other):
            assert one.tell("alloc", 2 * MIB) == OK
        for busy in (0, 50):
            other.tell("launch", busy)
            assert app.tell("call", "nvmlDeviceGetUtilizationRates") == [0, 0]
            assert app.tell("call", "nvmlDeviceGetEncoderUtilization")[0] == 0
            assert app.tell("call", "nvmlDeviceGetProcessUtilization", 0) == {"error": NOT_FOUND}
            assert app.tell("call", "nvmlDeviceGetProcessesUtilizationInfo", 0) == {
                "error": NOT_FOUND
            }
        app.tell("launch", 20)
        assert app.tell("call", "nvmlDeviceGetUtilizationRates") == [20, 10]
        assert app.tell("call", "nvmlDeviceGetEncoderUtilization")[0] == 3
        assert app.tell("call", "nvmlDeviceGetDecoderUtilization")[0] == 4
        (sample,) = app.tell("call", "nvmlDeviceGetProcessUtilization", 0)
        assert [sample[0], *sample[2:]] == [mine, 20, 10, 3, 4]
        (sample,) = app.tell("call", "nvmlDeviceGetProcessesUtilizationInfo", 0)
        assert sample[1:4] == [mine, 20, 10]


def test_utilisation_of_several_processes_adds_up_to_no_more_than_the_card(
    container: Container,
) -> None:
    with application(container) as app:
        for command in (["start"], ["alloc", 2 * MIB], ["launch", 70]):
            app.tell(*command)
            app.tell("beside", *command)
        assert app.tell("call", "nvmlDeviceGetUtilizationRates") == [100, 70]


def test_samples_need_the_room_that_the_driver_wants(container: Container) -> None:
    with application(container) as app:
        name = "nvmlDeviceGetProcessUtilization"
        assert app.tell("raw", name, 0) == app.tell("raw", name, 100) == [INSUFFICIENT, 72]


def test_a_driver_without_samples_leaves_utilisation_unsaid(container: Container) -> None:
    configure(container, "fault", f"nvmlDeviceGetProcessUtilization:{NOT_SUPPORTED}")
    with application(container) as app:
        assert app.tell("call", "nvmlDeviceGetUtilizationRates") == {"error": NOT_SUPPORTED}


def test_what_is_said_of_the_whole_card_only_is_not_said(container: Container) -> None:
    with application(container) as app:
        for name in ("BAR1MemoryInfo", "JpgUtilization", "OfaUtilization"):
            assert app.tell("call", f"nvmlDeviceGet{name}") == {"error": NOT_SUPPORTED}
        for kind in range(10):
            said = app.tell("call", "nvmlDeviceGetSamples", kind, 0)
            ours = kind in {0, 5, 6, 7}  # power and clocks
            assert said == ([1, []] if ours else {"error": NOT_SUPPORTED})


def test_accounting_is_of_the_shares_processes(container: Container) -> None:
    with (
        application(container, alone=False) as app,
        application(neighbour(container), alone=False) as other,
    ):
        mine, theirs = app.tell("start"), other.tell("start")
        for one in (app, other):
            assert one.tell("alloc", 2 * MIB) == OK
        assert app.tell("raw", "nvmlDeviceGetAccountingPids", 0) == [INSUFFICIENT, 1]
        assert app.tell("accounted") == [mine]
        assert app.tell("call", "nvmlDeviceGetAccountingStats", mine)[5] == 1
        assert app.tell("call", "nvmlDeviceGetAccountingStats", theirs) == {"error": NOT_FOUND}


def test_nvidia_smi_shows_the_share_with_its_processes(container: Container) -> None:
    """In one container with two processes, beside a busy neighbour."""
    configure(container, "utilization", "97")
    with application(container) as app, application(neighbour(container)) as other:
        for one, size in ((app, 10 * MIB), (other, 200 * MIB)):
            assert one.tell("alloc", size) == OK
            one.tell("launch", 30)
        mine = app.tell("start")
        beside = app.tell("beside", "start")
        assert app.tell("beside", "alloc", 20 * MIB) == OK
        table = app.tell("run", str(LIBDIR.parents[1] / "bin/nvidia-smi"))
        assert re.search(r"30MiB / +256MiB \\| +30%", table)
        rows = re.findall(r"N/A +(\d+) +C .* (\d+)MiB \|", table)
        assert rows == [(str(mine), "10"), (str(beside), "20")]
