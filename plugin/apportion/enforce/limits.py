"""The `limits` file of a share: what the front libraries obey, as shim's limits.h says. Pure."""

from __future__ import annotations

import re

from apportion.model import Allowance, Capacity, GpuUuid, Share, ShareKey

FIRST_LINE = "apportion-limits 1"

_KEYS = ("share", "uuid", "memory", "cores", "cores-policy")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_MAX_CORES = 100


def render(share: Share) -> bytes:
    """Return the file's content for a share."""
    values = (
        share.key,
        share.uuid,
        str(share.capacity.memory),
        str(share.capacity.cores),
        share.policy.value,
    )
    lines = [f"{key} {value}" for key, value in zip(_KEYS, values, strict=True)]
    return "".join(f"{line}\n" for line in (FIRST_LINE, *lines)).encode()


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
    if len(found) != len(pairs) or set(found) != set(_KEYS):
        raise ValueError(f"it must have each of {', '.join(_KEYS)} once")
    if not _NUMBER.fullmatch(found["memory"]) or not _NUMBER.fullmatch(found["cores"]):
        raise ValueError("memory or cores is not a number")
    capacity = Capacity(cores=int(found["cores"]), memory=int(found["memory"]))
    if capacity.cores > _MAX_CORES:
        raise ValueError(f"cores is above {_MAX_CORES}")
    return Allowance(ShareKey(found["share"]), GpuUuid(found["uuid"]), capacity)
