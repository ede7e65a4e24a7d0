"""Modules, libraries, limits and streams: device memory without an allocation call."""

from __future__ import annotations

import shutil

import pytest

from tests.fakes.fakegpu import FakeDriver
from tests.shim.overhead import CONTEXT, CONTEXT_MIB, LIMIT, agree, truth
from tests.shim.support import BLOCK, INVALID, MIB, OK, OOM, REPO, Client, Container, Share, uuid

IMAGES = REPO / "tests" / "shim" / "fuzz" / "corpus" / "image"
STACK, HEAP = 0, 2
THREADS = 40 * 1024
"""That a simulated T4 runs at once."""


@pytest.fixture
def context_mib() -> int:
    return CONTEXT_MIB


@pytest.fixture
def share(container: Container) -> Share:
    return container.share(LIMIT)


def test_a_modules_variables_are_charged(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("code-module", 0, 1) == [OK, 1]
        assert app.ask("code-module", 100 * MIB, 2) == [OK, 1]
        assert agree(container, share) == CONTEXT + 100 * MIB
        assert app.ask("code-module", 100 * MIB, 3) == [OOM, 0]
        assert agree(container, share) == CONTEXT + 100 * MIB
        assert share.denied == 1
        assert app.ask("code-unload", 2) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.ask("code-module", 100 * MIB, 3) == [OK, 1]


@pytest.mark.parametrize("way", ["module", "function", "launch"])
def test_a_library_is_charged_when_it_is_used(container: Container, share: Share, way: str) -> None:
    with container.client().start() as app:
        assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
        assert agree(container, share) == CONTEXT
        assert app.ask(f"code-library-{way}", 1) == [OK]
        noticed(app)
        assert agree(container, share) == CONTEXT + 100 * MIB
        assert app.alloc(80 * MIB) == OOM
        assert app.ask("code-library-unload", 1) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.alloc(LIMIT - CONTEXT) == OK


@pytest.mark.parametrize("way", ["module", "function"])
def test_a_library_that_is_loaded_anew_is_charged_anew(
    container: Container, share: Share, way: str
) -> None:
    with container.client().start() as app:
        for _ in range(3):
            assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
            for _ in range(3):
                assert app.ask(f"code-library-{way}", 1) == [OK]
                assert agree(container, share) == CONTEXT + 100 * MIB
            assert app.ask("code-library-unload", 1) == [OK]
            assert agree(container, share) == CONTEXT


def noticed(app: Client) -> None:
    """Ask for memory information until a tenth of a second has passed since the driver was asked.

    Launches are not watched; what they take is found by the next call that asks for memory.
    """
    free, _ = app.info()
    for _ in range(200_000):
        if app.info()[0] != free:
            return


def test_what_a_launch_took_is_charged_by_who_only_synchronises(
    container: Container, share: Share
) -> None:
    with container.client().start() as app:
        assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
        assert app.alloc(LIMIT - CONTEXT) == OK
        assert app.ask("code-library-launch", 1) == [OK]
        for _ in range(200_000):
            assert app.ask("code-sync") == [OK]
            if share.total > LIMIT:
                break
        assert agree(container, share) == LIMIT + 100 * MIB
        assert app.alloc(1) == OOM


def test_what_was_loaded_once_is_not_looked_at_again(container: Container, share: Share) -> None:
    """PyTorch asks for a kernel's function at every launch: it must not ask NVML each time."""
    driver = FakeDriver(container.state)
    with container.client().start() as app:
        assert app.ask("code-library", 10 * MIB, 1) == [OK, 1]
        assert app.ask("code-lazy-module", 10 * MIB, 1) == [OK, 1]
        for way in ("code-library-function", "code-get-function"):
            driver.count("nvmlDeviceGetComputeRunningProcesses")
            assert app.ask(way, 1)[0] == OK
            looks = driver.counted
            assert looks > 0
            for _ in range(50):
                assert app.ask(way, 1)[0] == OK
            assert driver.counted == looks
        assert agree(container, share) == CONTEXT + 20 * MIB
        assert app.ask("code-library-unload", 1) == [OK]
        driver.count("nvmlDeviceGetComputeRunningProcesses")
        assert app.ask("code-get-function", 1)[0] == OK
        assert driver.counted > 0


def test_a_library_that_is_loaded_at_once_is_refused(container: Container, share: Share) -> None:
    with container.client(env={"CUDA_MODULE_LOADING": "EAGER"}).start() as app:
        assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
        assert agree(container, share) == CONTEXT + 100 * MIB
        assert app.ask("code-library", 100 * MIB, 2) == [OOM, 0]
        assert agree(container, share) == CONTEXT + 100 * MIB


@pytest.mark.parametrize("way", ["module", "function", "global"])
def test_what_a_library_says_of_its_variables_is_refused_before_it_is_loaded(
    container: Container, share: Share, way: str
) -> None:
    with container.client().start() as app:
        assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
        assert app.ask("code-library", MIB, 2) == [OK, 1]
        assert app.ask("code-library", 99 * MIB + 1, 3) == [OK, 1]
        for denied in (1, 2):
            assert app.ask("code-library-module", 1) == [OK]
            assert app.ask(f"code-library-{way}", 3) == [OOM]
            assert share.denied == denied
            assert agree(container, share) == CONTEXT + 100 * MIB
            assert app.ask(f"code-library-{way}", 2) == [OK]
            assert agree(container, share) == CONTEXT + 100 * MIB + BLOCK
            # It is there by now: asking for more of it takes nothing, and needs no room.
            assert app.ask("code-library-function", 1) == [OK]
            assert app.ask("code-library-global", 1) == [OK]
            # In a new context it must come again.
            assert app.ask("reset", 0) == [OK]
            app.start()
        assert app.ask("code-library-unload", 1) == [OK]
        assert app.ask(f"code-library-{way}", 3) == [OK]
        assert share.peak <= LIMIT


@pytest.mark.parametrize("way", [1, 2, 3, 4])
def test_what_a_module_says_of_its_variables_is_refused_before_it_is_loaded(
    container: Container, share: Share, way: int
) -> None:
    def load(size: int, number: int) -> list[int]:
        text = f".version 6.4\n.global .align 8 .b8 big[{size}];\n"
        container.state.joinpath("image").write_text(text)
        return app.ask(f"code-module-way{way}", size, number)

    with container.client().start() as app:
        assert load(60 * MIB, 1) == [OK, 1]
        assert load(120 * MIB, 2) == [OOM, 0]
        assert load(30 * MIB, 3) == [OK, 1]
        assert agree(container, share) == CONTEXT + 90 * MIB
        assert (share.peak, share.denied) == (CONTEXT + 90 * MIB, 1)


def test_a_library_from_a_file_says_the_same(container: Container, share: Share) -> None:
    container.state.joinpath("image").write_text(
        f".version 6.4\n.global .align 8 .b8 big[{110 * MIB}];\n"
    )
    with container.client().start() as app:
        assert app.ask("code-library-file", 1) == [OK, 1]
        assert app.ask("code-library-file", 2) == [OK, 1]
        assert app.ask("code-library-module", 1) == [OK]
        assert app.ask("code-library-module", 2) == [OOM]
        assert agree(container, share) == share.peak == CONTEXT + 110 * MIB


@pytest.mark.parametrize("name", ["fatbin-zstd", "fatbin-several-lz4"])
def test_a_compressed_fat_binary_says_it_for_this_card(
    container: Container, share: Share, name: str
) -> None:
    """For a T4 it has 8 MiB of variables; for an A100, which is not here, 12 MiB."""
    shutil.copy(IMAGES / name, container.state / "image")
    with container.client().start() as app:
        assert app.ask("code-library", LIMIT - CONTEXT - 8 * MIB, 1) == [OK, 1]
        assert app.ask("code-library-module", 1) == [OK]
        assert app.ask("code-module-way4", 0, 2) == [OK, 1]
        assert app.ask("code-library", 2 * MIB, 2) == [OK, 1]
        assert app.ask("code-library-module", 2) == [OK]
        assert app.ask("code-module-way4", 0, 3) == [OOM, 0]
        assert share.denied == 1


def test_where_nvml_does_not_tell_what_an_image_says_is_no_charge(
    container: Container, share: Share
) -> None:
    FakeDriver(container.state).inject(None, "nvmlDeviceGetComputeRunningProcesses", 999)
    with container.client().start() as app:
        assert app.ask("code-module", 100 * MIB, 1) == [OK, 1]
        assert app.ask("code-library", 100 * MIB, 1) == [OK, 1]
        assert app.ask("code-library-module", 1) == [OK]
        assert app.alloc(LIMIT) == OK
        assert share.total == LIMIT


@pytest.mark.parametrize("way", ["module", "function"])
def test_what_cannot_be_undone_is_refused_and_stops_all_that_follows(
    container: Container, share: Share, way: str
) -> None:
    with container.client().start() as app, container.client().start() as other:
        assert app.ask("code-library-hidden", LIMIT, 1) == [OK, 1]
        assert app.ask("code-library", MIB, 2) == [OK, 1]
        assert app.ask(f"code-library-{way}", 1) == [OOM]
        assert agree(container, share) == LIMIT + 2 * CONTEXT
        assert other.alloc(1) == app.alloc(1) == OOM
        assert other.info() == (0, LIMIT)
        for again in ("code-library-module", "code-library-function"):
            assert app.ask(again, 2) == [OOM]
        assert app.ask("code-library", MIB, 3) == [OOM, 0]
        assert agree(container, share) == LIMIT + 2 * CONTEXT
        assert app.ask("code-library-unload", 1) == [OK]
        assert app.ask("code-library-module", 2) == [OK]
        assert app.ask("code-library-unload", 2) == [OK]
        assert other.alloc(LIMIT - 2 * CONTEXT) == OK
        assert agree(container, share) == LIMIT


@pytest.mark.parametrize("way", ["function", "global"])
def test_a_module_that_loads_lazily_is_charged_when_it_is_asked(
    container: Container, share: Share, way: str
) -> None:
    with container.client().start() as app:
        for _ in range(2):
            assert app.ask("code-lazy-module", 100 * MIB, 1) == [OK, 1]
            assert agree(container, share) == CONTEXT
            for _ in range(2):
                assert app.ask(f"code-get-{way}", 1) == [OK, 1]
                assert agree(container, share) == CONTEXT + 100 * MIB
            assert app.ask("code-unload", 1) == [OK]
            assert agree(container, share) == CONTEXT
        assert app.ask("code-lazy-module", LIMIT, 1) == [OOM, 0]
        assert app.ask("code-lazy-module", 100 * MIB, 1) == [OK, 1]
        assert app.alloc(LIMIT - CONTEXT) == OK
        assert app.ask(f"code-get-{way}", 1) == [OOM, 0]
        assert agree(container, share) == LIMIT + 100 * MIB
        assert app.alloc(1) == OOM


def test_one_card_over_its_limit_stops_no_code_on_another(
    container: Container, share: Share
) -> None:
    other = container.share(LIMIT, gpu=uuid(1))
    with container.client().start() as app:
        assert app.ask("code-library", MIB, 2) == [OK, 1]
        assert app.ask("code-library-hidden", LIMIT, 1) == [OK, 1]
        assert app.ask("code-library-module", 1) == [OOM]
        assert share.total == LIMIT + CONTEXT
        assert app.ask("start", 1) == [OK]
        for _ in range(2):
            assert app.ask("code-library-module", 2) == [OK]
            assert app.ask("code-library-function", 2) == [OK]
        assert other.total == truth(container, 1) == CONTEXT + BLOCK
        assert app.ask("start", 0) == [OK]
        assert app.ask("code-library-module", 2) == [OOM]


def test_a_stack_limit_is_charged_for_all_threads(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("code-limit", STACK, 1024 + 2048) == [OK]
        assert agree(container, share) == CONTEXT + 2048 * THREADS
        assert app.ask("code-limit", STACK, 16384) == [OOM]
        assert agree(container, share) == CONTEXT + 2048 * THREADS
        assert app.ask("code-limit", STACK, 1024) == [OK]
        assert agree(container, share) == CONTEXT
        assert app.ask("code-limit", STACK, 1024 + 4096) == [OK]


def test_a_heap_is_charged_when_it_is_allowed(container: Container, share: Share) -> None:
    with container.client().start() as app:
        assert app.ask("code-limit", HEAP, 300 * MIB) == [OOM]
        assert share.total == CONTEXT
        assert app.ask("code-limit", HEAP, 100 * MIB) == [OK]
        assert share.total == CONTEXT + 102 * MIB
        assert app.ask("code-limit", HEAP, 60 * MIB) == [OK]
        assert share.total == CONTEXT + 62 * MIB
        assert app.ask("code-heap-module", 0, 1) == [OK, 1]
        assert app.ask("code-launch", 1) == [OK]
        noticed(app)
        assert agree(container, share) == CONTEXT + 62 * MIB
        assert app.ask("code-limit", HEAP, 10 * MIB) == [INVALID], "it is fixed once it is used"
        assert agree(container, share) == CONTEXT + 62 * MIB
        assert app.ask("release", 0) == [OK]
        assert agree(container, share) == 0


def test_a_heap_that_was_never_used_goes_with_its_context(
    container: Container, share: Share
) -> None:
    with container.client().start() as app:
        assert app.ask("code-context", 2, 1) == [OK, 1]
        assert app.ask("code-limit", HEAP, 60 * MIB) == [OK]
        assert app.ask("code-destroy", 1) == [OK]
        assert agree(container, share) == CONTEXT


def test_streams_of_green_contexts_are_charged(container: Container, share: Share) -> None:
    FakeDriver(container.state).set_option(0, "stream_mib", "20")
    with container.client().start() as app:
        assert app.ask("code-green", 1) == [OK, 1]
        before = agree(container, share)
        for count in range(1, 9):
            assert app.ask("code-green-stream", 1) == [OK, 1]
            assert agree(container, share) == before + count * 20 * MIB
        assert app.ask("code-green-stream", 1) == [OOM, 0]
        assert share.total == truth(container)


def test_streams_are_charged_and_stay_with_their_context(
    container: Container, share: Share
) -> None:
    FakeDriver(container.state).set_option(0, "stream_mib", "2")
    with container.client().start() as app:
        assert app.ask("code-streams", 10) == [OK, 10]
        assert agree(container, share) == CONTEXT + 20 * MIB
        assert app.ask("code-streams", 200) == [OOM, 75]
        assert share.total <= LIMIT + BLOCK
        assert share.total == truth(container)
        assert app.ask("reset", 0) == [OK]
        assert agree(container, share) == 0
