"""Virtual memory management: charged from creation to the last reference or mapping."""

from __future__ import annotations

from tests.shim.support import BLOCK, MIB, OK, OOM, Container

LIMIT = 64 * MIB
PIECE = 4 * MIB


def test_created_memory_is_charged_and_refused_at_the_limit(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-create", LIMIT, 0) == [OK, 1]
        assert share.total == LIMIT
        assert app.ask("vmm-create", BLOCK, 1) == [OOM, 0]
        assert app.alloc(1) == OOM
        assert app.ask("vmm-release", 0) == [OK]
        assert share.total == 0


def test_it_needs_no_current_context(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("set", 3) == [OK]
        assert app.ask("vmm-create", PIECE, 0) == [OK, 1]
        assert share.total == PIECE


def test_released_memory_is_charged_while_it_is_mapped(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-create", PIECE, 0) == [OK, 1]
        assert app.ask("vmm-map", 0, 0) == [OK]
        assert app.ask("vmm-release", 0) == [OK]
        assert share.total == PIECE
        assert app.ask("vmm-unmap", PIECE, 0) == [OK]
        assert share.total == 0


def test_unmapped_memory_is_charged_while_it_is_held(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-create", PIECE, 0) == [OK, 1]
        assert app.ask("vmm-map", 0, 0) == [OK]
        assert app.ask("vmm-map", 0, 1) == [OK]
        assert app.ask("vmm-unmap", PIECE, 0) == [OK]
        assert app.ask("vmm-unmap", PIECE, 1) == [OK]
        assert share.total == PIECE
        assert app.ask("vmm-release", 0) == [OK]
        assert share.total == 0


def test_a_retained_handle_is_a_reference(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-create", PIECE, 0) == [OK, 1]
        assert app.ask("vmm-map", 0, 0) == [OK]
        assert app.ask("vmm-retain", 0, 1) == [OK]
        assert app.ask("vmm-release", 0) == [OK]
        assert app.ask("vmm-unmap", PIECE, 0) == [OK]
        assert share.total == PIECE
        assert app.ask("vmm-release", 1) == [OK]
        assert share.total == 0


def test_create_map_release_does_not_get_around_the_limit(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-pool", PIECE, 100) == [OOM, LIMIT // PIECE]
        assert share.total == LIMIT
        assert app.ask("vmm-unmap", LIMIT, 0) == [OK]
        assert share.total == 0
        assert app.ask("vmm-pool", PIECE, 100) == [OOM, LIMIT // PIECE]


def test_calls_that_fail_change_nothing(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("vmm-create", PIECE, 0) == [OK, 1]
        assert app.ask("vmm-create", PIECE + 1, 1)[0] not in {OK, OOM}
        assert app.ask("vmm-release", 7) != [OK]
        assert app.ask("vmm-retain", 9, 9) != [OK]
        assert share.total == PIECE


def test_host_memory_is_never_refused(container: Container) -> None:
    share = container.share(BLOCK)
    with container.client().start() as app:
        assert app.ask("vmm-host", PIECE, 0) == [OK, 1]
        assert app.ask("vmm-map", 0, 0) == [OK]
        assert app.ask("vmm-release", 0) == [OK]
        assert app.ask("vmm-unmap", PIECE, 0) == [OK]
        assert share.total == 0


def test_what_a_killed_process_made_is_free_after_it(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        assert one.ask("vmm-pool", PIECE, 100) == [OOM, LIMIT // PIECE]
        assert two.alloc(BLOCK) == OOM
        one.kill()
        assert two.ask("vmm-create", LIMIT, 0) == [OK, 1]
