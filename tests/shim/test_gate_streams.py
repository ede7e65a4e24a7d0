"""The gate beside captures of other threads, over several cards, and with little memory."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import Final

import pytest

from tests.fakes import FakeDriver
from tests.shim.cores import executes_in_time
from tests.shim.load import Load
from tests.shim.schedules import (
    CLOSED,
    MS,
    OPEN,
    Account,
    state_bytes,
    timeslice,
    wait_until_wanted,
    write,
)
from tests.shim.support import INVALID, MIB, OK, OOM, Container, uuid

PREPARED: Final = """
import ctypes, sys, threading
from ctypes import byref, c_uint, c_uint64, c_void_p
cu = ctypes.CDLL("libcuda.so.1")
IMAGE = (b".version 6.0\\n.target sm_50\\n.address_size 64\\n"
         b".visible .entry spin(.param .u64 loops, .param .u64 out)\\n{\\n ret;\\n}\\n")
LENGTH, OUT = c_uint64(20_000), c_uint64(0)
PARAMETERS = (c_void_p * 2)(ctypes.addressof(LENGTH), ctypes.addressof(OUT))

class Card:
    def __init__(self, number, primary=True):
        self.context, self.stream, self.kernel, module = (c_void_p() for _ in range(4))
        if primary:
            assert cu.cuDevicePrimaryCtxRetain(byref(self.context), number) == 0
        else:
            assert cu.cuCtxCreate_v2(byref(self.context), 0, number) == 0
        self.enter()
        assert cu.cuStreamCreate(byref(self.stream), 1) == 0
        assert cu.cuModuleLoadData(byref(module), IMAGE) == 0
        assert cu.cuModuleGetFunction(byref(self.kernel), module, b"spin") == 0
    def enter(self):
        assert cu.cuCtxSetCurrent(self.context) == 0
    def launch(self, stream):
        return cu.cuLaunchKernel(self.kernel, 1, 1, 1, 32, 1, 1, 0, stream, PARAMETERS, None)

assert cu.cuInit(0) == 0
"""

CAPTURED: Final = """
card, captured, graph = Card(0), c_void_p(), c_void_p()
assert cu.cuStreamCreate(byref(captured), 1) == 0
def works():
    card.enter()
    results.update(card.launch(card.stream) for _ in range(1500))
results, GLOBAL = set(), 0
assert cu.cuStreamBeginCapture_v2(captured, GLOBAL) == 0
assert card.launch(captured) == 0
thread = threading.Thread(target=works)
thread.start()
thread.join()
assert results == {0}
assert cu.cuStreamEndCapture(captured, byref(graph)) == 0
assert graph.value
print(cu.cuStreamSynchronize(card.stream))
"""


def test_a_capture_of_another_thread_is_not_spoilt(container: Container) -> None:
    """By the events behind the launches, though its mode forbids other threads to ask for any."""
    share = timeslice(container, state_bytes([(0, 30 * MS)]))
    executes_in_time(container)
    assert container.run("/usr/bin/python3", "-c", PREPARED + CAPTURED) == "0\n"
    assert Account.of(share).used > 0


ENDED: Final = """
card, other = Card(0), Card(0, primary=False)
LENGTH.value = 50_000_000
assert [other.launch(other.stream) for _ in range(3)] == [0, 0, 0]
assert cu.cuCtxDestroy_v2(other.context) == 0
card.enter()
LENGTH.value = 20_000
assert [card.launch(card.stream) for _ in range(500)] == [0] * 500
print(cu.cuStreamSynchronize(card.stream))
"""


def test_work_that_ended_with_its_context_is_not_asked_about(container: Container) -> None:
    timeslice(container)
    executes_in_time(container)
    assert container.run("/usr/bin/python3", "-c", PREPARED + ENDED) == "0\n"


SEVERAL: Final = """
cards = [Card(0), Card(1)]
class One(ctypes.Structure):
    _fields_ = [("kernel", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p),
                ("parameters", c_void_p)]
launches = (One * 2)(*(
    One(card.kernel, (c_uint * 7)(1, 1, 1, 32, 1, 1, 0), card.stream,
        ctypes.addressof(PARAMETERS)) for card in cards))
print(cu.cuLaunchCooperativeKernelMultiDevice(launches, 2, int(sys.argv[1])), flush=True)
"""


@pytest.mark.parametrize("closed", [0, 1])
def test_a_launch_on_several_cards_waits_for_each(container: Container, closed: int) -> None:
    states = [CLOSED if closed == card else OPEN for card in range(2)]
    shares = [timeslice(container, state, gpu=uuid(card)) for card, state in enumerate(states)]
    command = container.command("/usr/bin/python3", "-c", PREPARED + SEVERAL, "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        wait_until_wanted(shares[closed])
        write(shares[closed], OPEN)
        assert app.communicate()[0] == "0\n"
    accounts = [Account.of(share) for share in shares]
    assert all(account.wanted > 0 for account in accounts)
    assert accounts[closed].waited > 0
    assert accounts[1 - closed].waited == 0
    assert all(account.used > 0 for account in accounts)


def test_an_error_of_a_launch_on_several_cards_is_the_drivers(container: Container) -> None:
    for card in range(2):
        timeslice(container, gpu=uuid(card))
    output = container.run("/usr/bin/python3", "-c", PREPARED + SEVERAL, "9")
    assert output == "1\n"


def test_a_launch_without_a_configuration_is_the_drivers_to_refuse(container: Container) -> None:
    timeslice(container)
    call = "print(cu.cuLaunchKernelEx(None, Card(0).kernel, None, None))"
    assert container.run("/usr/bin/python3", "-c", PREPARED + call) == f"{INVALID}\n"


@pytest.mark.parametrize("context_mib", [100])
def test_loads_of_a_share_have_the_memory_and_the_time_together(container: Container) -> None:
    """Two contexts fit into its memory, a third one does not until one of them has gone."""
    share = timeslice(container, state_bytes([(0, 30 * MS)]), memory=250 * MIB)
    executes_in_time(container)
    driver = FakeDriver(container.state)
    driver.count("cuDevicePrimaryCtxRetain")
    with ExitStack() as running:
        loads = [running.enter_context(Load(container.command("/run/bin/load"))) for _ in range(3)]
        assert [load.ask("start", 0) for load in loads] == [OK, OK, OOM]
        assert driver.counted == 2  # the third was refused before the driver made it
        for load in loads[:2]:
            load.send("queue", 2 * MS, 20, "plain")
        assert [load.line() for load in loads[:2]] == ["0", "0"]
        assert [load.ask("sync") for load in loads[:2]] == [OK, OK]
        assert share.total == 200 * MIB
        assert Account.of(share).used >= 2 * 20 * 2 * MS // 2
        loads[0].kill()
        assert loads[2].ask("start", 0) == OK


def test_a_full_share_is_refused_nothing_that_its_program_did_not_ask_for(
    container: Container,
) -> None:
    """A stream of the gate's own takes memory, which is charged and is no refusal."""
    share = timeslice(container, state_bytes([(0, 30 * MS)]), memory=64 * MIB)
    driver = FakeDriver(container.state)
    driver.set_option(0, "stream_mib", "2")
    executes_in_time(container)
    with container.client().start() as app:
        assert app.alloc(64 * MIB) == OK
        driver.count("cuStreamCreate")
        for _ in range(20):
            assert app.ask("graph-kernel", 0) == [OK]
            assert app.ask("pool-sync", 0) == [OK]
        assert (share.denied, driver.counted) == (0, 1)
        assert share.total == 66 * MIB
        assert app.alloc(1) == OOM
