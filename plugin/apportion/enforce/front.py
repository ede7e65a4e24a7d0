"""The front libraries: mounted over the driver's, they hold each share to its limits file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from apportion import names
from apportion.config import Config
from apportion.enforce import proof
from apportion.enforce.library import Library
from apportion.enforce.shares import LEDGER, Shares
from apportion.errors import EnforcementError
from apportion.model import (
    Allowance,
    Charge,
    DriverFiles,
    Edits,
    GpuUuid,
    Hook,
    Mount,
    Share,
    ShareKey,
    Usage,
)

_LOG = logging.getLogger("apportion.enforce")

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"


class FrontEnforcer:
    """Enforcer by front libraries; see enforce.Enforcer for the promises.

    Args:
        config: the settings; shim_dir, the plugin's and the shares' folders, self_test and the
            driver root.
        self_test: replaces the self-test in tests.
    """

    def __init__(
        self, config: Config, self_test: Callable[[proof.Trial], proof.Verdict] | None = None
    ) -> None:
        self._library = Library(config.shim_dir, config.plugin_dir / "lib")
        self._shares = Shares(config.driver_shares_dir)
        self._root = config.driver_root
        self._mount = config.driver_root_mount
        self._tests = config.self_test == "on"
        self._self_test = self_test or self._prove
        self._mutex = threading.Lock()
        self._passed: tuple[DriverFiles, object] | None = None
        # What a context takes on the GPU that was tested, in MiB.
        self._context_mib: dict[GpuUuid, int] = {}

    @property
    def build(self) -> str:
        """Identity of the installed libraries."""
        return self._library.build

    def check(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Install what is missing, and test when libraries or driver are not those last tested.

        Raises:
            EnforcementError: the image lacks a library, or the test failed.
            StorageError: a library could not be installed.
        """
        self._library.ensure()
        if not self._tests:
            return
        with self._mutex:
            # The finder gives the same object for as long as nothing of the driver changed.
            if self._passed is not None and self._passed[0] is files:
                return
            trial = self._trial(files, uuid)
            # The test is of libraries and driver; which GPU it ran on does not matter.
            subject = (self.build, files.cuda, files.nvml, _age(trial.cuda), _age(trial.nvml))
            if self._passed is None or self._passed[1] != subject:
                verdict = self._self_test(trial)
                self._context_mib = {uuid: verdict.context_mib}
                _LOG.info(
                    "self-test passed: %s", verdict.said, extra={"uuid": uuid, "build": self.build}
                )
            self._passed = (files, subject)

    def probe(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Run the self-test on one GPU, unless self-tests are off."""
        self._library.ensure()
        if self._tests:
            said = self._self_test(self._trial(files, uuid))
            _LOG.info("self-test passed: %s", said, extra={"uuid": uuid, "build": self.build})

    def driver_edits(self, files: DriverFiles) -> Edits:
        """Return the fronts over the driver's names, the real ones aside, and the ld cache hook.

        The names with the full version are covered too: a program that opens them by path gets
        the front as well.
        """
        folder = self._library.folder
        cuda = {CUDA, "libcuda.so", PurePosixPath(files.cuda).name}
        nvml = {NVML, PurePosixPath(files.nvml).name}
        fronts = [
            Mount(str(folder / front), f"{files.libdir}/{name}")
            for front, covered in ((CUDA, cuda), (NVML, nvml))
            for name in sorted(covered)
        ]
        real = [
            Mount(files.cuda, f"{names.CONTAINER_DRIVER}/{CUDA}"),
            Mount(files.nvml, f"{names.CONTAINER_DRIVER}/{NVML}"),
        ]
        hook = Hook(
            str(folder / "apportion-ldcache"),
            ("--ldconfig", str(folder / "ldconfig"), "--folder", files.libdir),
        )
        return Edits(mounts=(*fronts, *real), hooks=(hook,))

    def share_edits(self, share: Share) -> Edits:
        """Return the share's folder, read-only, and its ledger, writable, over it."""
        host = self._shares.path(share.key)
        inside = f"{names.CONTAINER_SHARES}/{share.key}"
        return Edits(
            mounts=(
                Mount(str(host), inside),
                Mount(str(host / LEDGER), f"{inside}/{LEDGER}", writable=True),
            )
        )

    def prepare(self, share: Share) -> bool:
        """Make the share's folder; False where it is there already and says the same."""
        return self._shares.prepare(share, self._context_mib.get(share.uuid, 0))

    def verify(self, share: Share) -> None:
        """Return when the share's folder is there and says what the share may take."""
        self._shares.verify(share)

    def remove(self, key: ShareKey) -> None:
        """Remove the share's folder, whoever still has it open."""
        self._shares.remove(key)

    def in_use(self, key: ShareKey) -> bool:
        """Return whether a live process has charged memory to the share."""
        return self._shares.in_use(key)

    def share_keys(self) -> tuple[ShareKey, ...]:
        """Return all shares with a folder here."""
        return self._shares.share_keys()

    def allowances(self) -> tuple[Allowance, ...]:
        """Return what the limits files allow."""
        return self._shares.allowances()

    def usage(self, key: ShareKey) -> Usage:
        """Return what the share's ledger says."""
        return self._shares.usage(key)

    def charges(self, key: ShareKey) -> tuple[Charge, ...]:
        """Return what the share's ledger says of each live process."""
        return self._shares.charges(key)

    def sweep(self, keep: frozenset[str]) -> None:
        """Remove builds that no record in `keep` and no living plugin refers to."""
        removed = self._library.sweep(keep)
        if removed:
            _LOG.info("removed front libraries that no share uses", extra={"builds": removed})

    def _prove(self, trial: proof.Trial) -> proof.Verdict:
        # The test's own share lies on a tmpfs in any case; those of claims must, too.
        self._shares.require_memory()
        return proof.run(trial)

    def _trial(self, files: DriverFiles, uuid: GpuUuid) -> proof.Trial:
        return proof.Trial(
            front=self._library.folder,
            cuda=self._seen(files.cuda),
            nvml=self._seen(files.nvml),
            others=tuple(
                (PurePosixPath(mount.container_path).name, str(self._seen(mount.host_path)))
                for mount in files.mounts
                if ".so." in mount.container_path
            ),
            uuid=uuid,
        )

    def _seen(self, host_path: str) -> Path:
        """Return where this process sees a file of the driver."""
        return self._mount / PurePosixPath(host_path).relative_to(self._root)


def _age(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise EnforcementError(
            f"the driver's {path} vanished; it is looked for again with the next call"
        ) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)
