"""The file of one claim: our own versioned JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion.model import ClaimRef, PreparedDevice, Share


class State(enum.StrEnum):
    """How far a claim came."""

    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Record:
    """One prepared claim, or one that was being prepared when the plugin died.

    Attributes:
        boot: boot ID under which it was written.
        state: `started` until all its side effects are there.
        ref: the claim.
        pods: names of the pods it was reserved for.
        library: build of the front libraries at that time.
        shares: what it holds.
        devices: what kubelet was told; empty while started.
        extra: fields of a newer version, written back as they came.
    """

    boot: str
    state: State
    ref: ClaimRef
    pods: tuple[str, ...]
    library: str
    shares: tuple[Share, ...]
    devices: tuple[PreparedDevice, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
