"""How a share is held to its limits: one Protocol, and one registry of those who fulfil it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from apportion.container import DriverFiles, Edits, Mount
from apportion.cores.slots import Slot
from apportion.model import Allowance, Charge, GpuUuid, Share, ShareKey, Usage


class Mps(Protocol):
    """Keeps MPS daemons; `mps.supervisor` does."""

    def require(self, uuid: GpuUuid) -> None:
        """Return when programs can use the GPU's daemon. Raises EnforcementError."""

    def mount(self, uuid: GpuUuid) -> Mount:
        """Return what a container with a share on the GPU gets."""

    def may_serve(self, uuid: GpuUuid) -> bool:
        """Return whether there may be shares on the GPU that need its daemon."""


class Enforcer(Protocol):
    """Puts the limits of a share where its containers find them, and proves that they bind."""

    @property
    def build(self) -> str:
        """Identity of the libraries in use; a record names it, so that they stay that long."""

    def check(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Return only when shares are enforced here with this driver; cheap once proven.

        Installs what is missing and runs the self-test on GPU `uuid` when the libraries or the
        driver are not those of the last good test. Where that cannot be finished since the GPU's
        memory is in use, it returns all the same, for what runs already; `prepare` then refuses
        what is new, and later calls try again.

        Raises:
            EnforcementError: a library is missing or the test failed: nothing may be prepared.
            StorageError: the libraries could not be installed.
        """

    def probe(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Run the self-test on GPU `uuid`, whatever was tested before. Raises as `check`."""

    def common_edits(self, files: DriverFiles) -> Edits:
        """Return what every container gets, also one with whole cards only."""

    def front_edits(self, files: DriverFiles) -> Edits:
        """Return what a container with a share gets over that, whatever its shares are.

        Nothing of `common_edits` may lie at a place of these.
        """

    def agree(self, shares: Sequence[Share]) -> None:
        """Return when one container can have these shares together.

        Raises:
            EnforcementError: it cannot.
        """

    def share_edits(self, share: Share) -> Edits:
        """Return what a container gets for this share alone."""

    def prepare(self, share: Share) -> bool:
        """Put the share's limits in force; return whether that made something new.

        What is in force already with the same limits stays as it is, open files included.

        Raises:
            EnforcementError: other limits are in force under this key, or the self-test could not
                be finished yet and nothing is in force.
            StorageError: the files could not be made.
        """

    def verify(self, share: Share) -> None:
        """Return when the limits in force are the share's own and whole; change nothing.

        Raises:
            EnforcementError: they are missing, damaged, or say something else.
            StorageError: they cannot be read.
        """

    def restore(self) -> Mapping[ShareKey, str]:
        """Mend what can be mended under running containers; return what was wrong, by share.

        Brings what is in force in line with settings that changed, too.

        Raises:
            StorageError: it could not be read or written.
        """

    def lend(self) -> float:
        """Let shares that may burst use what nobody does, for a moment.

        Returns:
            Seconds after which it wants to be called again.

        Raises:
            StorageError: it could not be read or written.
        """

    def slot(self, key: ShareKey) -> Slot | None:
        """Return the share's part of its GPU's period, None where it has none."""

    def remove(self, key: ShareKey) -> None:
        """Take the share's limits away; nothing there is success. Raises StorageError."""

    def in_use(self, key: ShareKey) -> bool:
        """Return whether a process lives that has charged memory to the share, freed or not.

        One that has not allocated yet is not seen.
        """

    def share_keys(self) -> tuple[ShareKey, ...]:
        """Return all shares that have something here, half-made ones included, sorted."""

    def allowances(self) -> tuple[Allowance, ...]:
        """Return what is in force now, by share key."""

    def usage(self, key: ShareKey) -> Usage:
        """Return what the share's processes hold. Raises StateError or StorageError."""

    def charges(self, key: ShareKey) -> tuple[Charge, ...]:
        """Return what is on record of each live process. Raises StateError or StorageError."""

    def sweep(self, keep: frozenset[str]) -> None:
        """Remove libraries of builds that are neither in `keep` nor in use by this process."""
