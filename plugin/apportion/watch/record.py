"""What is known of the GPUs' health, as a file. Pure.

Written by every version of the plugin for every other: fields are added, never renamed; unknown
ones are passed over. One of a later version is read as far as it can be, so that a plugin that is
rolled back forgets no Xid.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion.errors import StateError
from apportion.model import Gpu, GpuUuid
from apportion.watch.condition import Condition, Conditions, Level, Reason, add

VERSION = 1
FILE = "health.json"
"""Its name in the plugin's folder."""

_PAIRS = ("cuda_driver_version", "compute_capability")


@dataclass(frozen=True, slots=True)
class Known:
    """One GPU: how it was last read, None where that is not known, and what is wrong with it."""

    gpu: Gpu | None = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class Record:
    """All of them.

    Attributes:
        boot: boot ID of the node at which it was written.
        driver: what tells one start of the driver from another, empty where nothing does.
        gpus: by UUID.
    """

    boot: str = ""
    driver: str = ""
    gpus: Mapping[GpuUuid, Known] = field(default_factory=dict)


def dump(record: Record) -> bytes:
    """Return the file's content."""
    content = {
        "version": VERSION,
        "boot": record.boot,
        "driver": record.driver,
        "gpus": [
            {
                "uuid": uuid,
                "gpu": None if known.gpu is None else dataclasses.asdict(known.gpu),
                "conditions": [_plain(condition) for condition in known.conditions],
            }
            for uuid, known in sorted(record.gpus.items())
        ],
    }
    return (json.dumps(content, sort_keys=True) + "\n").encode()


def load(data: bytes) -> Record:
    """Return what a file says.

    Raises:
        StateError: it is damaged, or of a later version that cannot be read as this one.
    """
    try:
        content = json.loads(data)
        version = content["version"]
        if type(version) is not int or version < VERSION:
            raise StateError(f"damaged health record: {version!r} is no version")
        gpus = {GpuUuid(str(entry["uuid"])): _known(entry) for entry in content["gpus"]}
        return Record(str(content["boot"]), str(content["driver"]), gpus)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"damaged health record: {type(error).__name__}: {error}") from error


def _plain(condition: Condition) -> dict[str, Any]:
    return {
        "reason": str(condition.reason),
        "level": condition.level.name,
        "since": condition.since,
        "text": condition.text,
        "number": condition.number,
    }


def _known(entry: dict[str, Any]) -> Known:
    return Known(_gpu(entry.get("gpu")), add((), [_condition(c) for c in entry["conditions"]]))


def _condition(content: dict[str, Any]) -> Condition:
    reason = content["reason"]
    if reason not in set(Reason):
        # Of a newer version: something is wrong, and it stays so until the GPU has proven itself.
        reason = Reason.UNREADABLE
    return Condition(
        Reason(reason),
        Level[content["level"]] if content["level"] in Level.__members__ else Level.FAULT,
        int(content["since"]),
        str(content["text"]),
        int(content["number"]),
    )


def _gpu(content: Any) -> Gpu | None:
    """Return the GPU; None for one described otherwise than this version does."""
    names = {item.name for item in dataclasses.fields(Gpu)}
    if not isinstance(content, dict) or not names <= content.keys():
        return None
    found = {name: content[name] for name in names}
    return Gpu(**found | {name: tuple(found[name]) for name in _PAIRS})
