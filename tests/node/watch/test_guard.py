"""The guard on real processes: in mount namespaces, in cgroups, by the simulated driver's NVML."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from apportion.inventory import nvml
from apportion.model import ShareKey
from apportion.watch.processes import Processes

from tests.node.watch.node import GPU, REAL, STATIC, Node, elsewhere, ended, lives, taking
from tests.shim import support
from tests.shim.support import MIB

POD = "0d9b9f8e-3c1a-4f6e-9a53-8f1c2b7d6e40"
HIDING = ["unshare", "--mount", "sh", "-c", 'umount -l /run/apportion/shares/*; exec "$@"', "sh"]


@pytest.mark.parametrize(
    "program", [taking(100, *REAL), taking(100, program=STATIC)], ids=["by path", "static"]
)
def test_who_goes_around_the_front_is_killed_and_nobody_else(
    node: Node, program: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ours, neighbours = node.container("rogue"), node.container("neighbour")
    honest = node.start(ours.command(*taking(60)))
    neighbour = node.start(neighbours.command(*taking(64)))
    node.scan()
    rogue = node.start(ours.command(*program))
    # Whenever it began, two readings after that are the end: the worst case of the window.
    node.scan()
    assert lives(rogue)
    node.scan()
    assert ended(rogue)
    node.scan(3)
    assert lives(honest)
    assert lives(neighbour)
    assert node.heard.counts == ["found rogue", "killed rogue"]
    assert node.heard.events == [
        ("rogue", "ShareExceeded"),
        ("node", "ShareExceeded"),
        ("rogue", "ShareProcessKilled"),
        ("node", "ShareProcessKilled"),
    ]
    (line,) = [one for one in caplog.records if "killed a process" in one.getMessage()]
    told = vars(line)
    assert (told["claim"], told["pod"], told["pid"]) == ("default/rogue", "pod-of-rogue", rogue.pid)
    assert (told["bytes"], told["limit"], told["charged"]) == (100 * MIB, 64 * MIB, 0)


def test_the_truth_is_within_the_share_afterwards(node: Node) -> None:
    container = node.container("rogue")
    rogues = [node.start(container.command(*taking(40, *REAL))) for _ in range(4)]
    node.scan(2)
    assert all(ended(rogue) for rogue in rogues[1:]), "the younger ones of those alike"
    assert lives(rogues[0])
    node.scan()
    assert node.guard.view.shares == {"rogue-0": 40 * MIB}


def test_h1777_a_nested_container_has_its_pods_shares(node: Node) -> None:
    container = node.container("nested")
    node.pods[POD] = frozenset({ShareKey("nested-0")})
    rogue = node.start(container.command(*HIDING, *taking(100, program=STATIC)), pod=POD)
    place = node.processes.place()
    seen = node.processes.look(rogue.pid, place, node.pods[POD])
    assert seen is not None
    assert (seen.shares, seen.pod) == (frozenset(), POD)
    node.scan(2)
    assert ended(rogue)


def test_in_another_pid_namespace_it_is_the_same(node: Node) -> None:
    inner = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    container = node.container("inner")
    honest = node.start(container.command(*inner, *taking(60)))
    rogue = node.start(container.command(*inner, *taking(30, *REAL)))
    node.scan(2)
    assert rogue.wait(5) != 0
    assert lives(honest)


@pytest.mark.parametrize("context_mib", [0, 8])
def test_a_share_filled_to_the_last_block_by_many_runs_on(node: Node, context_mib: int) -> None:
    (node.state / "gpus.conf").write_text(support.gpus_conf(context_mib=context_mib))
    container = node.container("honest")
    with support.several(container, 4) as clients:
        for step in range(30):
            for client in clients:
                client.send("alloc", 2 * MIB if step % 2 else 512)
            for client in clients:
                client.read()
            node.scan()
        assert container.shares[0].denied > 0
        assert node.guard.view.shares == {"honest-0": 64 * MIB}
        node.scan(20)
        assert all(client.process.poll() is None for client in clients)
    assert node.heard.events == []


def test_two_shares_of_one_container_add_up(node: Node) -> None:
    both = node.container("one", "two")
    honest = node.start(both.command(*taking(128)))
    node.scan(3)
    assert lives(honest)
    only = node.container("two")
    rogue = node.start(only.command(*taking(66, *REAL)))
    node.scan(2)
    assert ended(rogue)
    assert lives(honest)


@pytest.mark.parametrize(("mib", "stays"), [(160, True), (600, False)])
def test_code_that_a_launch_loads_into_a_full_share_is_borne_up_to_a_bound(
    node: Node,
    mib: int,
    stays: bool,  # noqa: FBT001 - a case
) -> None:
    """160 MiB: what a deep stack and lazily loaded code take of a T4."""
    (node.state / "gpus.conf").write_text(support.gpus_conf(context_mib=8))
    node.guard = node.make_guard(recorded=512 * MIB)
    container = node.container("lazy")
    share = container.shares[0]
    with container.client().start() as app:
        assert app.ask("code-library", mib * MIB, 1) == [0, 1]
        assert app.alloc(56 * MIB) == 0
        assert app.ask("code-library-launch", 1) == [0]
        while share.total <= 64 * MIB:
            assert app.ask("code-sync") == [0]
        assert share.total == (64 + mib) * MIB
        node.scan(20)
        assert (app.process.poll() is None) == stays
        assert ("killed lazy" in node.heard.counts) != stays
        if stays:
            assert app.alloc(1) != 0
            assert node.heard.events == []


@pytest.mark.parametrize("work", ["graphics", "mps"])
def test_hc182_whoever_draws_counts_once_and_is_held_too(node: Node, work: str) -> None:
    conf = support.gpus_conf().replace("[gpu 0]\n", f"[gpu 0]\nwork = {work}\n")
    (node.state / "gpus.conf").write_text(conf)
    container = node.container("drawing")
    honest = node.start(container.command(*taking(64)))
    node.scan(3)
    assert lives(honest)
    assert node.guard.view.shares == {"drawing-0": 64 * MIB}
    rogue = node.start(container.command(*taking(20, *REAL)))
    node.scan(2)
    assert ended(rogue)
    assert lives(honest)


def test_observing_ends_nobody_and_says_it(node: Node) -> None:
    node.guard = node.make_guard(kill=False)
    rogue = node.start(node.container("rogue").command(*taking(100, *REAL)))
    node.scan(5)
    assert lives(rogue)
    assert node.heard.events == [("rogue", "ShareExceeded"), ("node", "ShareExceeded")]
    assert node.guard.view.shares == {"rogue-0": 100 * MIB}


def test_strangers_are_reported_and_live_unless_the_setting_says_so(node: Node) -> None:
    node.container("some")
    on_host = node.start(taking(10, program=STATIC))
    in_pod = node.start(elsewhere(20, node.state), pod=POD)
    # As a plugin's self-test beside this one: it sees the folder of all shares.
    other_plugin = node.start(taking(30, program=STATIC), pod=POD.replace("0d", "77"))
    node.scan(5)
    assert node.heard.events == [
        ("node, by the way", "ProcessWithoutShare"),
        ("node", "ProcessWithoutShare"),
        ("node", "ProcessWithoutShare"),
    ]
    assert dict(node.guard.view.strangers) == {
        (GPU, "host"): 10 * MIB,
        (GPU, "pod"): 50 * MIB,
        (GPU, "unknown"): 0,
    }
    node.guard = node.make_guard(kill_strangers=True)
    node.scan(2)
    assert ended(in_pod)
    assert lives(on_host)
    assert lives(other_plugin)


def test_one_whose_first_thread_has_ended_is_still_seen(node: Node) -> None:
    """procfs shows nothing of such a process but by its other threads."""
    library = support.LIBDIR / "libcuda.so.1"
    code = (
        "import ctypes, threading, time\n"
        f"cuda = ctypes.CDLL({str(library)!r})\n"
        "where = ctypes.c_uint64()\n"
        "context = ctypes.c_void_p()\n"
        "assert cuda.cuInit(0) == 0\n"
        "assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "assert cuda.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(100 << 20)) == 0\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print('cuMemAlloc', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    container = node.container("headless")
    rogue = node.start(container.command(sys.executable, "-c", code))
    while node.processes._stat(rogue.pid) and not node.processes._stat(rogue.pid).gone:  # type: ignore[union-attr]
        pass
    node.scan(2)
    assert ended(rogue)


def test_only_the_process_that_was_seen_is_killed(node: Node) -> None:
    rogue = node.start(node.container("rogue").command(*taking(100, *REAL)))
    seen = node.processes.look(rogue.pid, None, [])
    assert seen is not None
    assert not node.processes.kill(replace(seen, start=seen.start + 1)), "the PID is another's now"
    assert lives(rogue)
    rogue.send_signal(signal.SIGKILL)
    rogue.wait()
    assert not node.processes.kill(seen)


def test_neither_init_nor_itself_nor_its_own_are_killed(node: Node) -> None:
    processes = Processes(node.config.proc, node.config.driver_shares_dir)
    with subprocess.Popen(["sleep", "600"]) as child:
        for pid in (1, os.getpid(), child.pid):
            seen = processes.look(pid, None, [])
            assert seen is not None
            assert not processes.kill(seen)
        child.kill()


def test_a_driver_that_hangs_holds_up_no_reading_of_the_guard_for_long(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    node.container("some")
    nvml._LOCK.acquire()
    other = threading.Thread(target=node.scan)
    other.start()
    other.join(20)
    nvml._LOCK.release()
    assert not other.is_alive()
    assert "did not answer in time" in caplog.text
    node.scan()
    assert "all is well again" in caplog.text or node.guard.view.at is not None
