from __future__ import annotations

import pytest
from apportion.enforce import limits
from apportion.model import Allowance, Capacity, CoresPolicy, DeviceName, GpuUuid, Share, ShareKey

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
)


def test_the_file_is_what_the_shim_reads() -> None:
    assert limits.render(SHARE).decode() == TEXT


def test_what_is_written_is_read() -> None:
    assert limits.parse(TEXT.encode()) == Allowance(SHARE.key, UUID, SHARE.capacity)


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
    ],
)
def test_what_the_shim_refuses_allows_nothing(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=r"."):
        limits.parse(TEXT.replace(old, new).encode())
