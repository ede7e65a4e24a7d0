"""Memory nodes of graphs, and allocation while a stream is captured."""

from __future__ import annotations

import pytest

from tests.shim.support import INVALID, MIB, OK, OOM, SENTINEL, Client, Container

CHUNK = 32 * MIB
LIMIT = 8 * CHUNK
RESERVED = 2
UPLOAD = 2
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


def graph(app: Client, number: int, *sizes: int, form: int = 0, node: int = 0) -> list[int]:
    """Make an executable graph that allocates pieces of `sizes` and frees none; the pointers."""
    assert app.ask("graph-new", number) == [OK]
    pointers = []
    for size in sizes:
        result, pointer = app.ask("graph-alloc", number, size, node)
        assert result == OK
        pointers.append(pointer)
    assert app.ask("graph-exec", number, form, 0) == [OK]
    return pointers


@pytest.mark.parametrize("node", range(3))
@pytest.mark.parametrize("form", range(5))
@pytest.mark.parametrize("run", ["launch", "launch-ptsz", "upload", "upload-ptsz"])
def test_a_graph_is_charged_when_it_takes_memory(
    container: Container, node: int, form: int, run: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        graph(app, 1, 100 * MIB, form=form, node=node)
        assert share.total == 0
        assert app.ask(f"graph-{run}", 1, 0) == [OK]
        assert share.total == 4 * CHUNK
        assert app.ask("graph-attribute", RESERVED) == [OK, 4 * CHUNK]


@pytest.mark.parametrize("run", ["launch", "launch-ptsz", "upload", "upload-ptsz"])
def test_a_graph_over_the_limit_is_refused_when_it_would_run(
    container: Container, run: str
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        graph(app, 1, 4 * CHUNK, 4 * CHUNK, 4)
        assert app.ask(f"graph-{run}", 1, 0) == [OOM]
        assert (share.total, share.denied) == (0, 1)
        assert app.ask("graph-attribute", RESERVED) == [OK, 0]
        graph(app, 2, 4 * CHUNK, 4 * CHUNK)
        assert app.ask(f"graph-{run}", 2, 0) == [OK]
        assert share.total == LIMIT
        # What no graph has in use yet makes room for others.
        assert app.alloc(1) == (OOM if "launch" in run else OK)


@pytest.mark.parametrize("form", [3, 4])
def test_an_upload_at_instantiation_is_charged(container: Container, form: int) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        for number, size, result in ((1, LIMIT + 1, OOM), (2, LIMIT, OK)):
            assert app.ask("graph-new", number) == [OK]
            assert app.ask("graph-alloc", number, size, 0)[0] == OK
            assert app.ask("graph-exec", number, form, UPLOAD) == [result]
        assert share.total == LIMIT


@pytest.mark.parametrize("free", ["free", "pool-free"])
def test_hc67_a_graph_s_memory_is_freed_by_the_driver(container: Container, free: str) -> None:
    """Project-HAMi/HAMi-core#67: cudaFree of a graph node's pointer was an error."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        (pointer,) = graph(app, 1, 100 * MIB)
        for _ in range(3):
            assert app.ask("graph-launch", 1, 0) == [OK]
            assert app.ask("graph-launch", 1, 0) == [INVALID]
            assert app.ask(free, pointer, 0) == [OK]
            assert share.total == 4 * CHUNK
        assert app.ask("graph-end-exec", 1) == [OK]
        assert share.total == 4 * CHUNK
        assert app.ask("graph-trim", 0) == [OK]
        assert share.total == 0


def test_what_a_running_graph_uses_stays_charged(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        (pointer,) = graph(app, 1, 100 * MIB)
        assert app.ask("graph-launch", 1, 0) == [OK]
        assert app.ask("graph-end-exec", 1) == [OK]
        assert app.ask("graph-trim", 0) == [OK]
        assert share.total == 4 * CHUNK
        assert app.ask("alloc", 200 * MIB) == [OOM, SENTINEL]
        assert app.ask("free", pointer) == [OK]
        assert app.ask("alloc", 200 * MIB)[0] == OK
        assert share.total == 200 * MIB


def test_graphs_share_memory_that_they_do_not_use_together(container: Container) -> None:
    """Two that fit only after one another: the second finds room when the first is done."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        (first,) = graph(app, 1, 5 * CHUNK)
        (second,) = graph(app, 2, 6 * CHUNK)
        assert app.ask("graph-launch", 1, 0) == [OK]
        assert app.ask("graph-launch", 2, 0) == [OOM]
        assert app.ask("free", first) == [OK]
        for number, pointer, chunks in ((2, second, 6), (1, first, 5), (2, second, 6)):
            assert app.ask("graph-launch", number, 0) == [OK]
            assert app.ask("free", pointer) == [OK]
            assert share.total >= chunks * CHUNK
            assert share.total <= LIMIT


def test_pieces_at_one_address_count_once(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("graph-new", 1) == [OK]
        seen = set()
        for _ in range(5):
            result, pointer = app.ask("graph-alloc", 1, 5 * CHUNK, 0)
            assert result == OK
            assert app.ask("graph-free", 1, pointer) == [OK]
            seen.add(pointer)
        assert len(seen) == 1
        assert app.ask("graph-exec", 1, 2, 0) == [OK]
        for _ in range(3):
            assert app.ask("graph-launch", 1, 0) == [OK]
            assert share.total == 5 * CHUNK


def test_an_update_may_need_more(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        (pointer,) = graph(app, 1, CHUNK)
        assert app.ask("graph-launch", 1, 0) == [OK]
        assert app.ask("free", pointer) == [OK]
        graph(app, 2, LIMIT + CHUNK)
        graph(app, 3, LIMIT)
        assert app.ask("graph-update", 1, 2) == [OK]
        assert app.ask("graph-launch", 1, 0) == [OOM]
        assert app.ask("graph-update", 1, 3) == [OK]
        assert app.ask("graph-launch", 1, 0) == [OK]
        assert share.total == LIMIT


def test_h1360_allocation_during_capture_and_replay(container: Container) -> None:
    """Project-HAMi/HAMi#1360: vLLM failed in its mode with CUDA graphs."""
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("graph-replay", 1, 10 * MIB, 20) == [OK, 20]
        assert share.total == CHUNK
        assert app.ask("graph-replay", 2, LIMIT + 4, 1) == [OOM, 0]


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("form", range(3))
def test_a_captured_allocation_takes_nothing_and_spoils_nothing(
    container: Container, mode: int, form: int
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(LIMIT) == OK
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("graph-capture", 1, mode, form) == [OK]
        for command in ("pool-async", "pool-async-ptsz", "pool-from"):
            result, pointer = app.ask(command, 100 * MIB, 1)
            assert result == OK
            assert app.ask("pool-free", pointer, 1) == [OK]
        assert app.info() == (0, LIMIT)
        assert app.ask("graph-captured", 1, 1) == [OK]
        assert (share.total, share.denied) == (LIMIT, 0)
        assert app.ask("graph-exec", 1, 2, 0) == [OK]
        assert app.ask("graph-launch", 1, 0) == [OOM]


def test_looking_at_pools_spoils_no_capture(container: Container) -> None:
    """Neither memory information nor a release nor a refusal, with pools about that have memory."""
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("pool-stream", 2) == [OK]
        assert app.ask("pool-async", 100 * MIB, 0)[0] == OK
        _, pointer = app.ask("alloc", 4096)
        assert app.ask("graph-capture", 1, GLOBAL, 0) == [OK]
        assert app.info() == (LIMIT - 4 * CHUNK - 2 * MIB, LIMIT)
        assert app.ask("pool-sync", 2) == [OK]
        assert app.ask("free", pointer) == [OK]
        assert app.ask("alloc", LIMIT) == [OOM, SENTINEL]
        assert app.ask("graph-captured", 1, 1) == [OK]


def test_an_allocation_that_the_capture_forbids_is_the_driver_s_error(
    container: Container,
) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("pool-stream", 1) == [OK]
        assert app.ask("graph-capture", 1, GLOBAL, 0) == [OK]
        assert app.ask("pool-async", 4, 0) == [900, SENTINEL]
        assert app.ask("graph-captured", 1, 1) == [901]
        assert share.total == 0
        assert app.ask("pool-async", 4, 0)[0] == OK
        assert share.total == CHUNK
