"""What belongs to no claim any more goes, and all that a claim has goes together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from apportion import claims, names
from apportion.cdi.store import CdiStore
from apportion.config import Config
from apportion.enforce import Enforcer
from apportion.errors import (
    ApportionError,
    ClaimError,
    KubeError,
    KubeNotFoundError,
    StateError,
    StorageError,
)
from apportion.ledger.schema import Record, State
from apportion.ledger.store import Store
from apportion.model import ClaimRef, ClaimUid, DeviceName, ShareKey

_LOG = logging.getLogger("apportion.prepare")

_Given = Mapping[ShareKey, tuple[DeviceName, str | None]]


class Sweeper:
    """Removes claims, those asked for and those that are gone.

    Args:
        config: the settings: driver name and node name (the pool).
        fetch: reads a ResourceClaim from the API server by namespace and name.
        store: the claims on disk.
        cdi: the specs on disk.
        enforcer: holds the shares to their limits.
        in_use: whether a process is known to use a share, whatever its ledger says.
        on_removed: told of each claim of which nothing is left here.
    """

    def __init__(
        self,
        *,
        config: Config,
        fetch: Callable[[ClaimRef], dict[str, Any]],
        store: Store,
        cdi: CdiStore,
        enforcer: Enforcer,
        in_use: Callable[[ShareKey], bool],
        on_removed: Callable[[ClaimUid], None] = lambda _uid: None,
    ) -> None:
        self._config = config
        self._fetch = fetch
        self._store = store
        self._cdi = cdi
        self._enforcer = enforcer
        self._in_use = in_use
        self._on_removed = on_removed

    def in_use(self, key: ShareKey) -> bool:
        """Return whether a process lives that uses the share. Raises StorageError."""
        return self._enforcer.in_use(key) or self._in_use(key)

    def remove(self, uid: ClaimUid) -> tuple[ShareKey, ...]:
        """Remove all that the claim has, whoever uses it; return the keys of its shares.

        The claim's lock is held. Raises StorageError: some of it is left, its record always.
        """
        try:
            record = self._store.get(uid)
        except (StateError, StorageError):
            # Of a newer plugin or unreadable: the names of its folders say enough to remove them.
            record = None
        if record is not None:
            keys = tuple(share.key for share in record.shares)
        else:
            keys = self._folders(uid)
        self._cdi.remove_claim(uid)
        for key in keys:
            self._enforcer.remove(key)
        if record is not None or self._store.knows(uid):
            self._store.remove(uid)
        self._on_removed(uid)
        return keys

    def sweep(self, *, ask: bool) -> frozenset[str]:
        """Remove what belongs to no claim; return the builds that the records found name.

        Raises:
            StorageError: a folder could not be read; what one claim causes is reported instead.
        """
        records = self._store.records()
        for record in records:
            if record.boot != self._store.boot or (ask and self._is_gone(record)):
                self._guarded(record.ref.uid, partial(self._sweep_record, record))
        for uid in sorted(self._strays({record.ref.uid for record in records})):
            given = self._given(self._store.named_aside(uid)) if ask else None
            self._guarded(uid, partial(self._sweep_stray, uid, given))
        for uid in sorted(self._store.aside()):
            self._guarded(uid, partial(self._sweep_aside, uid))
        self._store.sweep()
        self._cdi.sweep()
        return frozenset(record.library for record in records)

    def _is_gone(self, record: Record) -> bool:
        given = self._given(record.ref)
        return given is not None and any(
            given.get(share.key) != (share.device, share.share_id) for share in record.shares
        )

    def _given(self, ref: ClaimRef | None) -> _Given | None:
        """Return what the API server says that the claim has here now; None: it is not known."""
        if ref is None:
            return None
        try:
            return claims.given(
                self._fetch(ref),
                ref,
                driver=self._config.driver_name,
                pool=self._config.node_name,
            )
        except KubeNotFoundError:
            return {}
        except (KubeError, ClaimError):
            return None

    def _folders(self, uid: ClaimUid) -> tuple[ShareKey, ...]:
        return tuple(key for key in self._enforcer.share_keys() if _claim_of(key) == uid)

    def _strays(self, readable: set[ClaimUid]) -> set[ClaimUid]:
        """Return claims that have something here and no record that could be read."""
        shares = {_claim_of(key) for key in self._enforcer.share_keys()}
        found = self._store.uids() | self._cdi.claims() | shares
        return {uid for uid in found - readable if names.is_uid(uid)}

    def _sweep_record(self, seen: Record) -> None:
        uid = seen.ref.uid
        if self._store.get(uid) != seen:
            return
        if any(self.in_use(share.key) for share in seen.shares):
            _LOG.info(
                "claim is gone and processes still use its share; kept until they end",
                extra={"claim": str(seen.ref), "uid": uid},
            )
            return
        self.remove(uid)
        _LOG.info(
            "removed a claim that is gone"
            if seen.boot == self._store.boot
            else "removed what a claim had before the node booted",
            extra={"claim": str(seen.ref), "uid": uid},
        )

    def _sweep_stray(self, uid: ClaimUid, given: _Given | None) -> None:
        # Reading it moves a damaged record aside. Its claim may be running: all of it stays until
        # kubelet prepares or unprepares it, the API server says that it has none of these shares,
        # or a boot took its share folders.
        if self._store.get(uid) is not None:
            return
        keys = self._folders(uid)
        damaged = uid in self._store.uids()
        if damaged and keys and (given is None or any(key in given for key in keys)):
            return
        if any(self.in_use(key) for key in keys):
            return
        self.remove(uid)
        _LOG.info("removed files that belong to no claim", extra={"uid": uid})

    def _sweep_aside(self, uid: ClaimUid) -> None:
        record = self._store.get(uid)
        if record is not None and record.state is State.COMPLETED:
            self._store.remove_aside(uid)

    def _guarded(self, uid: ClaimUid, step: Callable[[], None]) -> None:
        """Do a step of the sweep unless a call works on the claim; report what fails, go on."""
        try:
            with self._store.claim_lock(uid, wait=False) as held:
                if held:
                    step()
        except ApportionError as error:
            _LOG.warning("sweep failed, tried again later: %s", error, extra={"uid": uid})


def _claim_of(key: ShareKey) -> ClaimUid:
    return ClaimUid(key.rpartition("-")[0])
