"""The path of a claim on its node: resolve, reserve, enforce, CDI, commit; undo in reverse.

Order of a Prepare, and what a crash after each step leaves:
1. the claim's record as `started`: it counts against the GPU; Unprepare, the next Prepare or the
   sweep takes it away or goes on;
2. the share folders; 3. the CDI spec: as after 1, since the record says whose they are;
4. the record as `completed`: all is there, and a repeated Prepare gives the same answer.

Order of an Unprepare: the CDI spec first, so that no container starts with a share that goes away;
then the share folders; the record last, so that after a crash in between it still says what is left
to remove, and counts for as long as a limits file may be obeyed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from apportion import claims, driver, names, quantity
from apportion.cdi import spec
from apportion.cdi.store import CdiStore
from apportion.config import Config
from apportion.container import DriverFiles, Edits
from apportion.enforce import Enforcer
from apportion.errors import (
    ApportionError,
    ClaimError,
    EnforcementError,
    KubeNotFoundError,
    OverCommitError,
)
from apportion.heal import Healer
from apportion.ledger.schema import Record, State
from apportion.ledger.store import Store
from apportion.model import (
    ClaimOutcome,
    ClaimRef,
    ClaimUid,
    Device,
    DeviceName,
    GpuUuid,
    PreparedDevice,
    ResolvedClaim,
    Share,
    ShareKey,
)
from apportion.sweep import Sweeper

_LOG = logging.getLogger("apportion.prepare")

# Reasons of events.
OVER_COMMIT = "OverCommitRefused"
_REASONS = {"prepare": "PrepareRefused", "unprepare": "UnprepareFailed"}


class Preparer:
    """Prepares and unprepares claims; safe to call from many threads.

    Calls for one claim wait for each other, also across two plugins that overlap in a rolling
    update; calls for different claims do not, but for the moment of the proof.

    Args:
        config: the settings: driver name, node name (the pool), least cores, driver root.
        fetch: reads a ResourceClaim from the API server by namespace and name.
        devices: what is published now, by name.
        store: the claims on disk.
        cdi: the specs on disk.
        enforcer: holds the shares to their limits.
        driver_files: finds the driver's files (driver.DriverFinder).
        tell: told of each claim that is refused: which, the reason in one word, what kubelet is
            told.
        on_prepared: told of each claim that is prepared, also again.
        on_removed: told of each claim of which nothing is left here.
        in_use: whether a process is known to use a share, whatever the share's ledger says: of a
            whole card that says nothing.
        clock: seconds, for the milliseconds in the logs.
    """

    def __init__(
        self,
        *,
        config: Config,
        fetch: Callable[[ClaimRef], dict[str, Any]],
        devices: Callable[[], Mapping[DeviceName, Device]],
        store: Store,
        cdi: CdiStore,
        enforcer: Enforcer,
        driver_files: Callable[[], DriverFiles],
        tell: Callable[[ClaimRef, str, str], None] = lambda _ref, _reason, _text: None,
        on_prepared: Callable[[Record], None] = lambda _record: None,
        on_removed: Callable[[ClaimUid], None] = lambda _uid: None,
        in_use: Callable[[ShareKey], bool] = lambda _key: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._fetch = fetch
        self._devices = devices
        self._store = store
        self._cdi = cdi
        self._enforcer = enforcer
        self._driver_files = driver_files
        self._tell, self._on_prepared = tell, on_prepared
        self._clock = clock
        self._sweeper = Sweeper(
            config=config,
            fetch=fetch,
            store=store,
            cdi=cdi,
            enforcer=enforcer,
            in_use=in_use,
            on_removed=on_removed,
        )
        self._healer = Healer(
            store=store, cdi=cdi, enforcer=enforcer, spec_of=self._spec_of, tell=tell
        )
        self._static: tuple[DriverFiles, str, dict[str, Any]] | None = None

    def ready(self, uuid: GpuUuid) -> None:
        """Prove before anything is published that shares can be prepared on this node.

        Finds the driver's files, installs the front libraries, runs the self-test on GPU `uuid`
        and writes the static CDI spec. Cheap when nothing changed: call it with every scan.

        Raises:
            EnforcementError: the driver's files are missing, or shares would not be enforced.
            StorageError: libraries or spec could not be written.
        """
        self._ready(uuid)

    def probe(self, uuid: GpuUuid) -> None:
        """Prove that a share on GPU `uuid` would work, whatever was proven before.

        Raises:
            EnforcementError: it would not.
            StorageError: libraries could not be written.
        """
        self._enforcer.probe(self._driver_files(), uuid)

    def prepare(self, ref: ClaimRef) -> ClaimOutcome:
        """Prepare one claim; the outcome has its devices or says what went wrong.

        Whatever went wrong, nothing is left of what this call did.
        """
        began = self._clock()
        try:
            _refuse_odd(ref)
            with self._store.claim_lock(ref.uid):
                # One look: a GPU that leaves meanwhile must not be half there.
                devices = self._devices()
                record = self._prepare(self._resolve(ref, devices), devices)
                self._on_prepared(record)
        except ApportionError as error:
            return self._refused("prepare", ref, error)
        self._log_prepared(record, began)
        return ClaimOutcome(devices=record.devices)

    def unprepare(self, ref: ClaimRef) -> ClaimOutcome:
        """Remove all that belongs to the claim; an unknown claim is success.

        Processes that still run do not keep a share: kubelet says that its pods are gone.
        """
        began = self._clock()
        try:
            _refuse_odd(ref)
            with self._store.claim_lock(ref.uid):
                keys = self._sweeper.remove(ref.uid)
        except ApportionError as error:
            return self._refused("unprepare", ref, error)
        _LOG.info(
            "unprepared" if keys else "nothing to unprepare",
            extra={
                "claim": str(ref),
                "uid": ref.uid,
                "shares": ",".join(keys),
                "ms": self._ms(began),
            },
        )
        return ClaimOutcome()

    def sweep(self, *, ask: bool) -> None:
        """Remove what belongs to no claim, and never a share that a live process has charged.

        Goes: claims that the API server does not have, or not with these shares any more; all that
        is from before the last boot; CDI specs and share folders without a record; damaged records
        of claims of which nothing else is left; temporary files of dead plugins; unused libraries.
        Claims that a call is working on are left alone, and so is one that fails to go: it is
        reported and tried again. What somebody took of a prepared claim comes back, or is reported
        (apportion.heal).

        Args:
            ask: whether to ask the API server for each claim; one that it does not tell of stays.
                Call it once without, before kubelet calls.
        """
        try:
            libraries = self._sweeper.sweep(ask=ask)
            if self._static is not None:
                # Another plugin may have written its own; until then its libraries stay.
                self._cdi.write_driver(self._static[2])
                self._enforcer.sweep(libraries)
                self._healer.heal()
        except ApportionError as error:
            _LOG.warning("sweep failed, tried again later: %s", error)

    def retire(self) -> None:
        """Leave no CDI file behind on a node without claims; called when no plugin goes on.

        With a claim left, containers that start anew still need the static spec. A plugin that
        comes back writes it again, and so does a Prepare.
        """
        try:
            if not self._store.uids():
                self._cdi.remove_driver()
        except ApportionError as error:
            _LOG.warning("the static CDI spec stays: %s", error)

    def _ready(self, uuid: GpuUuid) -> tuple[DriverFiles, str]:
        found = self._driver_files()
        self._enforcer.check(found, uuid)
        build = self._enforcer.build
        static = self._static
        if static is None or static[0] is not found or static[1] != build:
            common = self._enforcer.common_edits(found)
            front = self._enforcer.front_edits(found)
            made = spec.driver_spec(self._config.driver_name, found, common, front)
            self._static = static = (found, build, made)
        self._cdi.write_driver(static[2])
        return found, build

    def _spec_of(self, record: Record) -> dict[str, Any] | None:
        """Return the CDI spec that the claim has by its record; None where a GPU is away."""
        devices, static = self._devices(), self._static
        minors = {device.gpu.uuid: device.gpu.minor for device in devices.values()}
        if static is None or any(share.uuid not in minors for share in record.shares):
            return None
        edits = [
            (share.key, self._share_edits(share, static[0], minors[share.uuid]))
            for share in record.shares
        ]
        return spec.claim_spec(self._config.driver_name, edits)

    def _resolve(self, ref: ClaimRef, devices: Mapping[DeviceName, Device]) -> ResolvedClaim:
        try:
            found = self._fetch(ref)
        except KubeNotFoundError as error:
            raise ClaimError(
                f"it was deleted or never there; if its pod stays, delete the pod ({error})"
            ) from error
        return claims.resolve(
            found,
            ref,
            driver=self._config.driver_name,
            pool=self._config.node_name,
            devices=devices,
            cores_min=self._config.cores_min,
        )

    def _prepare(self, claim: ResolvedClaim, devices: Mapping[DeviceName, Device]) -> Record:
        uid = claim.ref.uid
        found, build = self._ready(claim.shares[0].uuid)
        self._enforcer.agree(claim.shares)
        edits = [
            (share.key, self._share_edits(share, found, devices[share.device].gpu.minor))
            for share in claim.shares
        ]
        record = self._current(claim)
        with ExitStack() as undo:
            # Only what this call makes is undone: what was there before may be a running claim
            # whose record was lost, also when a plugin that died since wrote it a new one.
            if record is None:
                undo.callback(self._undo, claim.ref, partial(self._store.undo_begin, uid))
                capacities = {each.gpu.uuid: each.capacity for each in devices.values()}
                record = self._store.begin(claim, capacities, build)
            for share in record.shares:
                if self._enforcer.prepare(share):
                    undo.callback(self._undo, claim.ref, partial(self._enforcer.remove, share.key))
            if record.state is State.STARTED and not self._cdi.claim_path(uid).exists():
                undo.callback(self._undo, claim.ref, partial(self._cdi.remove_claim, uid))
            self._cdi.write_claim(uid, spec.claim_spec(self._config.driver_name, edits))
            record = self._committed(record, claim, build)
            undo.pop_all()
        return record

    def _current(self, claim: ResolvedClaim) -> Record | None:
        """Return the record to go on with; what another allocation or boot left is removed."""
        record = self._store.get(claim.ref.uid)
        if record is None:
            return None
        same_boot = record.boot == self._store.boot
        if same_boot and _is_same(record.shares, claim.shares):
            return record
        busy = [share.key for share in record.shares if self._sweeper.in_use(share.key)]
        if busy:
            raise ClaimError(
                f"it was allocated anew while processes still use its old share {busy[0]}; "
                "delete the pods that used it before"
            )
        self._sweeper.remove(claim.ref.uid)
        _LOG.info(
            "removed what the claim had %s",
            "by another allocation" if same_boot else "before the node booted",
            extra={"claim": str(claim.ref), "uid": claim.ref.uid},
        )
        return None

    def _share_edits(self, share: Share, found: DriverFiles, minor: int) -> Edits:
        node = driver.gpu_node(found, minor)
        seen = driver.seen(node.host_path, self._config.driver_root_mount, self._config.driver_root)
        if not seen.exists():
            raise EnforcementError(
                f"the device node {node.host_path} of GPU {share.uuid} is missing; "
                "run nvidia-smi or nvidia-modprobe on the node once, or restart the driver's pod"
            )
        return Edits(nodes=(node,)) + self._enforcer.share_edits(share)

    def _committed(self, record: Record, claim: ResolvedClaim, build: str) -> Record:
        """Return the record as completed, written unless it says all this already."""
        name = self._config.driver_name
        devices = tuple(
            PreparedDevice(
                # Kubelet matches the request, whichever of its alternatives was taken.
                requests=(share.request.partition("/")[0],),
                pool=share.pool,
                device=share.device,
                cdi_ids=(spec.share_id(name, share.key), spec.driver_id(name, share.access)),
                share_id=share.share_id,
            )
            for share in record.shares
        )
        wanted = record.completed(pods=claim.pods, library=build, devices=devices)
        if wanted != record:
            self._store.commit(wanted)
        return wanted

    def _undo(self, ref: ClaimRef, step: Callable[[], object]) -> None:
        """Undo one step; one that fails is reported and the others are undone all the same."""
        try:
            step()
        except ApportionError as error:
            _LOG.error(
                "could not undo a failed prepare, the sweep tries again: %s",
                error,
                extra={"claim": str(ref), "uid": ref.uid},
            )

    def _log_prepared(self, record: Record, began: float) -> None:
        for share in record.shares:
            _LOG.info(
                "prepared",
                extra={
                    "claim": str(record.ref),
                    "uid": record.ref.uid,
                    "pod": ",".join(record.pods),
                    "request": share.request,
                    "device": share.device,
                    "uuid": share.uuid,
                    "memory": share.capacity.memory,
                    "memory_mib": quantity.mib(share.capacity.memory),
                    "cores": share.capacity.cores,
                    "share": share.key,
                    "ms": self._ms(began),
                },
            )

    def _refused(self, action: str, ref: ClaimRef, error: ApportionError) -> ClaimOutcome:
        text = str(error)
        said = text if text.startswith(f"claim {ref}") else f"claim {ref}: {text}"
        _LOG.warning("cannot %s %s", action, said, extra={"claim": str(ref), "uid": ref.uid})
        outcome = ClaimOutcome(error=f"cannot {action} {said}")
        over = isinstance(error, OverCommitError)
        self._tell(ref, OVER_COMMIT if over else _REASONS[action], outcome.error)
        return outcome

    def _ms(self, began: float) -> float:
        return round((self._clock() - began) * 1000, 2)


def _is_same(before: Sequence[Share], now: Sequence[Share]) -> bool:
    """Return whether it is the same allocation.

    How it was prepared stays: an older plugin has given a whole card as a share, and what is all of
    a card changes with the settings.
    """
    return len(before) == len(now) and all(
        replace(one, access=other.access) == other for one, other in zip(before, now, strict=True)
    )


def _refuse_odd(ref: ClaimRef) -> None:
    if not names.is_uid(ref.uid):
        raise ClaimError(f"its UID {ref.uid[:64]!r} cannot name a file; is this kubelet speaking?")
