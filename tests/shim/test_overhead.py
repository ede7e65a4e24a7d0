"""What a process holds beyond its allocations is charged by the driver's word, and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.fakegpu import FakeDriver
from tests.shim import support
from tests.shim.overhead import CONTEXT, CONTEXT_MIB, LIMIT, agree, set_learned, truth
from tests.shim.support import (
    BLOCK,
    INVALID,
    MIB,
    NO_CONTEXT,
    OK,
    OOM,
    SENTINEL,
    Container,
    Share,
    several,
)  # fmt: skip

STACK = 0
VERSIONS = [1, 2, 3, 4, 11, 12, 21, 22]
"""Of cuCtxCreate; 11 and 12 those for OpenGL, 21 and 22 those for VDPAU."""


@pytest.fixture
def context_mib() -> int:
    return CONTEXT_MIB


@pytest.fixture
def share(container: Container) -> Share:
    return container.share(LIMIT)


def test_a_context_is_charged_and_given_back(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert agree(container, share) == CONTEXT
        assert app.info() == (LIMIT - CONTEXT, LIMIT)
        assert app.ask("nvml", 0)[7:] == [LIMIT, 0, LIMIT - CONTEXT, CONTEXT]
        assert app.alloc(LIMIT - CONTEXT) == OK
        assert app.alloc(BLOCK) == OOM
        assert app.ask("release", 0) == [OK]
        assert agree(container, share) == 0


def test_the_primary_context_is_charged_once(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("retain", 0) == [OK]
        assert app.ask("retain", 0) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.ask("release", 0) == [OK]
        assert app.ask("release", 0) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.alloc(LIMIT - CONTEXT) == OK
        assert app.ask("release", 0) == [OK]
        assert agree(container, share) == 0
        assert app.start().alloc(LIMIT - CONTEXT) == OK
        assert agree(container, share) == LIMIT


def test_a_reset_gives_the_context_back_and_a_retain_brings_it_again(
    container: Container, share: Share
) -> None:
    with container.client().start() as app:
        assert app.alloc(BLOCK) == OK
        assert app.ask("reset", 0) == [OK]
        assert agree(container, share) == 0
        assert app.ask("retain", 0) == [OK]
        assert agree(container, share) == CONTEXT


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("end", ["destroy", "detach"])
def test_contexts_of_every_kind(container: Container, share: Share, version: int, end: str) -> None:
    with container.client() as app:
        assert app.ask("start", 0) == [OK]
        assert app.ask("code-context", version, 1) == [OK, 1]
        assert agree(container, share) == 2 * CONTEXT
        assert app.alloc(4 * MIB) == OK
        assert app.ask(f"code-{end}", 1) == [OK]
        assert agree(container, share) == CONTEXT


def test_a_context_ends_with_its_last_use(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("code-context", 2, 1) == [OK, 1]
        assert app.ask("code-attach") == [OK]
        assert app.alloc(4 * MIB) == OK
        assert app.ask("code-detach", 1) == [OK]
        assert agree(container, share) == 2 * CONTEXT + 4 * MIB
        assert app.ask("code-detach", 1) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.ask("code-detach", 1) != [OK]
        assert agree(container, share) == CONTEXT


@pytest.mark.parametrize("version", VERSIONS)
def test_a_context_that_does_not_fit_is_refused(
    container: Container, share: Share, version: int
) -> None:
    with container.client().start() as app:
        assert app.alloc(LIMIT - 2 * CONTEXT + BLOCK) == OK
        before = agree(container, share)
        assert app.ask("code-context", version, 1) == [OOM, 0]
        assert agree(container, share) == before
        assert share.denied == 1
        assert share.peak == before, "what is known to be too much is not even tried"
        assert app.alloc(CONTEXT - BLOCK) == OK


def test_the_first_context_of_a_share_that_does_not_fit_is_undone(
    container: Container,
) -> None:
    """Nothing is known of its size, so the driver makes it first."""
    share = container.share(CONTEXT - BLOCK)
    with container.client() as app:
        assert app.ask("start", 0) == [OOM]
        assert agree(container, share) == 0
        assert share.denied == 1
        assert app.ask("code-context", 2, 1) == [OOM, 0]
        assert app.ask("alloc", BLOCK) == [NO_CONTEXT, SENTINEL]
        assert agree(container, share) == 0


def test_what_a_context_takes_is_learned_and_the_least_counts(
    container: Container, share: Share
) -> None:
    with container.client().start():
        assert share.field(60, 4) == CONTEXT_MIB
    set_learned(share, 400)
    with container.client() as app:
        assert app.ask("start", 0) == [OOM]
    set_learned(share, 150)
    with container.client().start():
        assert share.field(60, 4) == CONTEXT_MIB
    set_learned(share, 10)
    with container.client().start() as app:
        assert agree(container, share) == CONTEXT
        assert share.field(60, 4) == 10


def test_contexts_of_processes_add_up(container: Container, share: Share) -> None:
    with several(container, 6) as clients:
        assert agree(container, share) == 6 * CONTEXT
        with container.client() as one_more:
            assert one_more.ask("start", 0) == [OOM]
        clients[0].kill()
        with container.client().start() as one_more:
            assert agree(container, share) == 6 * CONTEXT
            assert one_more.alloc(LIMIT - 6 * CONTEXT) == OK


def test_each_gpu_has_its_own_contexts(container: Container) -> None:
    one, two = container.share(LIMIT), container.share(LIMIT, gpu=support.uuid(1))
    with container.client().start(0) as app:
        assert (one.total, two.total) == (CONTEXT, 0)
        assert app.ask("start", 1) == [OK]
        assert (
            (one.total, two.total) == (CONTEXT, CONTEXT) == (truth(container), truth(container, 1))
        )
        assert app.ask("release", 0) == [OK]
        assert (one.total, two.total) == (0, CONTEXT)


def test_two_shares_of_a_card_hold_a_context_over_both(container: Container) -> None:
    one, two = container.share(CONTEXT - BLOCK), container.share(CONTEXT)
    with container.client().start() as app:
        assert one.total + two.total == CONTEXT
        assert app.alloc(CONTEXT - BLOCK) == OK
        assert app.alloc(BLOCK) == OOM
        assert app.ask("release", 0) == [OK]
        assert (one.total, two.total) == (0, 0)


def test_without_the_drivers_word_estimates_stay(container: Container, share: Share) -> None:
    FakeDriver(container.state).inject(None, "nvmlDeviceGetComputeRunningProcesses", 3)
    with container.client().start():
        assert share.total == 0
    set_learned(share, 40)
    with container.client().start() as app:
        assert share.total == 40 * MIB
        assert app.ask("code-context", 2, 1) == [OK, 1]
        assert share.total == 80 * MIB
        assert app.ask("code-destroy", 1) == [OK]
        assert app.ask("release", 0) == [OK]
        assert share.total == 0
        assert share.field(60, 4) == 40


def test_nonsense_is_the_drivers_affair(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("code-limit", STACK, 1 << 20) == [INVALID]
        assert app.ask("code-limit", 99, 1) == [INVALID]
        assert app.ask("code-unload", 7) != [OK]
        assert agree(container, share) == CONTEXT
    with container.client() as app:
        assert app.ask("start", 9) == [101]
        assert app.ask("code-limit", STACK, 4096) == [NO_CONTEXT]
        assert app.ask("code-module", 0, 1) == [NO_CONTEXT, 0]


def test_green_contexts(container: Container, share: Share) -> None:
    with container.client() as app:
        assert app.ask("start", 0) == [OK]
        assert app.ask("release", 0) == [OK]
        assert app.ask("code-green", 1) == [OK, 1]
        assert agree(container, share) == CONTEXT + 4 * MIB
        assert app.ask("code-green", 2) == [OK, 1]
        assert agree(container, share) == CONTEXT + 8 * MIB
        assert app.ask("code-green-set", 1) == [OK]
        assert app.alloc(20 * MIB) == OK
        assert app.ask("code-green-destroy", 1) == [OK]
        assert agree(container, share) == CONTEXT + 24 * MIB, "it belongs to the primary context"
        assert app.ask("code-green-destroy", 2) == [OK]
        assert agree(container, share) == 0


def test_a_green_context_that_does_not_fit_is_refused(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.alloc(LIMIT - CONTEXT - BLOCK) == OK
        assert app.ask("code-green", 1) == [OOM, 0]
        assert agree(container, share) == LIMIT - BLOCK
        assert app.alloc(BLOCK) == OK


def test_managed_memory_does_not_hide_a_context(container: Container, share: Share) -> None:
    """The driver does not count it as the process's."""
    with container.client().start() as app:
        assert app.ask("managed", 20 * MIB)[0] == OK
        assert app.ask("code-context", 2, 1) == [OK, 1]
        assert share.total == 20 * MIB + 2 * CONTEXT == truth(container) + 20 * MIB
        assert app.ask("managed", 4096)[0] == OK
        assert app.ask("code-destroy", 1) == [OK]
        assert share.total == 20 * MIB + CONTEXT
        assert app.ask("free-each", 1) != [OK, 0]
        assert app.ask("release", 0) == [OK]
        assert agree(container, share) == 0


def test_a_process_that_others_are_listed_as_is_not_believed(
    container: Container, share: Share
) -> None:
    """By a driver that lists processes of all namespaces, each by the PID of its own."""
    FakeDriver(container.state).set_option(None, "raw_pids", "yes")
    set_learned(share, 20)
    apart = replace(container, entry="unshare --pid --fork --kill-child")
    with apart.client().start() as first, apart.client().start() as second:
        assert first.alloc(50 * MIB) == second.alloc(BLOCK) == OK
        assert share.total == CONTEXT + 50 * MIB + 20 * MIB + BLOCK
        assert second.ask("release", 0) == [OK]
        assert share.total == CONTEXT + 50 * MIB


def test_a_program_finds_the_front_of_nvml_though_the_drivers_is_loaded(
    container: Container, share: Share
) -> None:
    """Loading the driver's management library must not put it in the front's place."""
    with container.client().start() as app:
        assert app.alloc(BLOCK) == OK
        assert app.ask("nvml", 0)[4:7] == [LIMIT, LIMIT - CONTEXT - BLOCK, CONTEXT + BLOCK]
        assert share.total == CONTEXT + BLOCK


def test_threads_leave_no_overhead_behind(container: Container, share: Share) -> None:
    with container.client().start() as app:
        for seed in range(5):
            errors, granted, _ = app.ask("churn", 5000, 3 * MIB, seed, 4)
            assert (errors, granted > 0) == (0, True)
            assert app.ask("code-context", 2, 1) == [OK, 1]
            assert app.ask("code-destroy", 1) == [OK]
        assert agree(container, share) == CONTEXT
        assert share.peak <= LIMIT
