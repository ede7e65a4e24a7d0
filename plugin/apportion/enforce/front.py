"""The front libraries: mounted over the driver's, they hold each share to its limits file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from apportion import log, names
from apportion.config import Config
from apportion.container import DriverFiles, Edits, Hook, Mount
from apportion.cores.bursts import Bursts
from apportion.cores.slots import Slot
from apportion.cores.store import Schedules, is_scheduled
from apportion.enforce import Mps, layout, proof
from apportion.enforce.library import Library
from apportion.enforce.shares import LEDGER, Shares
from apportion.errors import EnforcementError
from apportion.model import (
    ADMIN,
    Access,
    Allowance,
    Charge,
    CoresMode,
    GpuUuid,
    Share,
    ShareKey,
    Usage,
)

_LOG = logging.getLogger("apportion.enforce")

_ALL_CORES = 100
_AGAIN_S = 10.0

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"


class FrontEnforcer:
    """Enforcer by front libraries; see enforce.Enforcer for the promises.

    Args:
        config: the settings; shim_dir, the plugin's and the shares' folders, self_test, the
            driver root, and how cores are held.
        self_test: replaces the self-test in tests.
        mps: keeps MPS daemons; None: nothing does here.
        claimed: the shares of claims that are here.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        config: Config,
        self_test: Callable[[proof.Trial], proof.Verdict] | None = None,
        mps: Mps | None = None,
        claimed: Callable[[], Iterable[Share]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = Library(config.shim_dir, config.plugin_dir / "lib")
        self._shares = Shares(config.driver_shares_dir)
        self._mode_of, self._mps = config.mode_of, mps
        self._schedules = Schedules(
            config.driver_shares_dir,
            config.plugin_dir / "cores.lock",
            period=config.period_ns,
            allowances=self._shares.allowances,
            claimed=claimed,
        )
        self._bursts = Bursts(
            self._schedules,
            ledger=lambda key: self._shares.path(key) / LEDGER,
            wanted_at=layout.WANTED_OFFSET,
        )
        self._root = config.driver_root
        self._mount = config.driver_root_mount
        self._tests = config.self_test == "on"
        self._self_test = self_test or self._prove
        self._mutex = threading.Lock()
        self._passed: tuple[DriverFiles, object] | None = None
        # Why new shares cannot be made though the test was not failed, and when it is tried again.
        self._doubt, self._again = "", 0.0
        self._trouble = log.Trouble(_LOG, "new shares are refused")
        self._clock = clock
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
            due = bool(self._doubt) and self._clock() >= self._again
            # The finder gives the same object for as long as nothing of the driver changed.
            if self._passed is not None and self._passed[0] is files and not due:
                return
            trial = self._trial(files, uuid)
            # The test is of libraries and driver; which GPU it ran on does not matter.
            subject = (self.build, files.cuda, files.nvml, _age(trial.cuda), _age(trial.nvml))
            if due or self._passed is None or self._passed[1] != subject:
                self._passed = None
                self._take(uuid, self._self_test(trial))
            self._passed = (files, subject)

    def _take(self, uuid: GpuUuid, verdict: proof.Verdict) -> None:
        self._context_mib = {uuid: verdict.context_mib}
        if not verdict.doubt:
            self._doubt = ""
            self._trouble.end()
            _LOG.info(
                "self-test passed: %s", verdict.said, extra={"uuid": uuid, "build": self.build}
            )
            return
        self._again = self._clock() + _AGAIN_S
        self._doubt = (
            f"the self-test of the front libraries could not be finished, since the memory of GPU "
            f"{uuid} is in use: {verdict.doubt}; shares that run go on, no new one is prepared "
            "until it passes, and it is tried again: delete a pod that uses the GPU, or see with "
            "nvidia-smi who else does"
        )
        self._trouble.begin(self._doubt, self._doubt)

    def probe(self, files: DriverFiles, uuid: GpuUuid) -> None:
        """Run the self-test on one GPU, unless self-tests are off."""
        self._library.ensure()
        if not self._tests:
            return
        verdict = self._self_test(self._trial(files, uuid))
        if not verdict.said:
            raise EnforcementError(f"GPU {uuid} cannot be tried: {verdict.doubt}; it is full")
        _LOG.info("self-test passed: %s", verdict.said, extra={"uuid": uuid, "build": self.build})

    def common_edits(self, files: DriverFiles) -> Edits:
        """Return the real libraries aside, and the hook that makes the dynamic linker find them.

        Where no front lies, it links the real ones to the driver's names.
        """
        folder = self._library.folder
        aside = {name: f"{names.CONTAINER_DRIVER}/{name}" for name in (CUDA, NVML)}
        real = (Mount(files.cuda, aside[CUDA]), Mount(files.nvml, aside[NVML]))
        links = [
            word
            for front, covered in _covered(files).items()
            for name in covered
            for word in ("--link", f"{files.libdir}/{name}:{aside[front]}")
        ]
        hook = Hook(
            str(folder / "apportion-ldcache"),
            ("--ldconfig", str(folder / "ldconfig"), "--folder", files.libdir, *links),
        )
        return Edits(mounts=real, hooks=(hook,))

    def front_edits(self, files: DriverFiles) -> Edits:
        """Return the fronts over the driver's names.

        The names with the full version are covered too: a program that opens them by path gets
        the front as well.
        """
        folder = self._library.folder
        return Edits(
            mounts=tuple(
                Mount(str(folder / front), f"{files.libdir}/{name}")
                for front, covered in _covered(files).items()
                for name in covered
            )
        )

    def share_edits(self, share: Share) -> Edits:
        """Return the share's folder, read-only, and its ledger, writable, over it."""
        host = f"{self._shares.folder}/{share.key}"
        inside = f"{names.CONTAINER_SHARES}/{share.key}"
        mounts = [
            Mount(host, inside),
            Mount(f"{host}/{LEDGER}", f"{inside}/{LEDGER}", writable=True),
        ]
        if self._mps is not None and _by_mps(self._mode(share), share.capacity.cores):
            mounts.append(self._mps.mount(share.uuid))
        return Edits(mounts=tuple(mounts))

    def agree(self, shares: Sequence[Share]) -> None:
        """Refuse shares of several GPUs of which MPS divides one: a process has one daemon."""
        uuids = {share.uuid for share in shares}
        for share in shares if len(uuids) > 1 else ():
            if _by_mps(self._mode(share), share.capacity.cores):
                raise EnforcementError(
                    f"GPU {share.uuid} of request {share.request} divides its cores by MPS, and a "
                    f"program there can use no other GPU, but the claim has {len(uuids)}: ask for "
                    "whole cards or for GPUs with another coresMode (selector), or make a claim "
                    "and a container for each GPU"
                )

    def prepare(self, share: Share) -> bool:
        """Make the share's folder; False where it is there already and says the same."""
        context_mib, mode = self._context_mib.get(share.uuid, 0), self._mode(share)
        if share.access is not Access.SHARE:
            return self._shares.prepare(share, context_mib)
        if self._doubt and not self._shares.path(share.key).is_dir():
            raise EnforcementError(self._doubt)
        if _by_mps(mode, share.capacity.cores):
            # Most of a context goes with the multiprocessors that it has.
            context_mib = context_mib * share.capacity.cores // _ALL_CORES
            if self._mps is None:
                raise EnforcementError(f"nothing keeps an MPS daemon for GPU {share.uuid} here")
            self._mps.require(share.uuid)
        self._refuse_mixture(share, mode)
        if not is_scheduled(mode, share.capacity.cores):
            return self._shares.prepare(share, context_mib, mode)
        with self._schedules.room(share) as schedule:
            return self._shares.prepare(share, context_mib, mode, schedule)

    def _mode(self, share: Share) -> CoresMode:
        """Return how a share is held: as it was made, or is to be made now."""
        if share.access is not Access.SHARE:
            return CoresMode.NONE
        return self._shares.mode(share) or self._mode_of(share.uuid)

    def _refuse_mixture(self, share: Share, mode: CoresMode) -> None:
        """Refuse a share beside others of its GPU that are held in a way that knows nothing of it.

        Programs under MPS and others take turns on the GPU, so neither would get its part.
        """
        mps = mode is CoresMode.MPS
        if self._mps is None or not (mps or self._mps.may_serve(share.uuid)):
            return
        for other in self._shares.allowances():
            beside = other.uuid == share.uuid and other.key != share.key
            if other.capacity == ADMIN:
                continue
            parts = max(other.capacity.cores, share.capacity.cores) < _ALL_CORES
            if beside and parts and mps is not (other.mode is CoresMode.MPS):
                raise EnforcementError(
                    f"GPU {share.uuid} still has share {other.key}, whose cores are held by "
                    f"{other.mode.value}, and this one's would be by {mode.value}: the setting was "
                    "changed while it was in use; it is free for the new mode once the pods with "
                    "the old one have ended"
                )

    def verify(self, share: Share) -> None:
        """Return when the share's folder is there and says what the share may take."""
        self._shares.verify(share)

    def restore(self) -> Mapping[ShareKey, str]:
        """Write damaged schedules anew, and give every GPU the period of the settings."""
        return self._schedules.restore()

    def lend(self) -> float:
        """Let shares that may burst use what nobody does, for a moment."""
        return self._bursts.step()

    def slot(self, key: ShareKey) -> Slot | None:
        """Return the share's part of its GPU's period, None where it has none."""
        state = self._schedules.of(key)
        return None if state is None else state.slot

    def remove(self, key: ShareKey) -> None:
        """Remove the share's folder, whoever still has it open."""
        with self._schedules.leaving(key):
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


def _by_mps(mode: CoresMode, cores: int) -> bool:
    """Return whether a share needs the daemon: one of all cores has the GPU for itself."""
    return mode is CoresMode.MPS and cores < _ALL_CORES


def _covered(files: DriverFiles) -> dict[str, list[str]]:
    """Return the names by which programs find the driver's libraries, by the front for each."""
    cuda = {CUDA, "libcuda.so", PurePosixPath(files.cuda).name}
    nvml = {NVML, PurePosixPath(files.nvml).name}
    return {CUDA: sorted(cuda), NVML: sorted(nvml)}


def _age(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise EnforcementError(
            f"the driver's {path} vanished; it is looked for again with the next call"
        ) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)
