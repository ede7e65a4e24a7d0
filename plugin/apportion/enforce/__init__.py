"""How a share is held to its limits: one Protocol, and one registry of those who fulfil it."""

from __future__ import annotations

from typing import Protocol

from apportion.model import Allowance, Charge, DriverFiles, Edits, GpuUuid, Share, ShareKey, Usage


class Enforcer(Protocol):
    """Puts the limits of a share where its containers find them, and proves that they bind."""

    @property
    def build(self) -> str:
        """Identity of the libraries in use; a record names it, so that they stay that long."""

    def check(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Return only when shares are enforced here with this driver; cheap once proven.

        Installs what is missing and runs the self-test on GPU `uuid` when the libraries or the
        driver are not those of the last good test.

        Raises:
            EnforcementError: a library is missing or the test failed: nothing may be prepared.
            StorageError: the libraries could not be installed.
        """

    def probe(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Run the self-test on GPU `uuid`, whatever was tested before. Raises as `check`."""

    def driver_edits(self, files: DriverFiles) -> Edits:
        """Return what every container with a share gets, whatever its shares are."""

    def share_edits(self, share: Share) -> Edits:
        """Return what a container gets for this share alone."""

    def prepare(self, share: Share) -> bool:
        """Put the share's limits in force; return whether that made something new.

        What is in force already with the same limits stays as it is, open files included.

        Raises:
            EnforcementError: other limits are in force under this key.
            StorageError: the files could not be made.
        """

    def verify(self, share: Share) -> None:
        """Return when the limits in force are the share's own and whole; change nothing.

        Raises:
            EnforcementError: they are missing, damaged, or say something else.
            StorageError: they cannot be read.
        """

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
