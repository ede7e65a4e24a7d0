"""One ledger for all processes of a share, whoever and wherever they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.shim.overhead import CONTEXT, CONTEXT_MIB, agree, truth
from tests.shim.support import (
    BLOCK,
    GIB,
    MIB,
    OK,
    OOM,
    Client,
    Container,
    Share,
    several,
    uuid,
)  # fmt: skip

LIMIT = 200 * MIB


@pytest.fixture
def context_mib() -> int:
    return CONTEXT_MIB


@pytest.fixture
def share(container: Container) -> Share:
    return container.share(LIMIT)


def fill_together(container: Container, share: Share, one: Client, two: Client) -> None:
    """Two processes with a context each fill the share to the byte, and no further."""
    left = LIMIT - 2 * CONTEXT
    assert one.info() == two.info() == (left, LIMIT)
    assert one.alloc(left - 10 * MIB) == OK
    assert two.alloc(12 * MIB) == OOM
    assert two.alloc(10 * MIB) == OK
    assert one.alloc(1) == two.alloc(1) == OOM
    assert agree(container, share) == LIMIT


def test_a_root_that_is_read_only(container: Container, share: Share) -> None:
    """As with readOnlyRootFilesystem: only the ledger itself can be written to."""
    other = replace(container, extra="mount -o remount,ro,bind /; mount -o remount,ro /run")
    with other.client(user=1000).start() as one, other.client(user=2000).start() as two:
        fill_together(container, share, one, two)


def test_users_without_rights(container: Container, share: Share) -> None:
    other = replace(container, entry="setpriv --no-new-privs")
    with other.client(user=65534).start() as one, container.client().start() as two:
        fill_together(container, share, one, two)


def test_processes_with_the_same_pid_in_different_namespaces(
    container: Container, share: Share
) -> None:
    """Each is the first process of its namespace; who is alive is not told by PIDs."""
    apart = replace(container, entry="unshare --pid --fork --mount-proc --kill-child")
    with apart.client().start() as first, apart.client().start() as second:
        fill_together(container, share, first, second)
        first.kill()  # that is who waits for it outside; the kernel ends it then
        while truth(container) > CONTEXT + 10 * MIB:
            continue
        assert second.alloc(LIMIT - CONTEXT - 10 * MIB) == OK
        assert agree(container, share) == LIMIT


def test_sixty_four_processes_start_together(container: Container) -> None:
    share = container.share(64 * (CONTEXT + BLOCK))
    with several(container, 64) as clients:
        assert agree(container, share) == 64 * CONTEXT
        for client in clients:
            client.send("alloc", BLOCK)
        assert [client.read()[0] for client in clients] == [OK] * 64
        assert agree(container, share) == 64 * (CONTEXT + BLOCK)
        assert clients[0].alloc(1) == OOM
        assert share.peak == share.total


def test_of_sixty_four_that_start_together_as_many_get_a_context_as_fit(
    container: Container,
) -> None:
    share = container.share(20 * CONTEXT)
    with container.client().start() as first:
        clients = [container.client() for _ in range(63)]
        try:
            for client in clients:
                client.send("start", 0)
            answers = [client.read() for client in clients]
            assert sorted(answers) == [[OK]] * 19 + [[OOM]] * 44
            assert agree(container, share) == share.peak == 20 * CONTEXT
            assert share.denied == 44
        finally:
            for client in clients:
                client.__exit__()
        assert first.alloc(19 * CONTEXT) == OK


def test_a_child_without_exec_does_not_answer_for_its_parent(
    container: Container, share: Share
) -> None:
    """It can use no driver that its parent used; what the parent has stays the parent's."""
    with container.client().start() as app, container.client().start() as other:
        assert app.alloc(20 * MIB) == OK
        app.send("fork", 4096)
        assert app.read()[0] not in {OK, OOM}
        assert agree(container, share) == 2 * CONTEXT + 20 * MIB
        app.kill()
        assert other.alloc(LIMIT - CONTEXT) == OK


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_a_child_that_uses_the_driver_first_has_an_account_of_its_own(
    container: Container, share: Share, way: str
) -> None:
    with container.client() as app:
        app.send(f"start-in-{way}", 4 * MIB)
        assert app.read() == [OK]
        assert agree(container, share) == CONTEXT + 4 * MIB
        assert app.start().alloc(6 * MIB) == OK
        assert agree(container, share) == 2 * CONTEXT + 10 * MIB


def test_exec_gives_contexts_back_too(container: Container, share: Share) -> None:
    with container.client().start() as app, container.client().start() as other:
        assert app.alloc(20 * MIB) == OK
        assert app.ask("exec") == [0]
        app.start()
        assert other.alloc(LIMIT - 2 * CONTEXT) == OK
        assert app.alloc(BLOCK) == OOM
        assert agree(container, share) == LIMIT


def test_two_claims_on_one_gpu_add_up(container: Container) -> None:
    one, two = container.share(100 * MIB), container.share(60 * MIB)
    with several(container, 2) as (first, second):
        assert one.total + two.total == 2 * CONTEXT
        assert first.info() == second.info() == (100 * MIB, 160 * MIB)
        assert first.alloc(90 * MIB) == OK
        assert second.alloc(12 * MIB) == OOM
        assert second.alloc(10 * MIB) == OK
        assert one.total + two.total == truth(container) == 160 * MIB
        first.kill()
        assert second.alloc(120 * MIB) == OK
        assert one.total + two.total == truth(container) == 160 * MIB


def test_what_is_over_in_one_of_two_claims_lacks_in_the_other(container: Container) -> None:
    """A library that is refused too late is charged whole, and lowers what is left."""
    container.share(100 * MIB)
    container.share(60 * MIB)
    with container.client().start() as app:
        assert app.alloc(70 * MIB) == OK
        assert app.ask("code-library-hidden", 80 * MIB, 1) == [OK, 1]
        assert app.ask("code-library-module", 1) == [OOM], "and yet it is loaded"
        assert app.info() == (0, 160 * MIB)
        assert app.alloc(BLOCK) == OOM
        assert app.ask("free-each", 1) == [OK, 1]
        assert app.info() == (50 * MIB, 160 * MIB)
        assert app.alloc(52 * MIB) == OOM
        assert app.alloc(50 * MIB) == OK


CARDS = {
    "0,1": (0, 1),
    "1,0": (1, 0),
    "1": (1,),
    uuid(1): (1,),
    f"{uuid(1)},{uuid(0)}": (1, 0),
    f"{uuid(0)[:12]},{uuid(1)[:12]}": (0, 1),
    uuid(1)[:12]: (1,),
    f"{uuid(1)[:12].replace('GPU-6d', 'GPU-6D')},{uuid(0)}": (1, 0),
}
"""CUDA_VISIBLE_DEVICES by order, index, UUID and short UUID, and the cards that it names."""


@pytest.mark.parametrize("visible", CARDS)
def test_two_gpus_are_separate_whatever_is_visible(container: Container, visible: str) -> None:
    shares = (container.share(100 * MIB), container.share(GIB, gpu=uuid(1)))
    limits = (100 * MIB, GIB)
    with container.client(env={"CUDA_VISIBLE_DEVICES": visible}) as app:
        for ordinal, card in enumerate(CARDS[visible]):
            before = shares[1 - card].total
            assert app.ask("start", ordinal) == [OK]
            assert app.info() == (limits[card] - CONTEXT, limits[card])
            assert app.alloc(limits[card] - CONTEXT + 1) == OOM
            assert app.alloc(limits[card] - CONTEXT) == OK
            assert shares[card].total == truth(container, card) == limits[card]
            assert shares[1 - card].total == before
