"""What an application is told: the share, by CUDA and NVML alike."""

from __future__ import annotations

from dataclasses import replace

from tests.shim.support import BLOCK, MIB, OK, Container, uuid

LIMIT = 64 * MIB
UNKNOWN_VERSION = 13  # of a structure; as driver 580 says it


def agree(numbers: list[int], free: int, total: int) -> None:
    """Check an answer of `nvml`: results, then v1 total/free/used, then v2."""
    assert numbers[:4] == [OK, OK, OK, UNKNOWN_VERSION]
    assert numbers[4:7] == [total, free, total - free]
    assert numbers[7:] == [total, 0, free, total - free]


def test_cuda_and_nvml_agree(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        for held in range(0, LIMIT, 10 * MIB):
            assert app.info() == (LIMIT - held, LIMIT)
            agree(app.ask("nvml", 0), LIMIT - held, LIMIT)
            if held + 10 * MIB <= LIMIT:
                assert app.alloc(10 * MIB) == OK


def test_what_is_free_can_be_allocated(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as app:
        assert app.ask("fill", 3 * MIB, 7) == [OK, 7]
        free, _ = app.info()
        assert app.alloc(free) == OK
        assert app.info() == (0, LIMIT)


def test_both_processes_see_the_same(container: Container) -> None:
    container.share(LIMIT)
    with container.client().start() as one, container.client().start() as two:
        assert one.alloc(10 * MIB) == OK
        assert one.info() == two.info() == (LIMIT - 10 * MIB, LIMIT)
        assert one.ask("nvml", 0) == two.ask("nvml", 0)


def test_a_neighbour_moves_nothing(container: Container) -> None:
    container.share(LIMIT)
    other = replace(container, shares=[], folder=container.folder / "other")
    other.share(2 * LIMIT, key="neighbour")
    with container.client().start() as app, other.client().start() as neighbour:
        before = app.info(), app.ask("nvml", 0)
        assert neighbour.alloc(2 * LIMIT) == OK
        assert (app.info(), app.ask("nvml", 0)) == before


def test_each_card_speaks_of_its_share(container: Container) -> None:
    container.share(LIMIT)
    container.share(2 * LIMIT, gpu=uuid(1))
    with container.client().start() as app:
        assert app.alloc(BLOCK) == OK
        agree(app.ask("nvml", 0), LIMIT - BLOCK, LIMIT)
        agree(app.ask("nvml", 1), 2 * LIMIT, 2 * LIMIT)
        assert app.ask("total", 0) == [OK, LIMIT]
        assert app.ask("total", 1) == [OK, 2 * LIMIT]


def test_free_is_never_more_than_the_card_has(container: Container) -> None:
    """Two shares that the plugin would never grant together: the card's truth wins."""
    container.share(12 << 30)
    other = replace(container, shares=[], folder=container.folder / "other")
    other.share(12 << 30, key="neighbour")
    with container.client().start() as app, other.client().start() as neighbour:
        assert neighbour.alloc(10 << 30) == OK
        free, total = app.info()
        assert total == 12 << 30
        assert free < 5 << 30
        assert app.alloc(free + (1 << 30)) != OK


def test_nvidia_smi_shows_the_share(container: Container) -> None:
    container.share(4 << 30)
    container.share(4 << 30, gpu=uuid(1))
    smi = container.driver.parents[2] / "usr" / "bin" / "nvidia-smi"
    assert "0MiB /  4096MiB" in container.run(str(smi)).replace("0MiB / 4096MiB", "0MiB /  4096MiB")
