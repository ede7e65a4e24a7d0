from __future__ import annotations

from dataclasses import replace

import pytest
from apportion.enforce import limits
from apportion.model import (
    ADMIN,
    WHOLE,
    Access,
    Allowance,
    Capacity,
    CoresMode,
    CoresPolicy,
    DeviceName,
    GpuUuid,
    Share,
    ShareKey,
)

UUID = GpuUuid("GPU-11111111-0000-4000-8000-000000000001")
SHARE = Share(
    ShareKey("uid-0"),
    "gpu",
    "node",
    DeviceName("gpu-0"),
    "s",
    UUID,
    Capacity(cores=30, memory=4 << 30),
    CoresPolicy.BURST,
)
TEXT = (
    "apportion-limits 1\n"
    "share uid-0\n"
    f"uuid {UUID}\n"
    "memory 4294967296\n"
    "cores 30\n"
    "cores-policy burst\n"
    "cores-mode timeslice\n"
)
OLD = TEXT.replace("cores-mode timeslice\n", "")


def test_the_file_is_what_the_shim_reads() -> None:
    assert limits.render(SHARE, CoresMode.TIMESLICE).decode() == TEXT
    assert limits.render(SHARE, None).decode() == OLD


def test_what_is_written_is_read() -> None:
    burst, timeslice = CoresPolicy.BURST, CoresMode.TIMESLICE
    assert limits.parse(TEXT.encode()) == Allowance(
        SHARE.key, UUID, SHARE.capacity, burst, timeslice
    )


def test_a_file_of_a_plugin_that_did_not_hold_cores_says_so_by_silence() -> None:
    found = limits.parse(OLD.encode())
    assert found == Allowance(SHARE.key, UUID, SHARE.capacity, CoresPolicy.BURST, CoresMode.NONE)


@pytest.mark.parametrize("mode", CoresMode)
def test_a_shares_file_is_known_whatever_the_mode_it_was_made_in(mode: CoresMode) -> None:
    assert limits.mode_of(limits.render(SHARE, mode), SHARE) is mode
    assert limits.mode_of(OLD.encode(), SHARE) is CoresMode.NONE
    for other in (None, b"", OLD.encode()[:-1], TEXT.replace("cores 30", "cores 31").encode()):
        assert limits.mode_of(other, SHARE) is None


@pytest.mark.parametrize(
    ("access", "cores", "allowed"), [(Access.WHOLE, 100, WHOLE), (Access.ADMIN, 0, ADMIN)]
)
def test_a_whole_card_is_held_to_nothing_that_a_gpu_could_have(
    access: Access, cores: int, allowed: Capacity
) -> None:
    data = limits.render(replace(SHARE, access=access), CoresMode.NONE)
    assert f"memory {1 << 50}\ncores {cores}\n" in data.decode()
    assert limits.parse(data) == Allowance(SHARE.key, UUID, allowed, CoresPolicy.BURST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("apportion-limits 1", "apportion-limits 2"),
        ("burst\n", "burst"),
        ("memory 4294967296", "memory  4294967296"),
        ("memory 4294967296", "memory 04294967296"),
        ("memory 4294967296", "memory -1"),
        ("memory 4294967296", "memory 99999999999999999999"),
        ("cores 30", "cores 101"),
        ("cores 30", "cores +30"),
        ("cores 30\n", ""),
        ("cores 30\n", "cores 30\ncores 40\n"),
        ("cores 30\n", "cores 30\ncolour red\n"),
        ("share uid-0", "share ü"),
        ("policy burst", "policy all"),
        ("mode timeslice", "mode all"),
        ("mode timeslice\n", "mode timeslice\ncores-mode none\n"),
    ],
)
def test_what_the_shim_refuses_allows_nothing(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=r"."):
        limits.parse(TEXT.replace(old, new).encode())
