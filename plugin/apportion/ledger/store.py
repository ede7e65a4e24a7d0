"""One file per claim under a lock: prove, write `started`, and after the side effects `completed`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from apportion.ledger.schema import Record
from apportion.model import (
    Allowance,
    Capacity,
    ClaimUid,
    GpuUuid,
    PreparedDevice,
    ResolvedClaim,
)


def boot_id(proc: Path) -> str:
    """Return the kernel's boot ID; every record of another one counts for nothing."""
    raise AssertionError("being written")


class Store:
    """The claims prepared on this node.

    Args:
        folder: the plugin's folder: `claims/` and `lock` lie there.
        boot: this boot's ID.
        allowances: what the share folders allow now (Enforcer.allowances).
    """

    def __init__(
        self, folder: Path, boot: str, allowances: Callable[[], Iterable[Allowance]]
    ) -> None:
        self.boot = boot

    def claim_lock(self, uid: ClaimUid, *, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the claim against other threads and plugins; gives whether it is held."""
        return contextlib.nullcontext(True)

    def get(self, uid: ClaimUid) -> Record | None:
        """Return the claim's record. A damaged file is moved aside, logged, and None here.

        Raises:
            StateError: written by a newer version.
        """
        raise AssertionError("being written")

    def begin(
        self, claim: ResolvedClaim, capacities: Mapping[GpuUuid, Capacity], library: str
    ) -> Record:
        """Prove that the claim's shares fit beside all others and write it down as started.

        Raises:
            OverCommitError: names GPU, asked, left, and the claims in the way.
        """
        raise AssertionError("being written")

    def commit(self, record: Record, devices: Sequence[PreparedDevice]) -> Record:
        """Write the record as completed, with what kubelet is told."""
        raise AssertionError("being written")

    def remove(self, uid: ClaimUid) -> None:
        """Forget the claim; unknown is success."""
        raise AssertionError("being written")

    def records(self) -> tuple[Record, ...]:
        """Return all readable records, of other boots too, by UID."""
        raise AssertionError("being written")

    def uids(self) -> frozenset[ClaimUid]:
        """Return all claims with a file here, readable or not."""
        raise AssertionError("being written")
