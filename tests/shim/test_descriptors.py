"""Memory that descriptors keep: dma-bufs, and what cannot be looked at is taken to be open."""

from __future__ import annotations

import subprocess

from tests.shim.support import INVALID, OK, OOM, WAIT_S, Client, Container
from tests.shim.test_imports import LIMIT, PIECE, applications, truth
from tests.shim.test_vmm_shared import exported


def inside(app: Client, script: str) -> None:
    """Run a script where the application sees its files."""
    entry = ["nsenter", "--mount", f"--target={app.process.pid}", "sh", "-ec", script]
    subprocess.run(entry, check=True, timeout=WAIT_S)


def test_a_descriptor_whose_device_cannot_be_opened_is_taken_to_be_open(
    container: Container,
) -> None:
    """The device has another path from now on; what was kept by the old one is not lost."""
    share = container.share(LIMIT)
    container.extra = (
        "mkdir /run/old /run/new; mount --bind /run/fakegpu /run/old; "
        "mount --bind /run/fakegpu /run/new; ln -s old /run/driver"
    )
    with container.client(env={"FAKEGPU_DIR": "/run/driver"}, program="families") as maker:
        assert maker.ask("start", 0) == [OK]
        _, descriptor = exported(maker)
        inside(maker, "ln -sfn new /run/driver; umount -l /run/old")
        assert maker.ask("vmm-close", descriptor) == [OK]
        assert maker.ask("vmm-release", 0) == [OK]
        assert (share.total, truth(container)) == (PIECE, 0)
        assert maker.ask("vmm-create", 0, LIMIT) == [OOM, 0]
        assert share.total == PIECE
        inside(maker, "mount --bind /run/new /run/old")
        assert maker.ask("vmm-create", 0, LIMIT) == [OK, 1]
        assert share.total == truth(container) == LIMIT


def test_a_dma_buf_keeps_the_charge_while_it_is_open(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        _, pointer = app.ask("alloc", 0, PIECE)
        result, descriptor = app.ask("dma-pointer", pointer, PIECE)
        assert result == OK
        assert app.ask("free", 0) == [OK]
        assert share.total == truth(container) == PIECE
        assert app.ask("alloc", 1, LIMIT)[0] == OOM
        assert app.ask("vmm-close", descriptor) == [OK]
        assert app.ask("alloc", 1, LIMIT)[0] == OK
        assert share.total == truth(container) == LIMIT


def test_a_dma_buf_of_mapped_memory(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        assert app.ask("vmm-create", 0, PIECE) == [OK, 1]
        assert app.ask("vmm-map", 0, 0, PIECE) == [OK]
        result, descriptor = app.ask("dma-range", 0, PIECE)
        assert result == OK
        assert app.ask("vmm-release", 0) == [OK]
        assert app.ask("vmm-unmap", 0, PIECE) == [OK]
        assert share.total == truth(container) == PIECE
        assert app.ask("vmm-close", descriptor) == [OK]
        assert app.ask("alloc", 0, LIMIT)[0] == OK


def test_a_dma_buf_is_taken_to_be_open_where_nobody_can_tell(container: Container) -> None:
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        _, pointer = app.ask("alloc", 0, PIECE)
        result, descriptor = app.ask("dma-pointer", pointer, PIECE)
        assert result == OK
        inside(app, "mount -t tmpfs none /proc")
        assert app.ask("vmm-close", descriptor) == [OK]
        assert app.ask("free", 0) == [OK]
        assert (share.total, truth(container)) == (PIECE, 0)
        assert app.ask("alloc", 1, LIMIT)[0] == OOM
        inside(app, "umount /proc")
        assert app.ask("alloc", 1, LIMIT)[0] == OK
        assert share.total == truth(container) == LIMIT


def test_a_closed_dma_buf_costs_nothing(container: Container) -> None:
    """As libraries do it: registered with a network card, closed, used, freed."""
    share = container.share(LIMIT)
    with applications(container, 1) as (app,):
        _, pointer = app.ask("alloc", 0, PIECE)
        result, descriptor = app.ask("dma-pointer", pointer, PIECE)
        assert (result, app.ask("vmm-close", descriptor)) == (OK, [OK])
        assert app.ask("free", 0) == [OK]
        assert share.total == truth(container) == 0
        assert app.ask("dma-pointer", pointer, PIECE)[0] == INVALID
