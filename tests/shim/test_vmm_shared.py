"""Memory from cuMemCreate that leaves its process: charged once, as long as anything keeps it."""

from __future__ import annotations

from tests.shim.support import BLOCK, INVALID, LIBDIR, MIB, OK, OOM, Client, Container
from tests.shim.test_imports import LIMIT, PIECE, applications, truth


def exported(app: Client, size: int = PIECE, handle: int = 0) -> tuple[int, int]:
    """Create memory, export it; return who has the descriptor, and its number."""
    assert app.ask("vmm-create", handle, size) == [OK, 1]
    result, descriptor = app.ask("vmm-export", handle)
    assert result == OK
    return app.process.pid, descriptor


def test_what_many_import_is_charged_once(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        descriptor = exported(maker)
        for app in (one, two):
            assert app.ask("vmm-import", 0, *descriptor) == [OK, 1]
            assert app.ask("vmm-map", 0, 0, PIECE) == [OK]
            assert app.info()[0] == LIMIT - PIECE
        assert share.total == truth(container) == PIECE
        assert one.ask("vmm-create", 1, LIMIT - PIECE) == [OK, 1]
        assert one.ask("vmm-create", 2, BLOCK) == [OOM, 0]


def test_it_stays_charged_until_the_last_lets_go(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        descriptor = exported(maker)
        assert one.ask("vmm-import", 0, *descriptor) == [OK, 1]
        assert one.ask("vmm-import", 1, *descriptor) == [OK, 1]
        assert two.ask("vmm-import", 0, *descriptor) == [OK, 1]
        assert maker.ask("vmm-close", descriptor[1]) == [OK]
        assert one.ask("vmm-map", 0, 0, PIECE) == [OK]
        for app, handle in ((maker, 0), (two, 0), (one, 0), (one, 1)):
            assert app.ask("vmm-release", handle) == [OK]
            assert share.total == truth(container) == PIECE
        assert one.ask("vmm-unmap", 0, PIECE) == [OK]
        assert share.total == truth(container) == 0


def test_it_stays_charged_when_its_maker_dies(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        descriptor = exported(maker)
        assert other.ask("vmm-import", 0, *descriptor) == [OK, 1]
        maker.kill()
        assert other.ask("vmm-create", 1, LIMIT) == [OOM, 0]
        assert share.total == truth(container) == PIECE
        assert other.ask("vmm-release", 0) == [OK]
        assert share.total == truth(container) == 0


def test_a_descriptor_on_its_way_keeps_the_charge(container: Container) -> None:
    """Memory that is released while only a descriptor is left is still there."""
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        pid, descriptor = exported(maker)
        assert maker.ask("vmm-release", 0) == [OK]
        own = other.ask("vmm-take", pid, descriptor)[0]
        assert maker.ask("vmm-close", descriptor) == [OK]
        assert maker.ask("vmm-create", 1, LIMIT) == [OOM, 0]
        assert share.total == truth(container) == PIECE
        assert other.ask("vmm-import-own", 0, own) == [OK, 1]
        assert other.ask("vmm-close", own) == [OK]
        assert maker.ask("vmm-create", 1, LIMIT) == [OOM, 0]
        assert share.total == truth(container) == PIECE
        assert other.ask("vmm-release", 0) == [OK]
        assert share.total == truth(container) == 0


def test_a_descriptor_that_nobody_took_ends_with_its_closing(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (maker,):
        for _ in range(3):
            _, descriptor = exported(maker)
            assert maker.ask("vmm-release", 0) == [OK]
            assert share.total == truth(container) == PIECE
            assert maker.ask("vmm-close", descriptor) == [OK]
            assert truth(container) == 0
            assert maker.ask("vmm-create", 0, LIMIT) == [OK, 1]
            assert share.total == LIMIT
            assert maker.ask("vmm-release", 0) == [OK]


def test_many_descriptors_do_not_get_around_the_limit(container: Container) -> None:
    """Create, export, release: each descriptor holds memory that has no handle any more."""
    share = container.share(LIMIT)
    with applications(container, 1) as (maker,):
        for _ in range(LIMIT // BLOCK):
            exported(maker, BLOCK)
            assert maker.ask("vmm-release", 0) == [OK]
        assert maker.ask("vmm-create", 0, BLOCK) == [OOM, 0]
        assert share.total == truth(container) == LIMIT


def test_who_imported_can_give_it_on(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 3) as (maker, one, two):
        descriptor = exported(maker)
        assert one.ask("vmm-import", 0, *descriptor) == [OK, 1]
        result, other = one.ask("vmm-export", 0)
        assert result == OK
        assert two.ask("vmm-import", 0, one.process.pid, other) == [OK, 1]
        maker.kill()
        one.kill()
        assert two.ask("vmm-create", 1, LIMIT) == [OOM, 0]
        assert share.total == truth(container) == PIECE


def test_an_import_into_its_own_process_is_no_second_charge(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (maker,):
        _, descriptor = exported(maker)
        assert maker.ask("vmm-import-own", 1, descriptor) == [OK, 1]
        assert maker.ask("vmm-close", descriptor) == [OK]
        assert maker.ask("vmm-release", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert maker.ask("vmm-release", 1) == [OK]
        assert share.total == truth(container) == 0


def test_what_another_share_made_is_charged_at_its_import(container: Container) -> None:
    """And refused there, not when it is mapped."""
    ours = container.share(LIMIT)
    elsewhere = Container(container.folder / "elsewhere", container.state)
    theirs = elsewhere.share(LIMIT)
    with applications(elsewhere, 1) as (maker,), applications(container, 1) as (other,):
        descriptor = exported(maker)
        assert other.ask("vmm-import", 0, *descriptor) == [OK, 1]
        assert (theirs.total, ours.total) == (PIECE, PIECE)
        assert other.ask("vmm-map", 0, 0, PIECE) == [OK]
        assert other.ask("vmm-create", 1, BLOCK) == [OK, 1]
        assert other.ask("vmm-import", 2, *descriptor) == [OOM, 0]
        assert ours.denied == 1
        assert other.ask("vmm-unmap", 0, PIECE) == [OK]
        assert other.ask("vmm-release", 0) == [OK]
        assert ours.total == BLOCK


def test_pytorch188008_out_of_memory_comes_from_creation_only(container: Container) -> None:
    """Row 46: a failure of a mapping in the middle of a segment ends the process."""
    container.share(LIMIT)
    with applications(container, 1) as (app,):
        made = 0
        while app.ask("vmm-create", made, 4 * MIB) == [OK, 1]:
            made += 1
        assert made == LIMIT // (4 * MIB)
        for handle in range(made):
            assert app.ask("vmm-map", handle, handle, 4 * MIB) == [OK]
            assert app.ask("vmm-release", handle) == [OK]
        for handle in range(made):
            assert app.ask("vmm-unmap", handle, 4 * MIB) == [OK]
        assert app.ask("vmm-create", 0, LIMIT) == [OK, 1]


def test_hc169_creation_needs_no_current_context(container: Container) -> None:
    """Row 7: NCCL and vLLM create memory on threads that have none."""
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        for app in (maker, other):
            assert app.ask("ctx-none") == [OK]
        descriptor = exported(maker)
        assert other.ask("vmm-import", 0, *descriptor) == [OK, 1]
        assert other.ask("vmm-map", 0, 0, PIECE) == [OK]
        assert maker.ask("vmm-create", 1, LIMIT) == [OOM, 0]
        assert share.total == truth(container) == PIECE


def test_create_map_release_ten_times(container: Container) -> None:
    """One of the ways by which a peer's limit was passed: its probe, in a share of 1 GiB."""
    share = container.share(1024 * MIB)
    with applications(container, 1) as (app,):
        answers = []
        for step in range(10):
            answers.append(app.ask("vmm-create", 0, 512 * MIB)[0])
            if answers[-1] == OK:
                assert app.ask("vmm-map", 0, step * 8, 512 * MIB) == [OK]
                assert app.ask("vmm-release", 0) == [OK]
        assert answers == [OK] * 2 + [OOM] * 8
        assert share.total == truth(container) == 1024 * MIB


# ---- external memory


def test_external_memory_is_charged_once(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        descriptor = exported(maker)
        assert other.ask("ext-import", 0, *descriptor, PIECE) == [OK, 1]
        assert other.ask("ext-import", 1, *descriptor, PIECE) == [OK, 1]
        assert share.total == truth(container) == PIECE
        assert maker.ask("vmm-close", descriptor[1]) == [OK]
        assert maker.ask("vmm-release", 0) == [OK]
        assert other.ask("ext-destroy", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert other.ask("ext-destroy", 1) == [OK]
        assert share.total == truth(container) == 0


def test_what_is_mapped_of_external_memory_keeps_it(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        descriptor = exported(maker)
        assert other.ask("ext-import", 0, *descriptor, PIECE) == [OK, 1]
        assert other.ask("ext-map", 0, 0, PIECE) == [OK]
        assert other.ask("ext-map", 0, 1, BLOCK) == [OK]
        assert other.ask("ext-mip", 0, 0) == [OK]
        maker.kill()
        for command in ("ext-destroy", "ext-free", "ext-mip-free"):
            assert other.ask(command, 0) == [OK]
            assert other.ask("vmm-create", 0, LIMIT) == [OOM, 0]
            assert share.total == truth(container) == PIECE
        assert other.ask("ext-free", 1) == [OK]
        assert share.total == truth(container) == 0


def test_external_memory_of_others_is_charged_here(container: Container) -> None:
    ours = container.share(PIECE)
    elsewhere = Container(container.folder / "elsewhere", container.state)
    elsewhere.share(LIMIT)
    with applications(elsewhere, 1) as (maker,), applications(container, 1) as (other,):
        descriptor = exported(maker)
        assert other.ask("ext-import", 0, *descriptor, PIECE) == [OK, 1]
        assert ours.total == PIECE
        assert other.ask("ext-import", 1, *descriptor, PIECE) == [OOM, 0]
        assert other.ask("ext-destroy", 0) == [OK]
        assert ours.total == 0


def test_external_memory_goes_with_its_context(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 2) as (maker, other):
        descriptor = exported(maker)
        assert other.ask("ctx-create", 1) == [OK]
        assert other.ask("ext-import", 0, *descriptor, PIECE) == [OK, 1]
        assert other.ask("ext-map", 0, 0, PIECE) == [OK]
        assert other.ask("ext-destroy", 0) == [OK]
        maker.kill()
        assert other.ask("ctx-destroy", 1) == [OK]
        assert share.total == truth(container) == 0


# ---- dma-bufs


# ---- arrays and multicast groups that hold memory


def test_memory_mapped_to_an_array_stays_charged(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        assert app.ask("tile-array", 0) == [OK]
        for handle, command in ((0, "tile-map"), (1, "tile-map-ptsz")):
            assert app.ask("vmm-create", handle, BLOCK) == [OK, 1]
            assert app.ask(command, 0, handle, handle) == [OK]
            assert app.ask("vmm-release", handle) == [OK]
        assert share.total == truth(container) == 2 * BLOCK
        assert app.ask("tile-unmap", 0, 0, 0) == [OK]
        assert share.total == truth(container) == BLOCK
        assert app.ask("vmm-create", 2, BLOCK) == [OK, 1]
        assert app.ask("tile-map", 0, 2, 1) == [OK]
        assert app.ask("vmm-release", 2) == [OK]
        assert share.total == truth(container) == BLOCK
        assert app.ask("tile-destroy", 0) == [OK]
        assert share.total == truth(container) == 0


def test_memory_bound_to_a_multicast_group_stays_charged(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        assert app.ask("mc-create", 9, LIMIT) == [OK]
        assert share.total == 0
        for handle, command in enumerate(("mc-bind", "mc-bind2", "mc-bind-at", "mc-bind-at2")):
            assert app.ask("vmm-create", handle, BLOCK) == [OK, 1]
            assert app.ask("vmm-map", handle, handle, BLOCK) == [OK]
            assert app.ask(command, 9, handle, handle * BLOCK, BLOCK) == [OK]
            assert app.ask("vmm-release", handle) == [OK]
            assert app.ask("vmm-unmap", handle, BLOCK) == [OK]
        assert share.total == truth(container) == 4 * BLOCK
        assert app.ask("mc-unbind", 9, BLOCK, BLOCK) == [OK]
        assert share.total == truth(container) == 3 * BLOCK
        assert app.ask("vmm-map", 9, 9, LIMIT) == [OK]
        assert app.ask("vmm-release", 9) == [OK]
        assert share.total == truth(container) == 3 * BLOCK
        assert app.ask("vmm-unmap", 9, LIMIT) == [OK]
        assert share.total == truth(container) == 0


def test_calls_that_fail_change_nothing(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        assert app.ask("vmm-export", 9)[0] == INVALID
        assert app.ask("vmm-import-own", 0, 0)[0] == INVALID
        assert app.ask("ext-destroy", 3) == [INVALID]
        assert app.ask("mc-bind", 3, 4, 0, BLOCK) == [INVALID]
        assert app.ask("mc-unbind", 3, 0, BLOCK) == [INVALID]
        assert app.ask("dma-pointer", 4096, BLOCK)[0] == INVALID
        assert (share.total, share.denied) == (0, 0)


def test_what_no_front_marked_is_charged_when_it_is_mapped(container: Container) -> None:
    """Its size is not known before; only here a mapping can be refused."""
    share = container.share(PIECE)
    bare = Container(container.folder / "bare", container.state, fronts=LIBDIR)
    with applications(bare, 1) as (maker,), applications(container, 1) as (app,):
        descriptor = exported(maker)
        for handle in range(2):
            assert app.ask("vmm-import", handle, *descriptor) == [OK, 1]
        assert app.ask("vmm-map", 0, 0, PIECE) == [OK]
        assert app.ask("vmm-map", 0, 1, PIECE) == [OK]
        assert share.total == PIECE
        assert app.ask("vmm-map", 1, 2, PIECE) == [OOM]
        for place in range(2):
            assert app.ask("vmm-unmap", place, PIECE) == [OK]
        assert share.total == PIECE
        for handle in range(2):
            assert app.ask("vmm-release", handle) == [OK]
        assert (share.total, share.denied) == (0, 1)
