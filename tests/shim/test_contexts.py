"""Contexts that end take their allocations with them, and the charges too."""

from __future__ import annotations

from tests.shim.support import BLOCK, MIB, OK, OOM, Container

LIMIT = 64 * MIB


def test_a_destroyed_context_gives_its_memory_back(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(10 * MIB) == OK
        assert app.ask("create", 1) == [OK]
        assert app.ask("fill", 4096, 2000) == [OK, 2000]
        assert app.alloc(30 * MIB) == OK
        assert app.alloc(30 * MIB) == OOM
        assert app.ask("destroy", 1) == [OK]
        assert share.total == 10 * MIB
        assert app.ask("set", 0) == [OK]
        assert app.alloc(LIMIT - 10 * MIB) == OK


def test_a_context_that_is_none_changes_nothing(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.alloc(10 * MIB) == OK
        assert app.ask("destroy", 5) != [OK]
        assert share.total == 10 * MIB


def test_the_last_release_of_the_primary_context_counts(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("retain", 0) == [OK]
        assert app.alloc(LIMIT) == OK
        assert app.ask("release", 0) == [OK]
        assert share.total == LIMIT
        assert app.alloc(BLOCK) == OOM
        assert app.ask("release", 0) == [OK]
        assert share.total == 0
        assert app.start().alloc(LIMIT) == OK


def test_a_reset_gives_everything_back(container: Container) -> None:
    share = container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("fill", MIB // 2, 40) == [OK, 40]
        assert share.total == 20 * MIB
        assert app.ask("reset", 0) == [OK]
        assert share.total == 0
        assert app.start().alloc(LIMIT) == OK
