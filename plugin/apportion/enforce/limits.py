"""The `limits` file of a share: what the front libraries obey, as shim's limits.h says. Pure."""

from __future__ import annotations

import re

from apportion.model import (
    Allowance,
    Capacity,
    CoresMode,
    CoresPolicy,
    GpuUuid,
    Share,
    ShareKey,
)

FIRST_LINE = "apportion-limits 1"

_KEYS = ("share", "uuid", "memory", "cores", "cores-policy")
_MODE = "cores-mode"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_MAX_CORES = 100


def render(share: Share, mode: CoresMode | None) -> bytes:
    """Return the file's content for a share.

    Args:
        share: what it may take.
        mode: how its cores are held; None leaves that out, as plugins did that did not hold them.
    """
    values = (
        share.key,
        share.uuid,
        str(share.allowed.memory),
        str(share.allowed.cores),
        share.policy.value,
    )
    lines = [f"{key} {value}" for key, value in zip(_KEYS, values, strict=True)]
    if mode is not None:
        lines.append(f"{_MODE} {mode.value}")
    return "".join(f"{line}\n" for line in (FIRST_LINE, *lines)).encode()


def mode_of(data: bytes | None, share: Share) -> CoresMode | None:
    """Return how a file holds the share's cores, None unless the file is this share's.

    The mode is the one of the node's setting when the share was made; it stays for its life.
    """
    if not data:
        return None
    if data == render(share, None):
        return CoresMode.NONE
    return next((mode for mode in CoresMode if data == render(share, mode)), None)


def parse(data: bytes) -> Allowance:
    """Return what a limits file allows.

    Raises:
        ValueError: the front libraries would refuse it.
    """
    lines = data.decode("ascii").split("\n")
    if lines[0] != FIRST_LINE or lines[-1] != "":
        raise ValueError(f"it does not start with {FIRST_LINE!r} or its last line has no end")
    pairs = [line.split(" ") for line in lines[1:-1]]
    if any(len(pair) != len(("key", "value")) for pair in pairs):
        raise ValueError("a line is not a key, one space and a value")
    found = {key: value for key, value in pairs}  # noqa: C416 - pairs are lists
    if len(found) != len(pairs) or set(found) - {_MODE} != set(_KEYS):
        raise ValueError(f"it must have each of {', '.join(_KEYS)} once")
    if not _NUMBER.fullmatch(found["memory"]) or not _NUMBER.fullmatch(found["cores"]):
        raise ValueError("memory or cores is not a number")
    capacity = Capacity(cores=int(found["cores"]), memory=int(found["memory"]))
    if capacity.cores > _MAX_CORES:
        raise ValueError(f"cores is above {_MAX_CORES}")
    # Both raise ValueError for any other word.
    policy, mode = CoresPolicy(found["cores-policy"]), CoresMode(found.get(_MODE, CoresMode.NONE))
    return Allowance(ShareKey(found["share"]), GpuUuid(found["uuid"]), capacity, policy, mode)
