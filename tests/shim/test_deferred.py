"""Linear memory freed in stream order: nobody waits for its stream; it ends with its context."""

from __future__ import annotations

import pytest

from tests.shim.support import BLOCK, MIB, OK, OOM, Container

LIMIT = 256 * MIB


@pytest.mark.parametrize("end", ["", "pool-stream-end"])
def test_a_stream_that_waits_for_the_caller_is_not_waited_for(
    container: Container, end: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("pool-stream-hold", 1) == [OK]
        for size in (LIMIT // 2, 512):
            _, pointer = app.ask("alloc", size)
            assert app.ask("pool-free", pointer, 1) == [OK]
        if end:
            assert app.ask(end, 1) == [OK]
        assert app.ask("pool-sync", 0) == [OK]
        assert share.total == LIMIT // 2 + BLOCK
        assert app.alloc(LIMIT) == OOM
        assert app.ask("pool-stream-go") == [OK]
        assert app.alloc(LIMIT) == OK


@pytest.mark.parametrize("end", ["destroy", "reset"])
def test_what_was_freed_in_stream_order_ends_with_its_context(
    container: Container, end: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        if end == "destroy":
            assert app.ask("create", 1) == [OK]
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("pool-stream-hold", 1) == [OK]
        _, pointer = app.ask("alloc", LIMIT)
        assert app.ask("pool-free", pointer, 1) == [OK]
        assert app.ask(end, int(end == "destroy")) == [OK]
        assert share.total == 0
        assert app.ask("start", 0) == [OK]
        assert app.alloc(LIMIT) == OK


def test_more_than_is_remembered_stays_charged_till_the_context_ends(
    container: Container,
) -> None:
    share = container.share(1100 * BLOCK)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("pool-stream-hold", 1) == [OK]
        for _ in range(1030):
            _, pointer = app.ask("alloc", BLOCK)
            assert app.ask("pool-free", pointer, 1) == [OK]
        assert app.ask("pool-stream-go") == [OK]
        assert app.ask("pool-sync", 1) == [OK]
        assert share.total <= 6 * BLOCK
        assert app.ask("reset", 0) == [OK]
        assert share.total == 0
