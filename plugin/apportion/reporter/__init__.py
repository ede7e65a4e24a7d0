"""Tells each claim how its shares here are: conditions and use, in the claim's `status.devices`.

A thread of its own; Prepare and Unprepare only leave a note. It writes what changed in a way worth
a write (`claimstatus.urgency`), so many a second at most, and only its own entries: server-side
apply with a field manager of this driver and node leaves those of others alone.

The API server removes entries when a claim is deallocated or deleted. For a claim that lives on
allocated after its Unprepare this does, also after a crash: a mark on disk says of which claims
something was told.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from apportion import claims, claimstatus, log
from apportion.backoff import Backoff, Bucket
from apportion.claimstatus import ShareStatus
from apportion.errors import (
    ClaimError,
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    StorageError,
)
from apportion.features import CLAIM_STATUS
from apportion.kubeerrors import is_of_one, say
from apportion.ledger.schema import Record, State
from apportion.ledger.store import Store
from apportion.model import ClaimRef, ClaimUid, ShareKey
from apportion.reporter.look import Look
from apportion.reporter.marks import Marks

_LOG = logging.getLogger(__name__)

# Looks at the use of the known shares in an interval, and between two looks at the records, which
# notes make rare.
_LOOKS, _LOOKS_A_READ = 3, 30
# Calls of the API server: at once, and seconds for one more.
_BURST, _REFILL_S = 10, 0.2
# Kubelet's calls come together: so long without one they are over, and so often that is waited for.
_QUIET_S, _MOST_QUIETS = 0.2, 5
# How long to leave alone what the API server refuses or drops.
_REFUSED_S = 600.0
_MOST_MANAGER = 128

Object = dict[str, Any]


class Api(Protocol):
    """What of kube.Kube is used."""

    def get_claim(self, ref: ClaimRef) -> Object:
        """Return the claim of that name."""

    def apply_claim_status(self, ref: ClaimRef, status: Mapping[str, Any], manager: str) -> Object:
        """Server-side apply of a claim's status; return the claim."""


@dataclass(slots=True)
class _Claim:
    """A prepared claim; times are monotonic, `told` is None until it was looked at."""

    record: Record
    told: dict[ShareKey, ShareStatus] | None = None
    told_at: float = 0.0
    due: float | None = 0.0
    not_before: float = 0.0
    refused: bool = False


@dataclass(slots=True)
class _Notes:
    """What other threads left."""

    prepared: dict[ClaimUid, Record] = field(default_factory=dict)
    removed: set[ClaimUid] = field(default_factory=set)
    changed: bool = False


class Reporter:
    """Call `prepared`, `removed` and `changed` from any thread; `run` in one of its own.

    Args:
        api: the API server.
        store: the claims on disk.
        look: how the shares of a claim are.
        marks: which claims were told something.
        driver: name of the DRA driver.
        node: name of the node and of its pool.
        interval_s: least time between two writes of a claim's use.
        on_dropped: told when the API server drops what is written, what to say of it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        api: Api,
        *,
        store: Store,
        look: Look,
        marks: Marks,
        driver: str,
        node: str,
        interval_s: float,
        on_dropped: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._store, self._marks, self._shares = api, store, marks, look
        self._driver, self._node, self._interval = driver, node, interval_s
        self._manager = f"{driver}/{node}"[:_MOST_MANAGER]
        self._on_dropped, self._clock = on_dropped, clock
        self._lock = threading.Lock()
        self._notes = _Notes()
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._claims: dict[ClaimUid, _Claim] = {}
        self._clear: dict[ClaimUid, float] = {}
        self._looks, self._look_at = 0, clock()
        self._paused_until = self._look_at
        self._bucket = Bucket(_BURST, _REFILL_S, clock)
        self._backoff = Backoff()
        self._retries: dict[ClaimUid, Backoff] = {}
        self._trouble = log.Trouble(_LOG, "claims cannot be told of their shares")
        self._gate_trouble = log.Trouble(_LOG, "claims are not told of their shares")

    def prepared(self, record: Record) -> None:
        """Note a claim that was prepared, also for the second time."""
        with self._lock:
            self._notes.prepared[record.ref.uid] = record
            self._notes.removed.discard(record.ref.uid)
        self._bell.set()

    def removed(self, uid: ClaimUid) -> None:
        """Note a claim of which nothing is left here."""
        with self._lock:
            self._notes.prepared.pop(uid, None)
            self._notes.removed.add(uid)
        self._bell.set()

    def changed(self) -> None:
        """Note that conditions may have changed: look at all shares soon."""
        with self._lock:
            self._notes.changed = True
        self._bell.set()

    def stop(self) -> None:
        """End `run` soon; what is told stays."""
        self._stop.set()
        self._bell.set()

    def run(self) -> None:
        """Tell until stopped."""
        while not self._stop.is_set():
            self._bell.clear()
            self._bell.wait(self.step())
            self._let_pass()

    def _let_pass(self) -> None:
        """Wait while kubelet calls, a second at most: what is done here takes time from calls."""
        for _ in range(_MOST_QUIETS):
            self._bell.clear()
            if self._stop.wait(_QUIET_S) or not self._bell.is_set():
                return

    def step(self) -> float:
        """Look if it is time to, and do the most urgent thing; return how long to wait then."""
        try:
            self._take_notes()
            now = self._clock()
            if now >= self._look_at:
                self._look(now)
            when, uid = self._first()
            wait = min(when, self._look_at) - now
            if wait > 0 or uid is None:
                return wait
            return self._bucket.take() or self._do(uid, now)
        except StorageError as error:
            self._trouble.begin(str(error), str(error))
            return self._backoff.next()

    def _take_notes(self) -> None:
        with self._lock:
            notes, self._notes = self._notes, _Notes()
        for uid in notes.removed:
            self._claims.pop(uid, None)
            if self._marks.has(uid):
                self._clear.setdefault(uid, 0.0)
        for uid, record in notes.prepared.items():
            self._know(record)
            self._shares.prepared(record)
            self._plan(self._claims[uid])
        if notes.changed:
            self._look_at = self._clock()

    def _know(self, record: Record) -> None:
        known = self._claims.get(record.ref.uid)
        self._clear.pop(record.ref.uid, None)
        if known is not None and known.record.shares == record.shares:
            known.record = record
        else:
            self._claims[record.ref.uid] = _Claim(record)

    def _look(self, now: float) -> None:
        """Look at the use of all shares, and now and then at the records."""
        self._look_at = now + self._interval / _LOOKS
        if self._looks % _LOOKS_A_READ == 0:
            self._read()
        self._looks += 1
        for claim in self._claims.values():
            self._plan(claim)

    def _read(self) -> None:
        records = {
            record.ref.uid: record
            for record in self._store.records()
            if record.boot == self._store.boot and record.state is State.COMPLETED
        }
        for uid in self._claims.keys() - records.keys():
            del self._claims[uid]
        for uid in self._retries.keys() - records.keys() - self._clear.keys():
            del self._retries[uid]
        for record in records.values():
            self._know(record)
        self._shares.limits(records.values())
        # A record of another boot, a started or a damaged one: its claim may be about to come back.
        for uid in self._marks.uids() - self._store.uids():
            self._clear.setdefault(uid, 0.0)

    def _plan(self, claim: _Claim) -> None:
        """Decide when to tell a claim of its shares as they are now."""
        told = claim.told
        if told is None:
            claim.due = claim.not_before
            return
        shares = self._shares.at(claim.record)
        found = (claimstatus.urgency(told.get(key), there) for key, there in shares.items())
        waits = [urgency for urgency in found if urgency is not None]
        claim.due = None
        if waits:
            claim.due = max(claim.told_at + min(waits) * self._interval, claim.not_before)

    def _first(self) -> tuple[float, ClaimUid | None]:
        """Return the claim with which something is to be done first, and when."""
        todo = list(self._clear.items())
        todo += ((uid, claim.due) for uid, claim in self._claims.items() if claim.due is not None)
        when, uid = min(((when, uid) for uid, when in todo), default=(math.inf, None))
        return max(when, self._paused_until), uid

    def _do(self, uid: ClaimUid, now: float) -> float:
        """Tell a claim, or take back what it was told; return how long to wait then."""
        try:
            if uid in self._clear:
                self._clean(uid)
            else:
                self._tell(self._claims[uid], now)
        except (KubeUnavailableError, KubeConflictError) as error:
            say(self._trouble, error)
            if not is_of_one(error):
                return self._backoff.next()
            # The others go on; this one waits by itself.
            self._put_off(uid, now)
            return 0.0
        except KubeError as error:
            self._refused(uid, now, error)
        else:
            self._trouble.end()
            self._retries.pop(uid, None)
        self._backoff.reset()
        return 0.0

    def _put_off(self, uid: ClaimUid, now: float) -> None:
        """Leave one claim alone for a while that doubles."""
        until = now + self._retries.setdefault(uid, Backoff()).next()
        if uid in self._clear:
            self._clear[uid] = until
        else:
            claim = self._claims[uid]
            claim.due = claim.not_before = until

    def _refused(self, uid: ClaimUid, now: float, error: KubeError) -> None:
        """Leave a claim alone for long, or all of them where it is a matter of rights."""
        claim = self._claims.get(uid)
        if claim is not None and isinstance(error, KubeNotFoundError):
            # The sweep will see it.
            _leave(claim, now + _REFUSED_S)
            return
        if claim is not None and isinstance(error, KubeInvalidError) and not claim.refused:
            # Deallocated just then, most often: then it is not ours to tell when asked again.
            claim.refused = True
            _leave(claim, now + self._interval)
            return
        say(self._trouble, error, logging.ERROR)
        if isinstance(error, KubeForbiddenError):
            self._paused_until = now + _REFUSED_S
        if claim is not None:
            _leave(claim, now + _REFUSED_S)
        else:
            self._clear[uid] = now + _REFUSED_S

    def _tell(self, claim: _Claim, now: float) -> None:
        if claim.told is None and not self._ask(claim):
            # The sweep will see it, or kubelet prepares it anew.
            _leave(claim, now + _REFUSED_S)
            return
        self._plan(claim)
        if claim.due is None or claim.due > now:
            return
        record, told = claim.record, claim.told or {}
        shares = self._shares.at(record)
        wanted = {key: claimstatus.dated(there, told.get(key)) for key, there in shares.items()}
        entries = [
            claimstatus.entry(self._driver, share, wanted[share.key]) for share in record.shares
        ]
        self._marks.add(record.ref)
        stored = self._apply(record.ref, {"devices": entries})
        claim.due, claim.told, claim.told_at, claim.refused = None, wanted, now, False
        if len(self._own(stored)) < len(entries):
            _leave(claim, now + _REFUSED_S)
            self._dropped(now)
        else:
            self._gate_trouble.end()

    def _ask(self, claim: _Claim) -> bool:
        """Look what the claim was told before; return whether it has its shares here still."""
        ref = claim.record.ref
        try:
            found = self._api.get_claim(ref)
            given = claims.given(found, ref, driver=self._driver, pool=self._node)
        except (KubeNotFoundError, ClaimError):
            return False
        shares = claim.record.shares
        if any(given.get(share.key) != (share.device, share.share_id) for share in shares):
            return False
        there = self._own(found)
        read = {
            share.key: claimstatus.read(there.get((share.device, share.share_id), {}))
            for share in shares
        }
        claim.told = {key: status for key, status in read.items() if status is not None}
        return True

    def _clean(self, uid: ClaimUid) -> None:
        """Take back what an unprepared claim was told, if it lives on with that."""
        ref = self._marks.find(uid)
        try:
            found = self._api.get_claim(ref) if ref else {}
            if ref and found["metadata"]["uid"] == uid and self._own(found):
                self._apply(ref, {})
        except KubeNotFoundError:
            pass
        self._marks.remove(uid)
        del self._clear[uid]

    def _apply(self, ref: ClaimRef, status: Mapping[str, Any]) -> Object:
        return self._api.apply_claim_status(ref, status, self._manager)

    def _own(self, claim: Object) -> Mapping[claimstatus.Place, Mapping[str, Any]]:
        return claimstatus.own(claim, driver=self._driver, pool=self._node)

    def _dropped(self, now: float) -> None:
        self._paused_until = now + _REFUSED_S
        seen = "the API server drops the status of claims' devices"
        text = f"{CLAIM_STATUS.off(seen)}; tried again in 10 minutes"
        self._gate_trouble.begin("dropped", text, logging.ERROR)
        self._on_dropped(text)


def _leave(claim: _Claim, until: float) -> None:
    """Leave a claim alone until then, and ask anew what it was told."""
    claim.told, claim.not_before = None, until
    claim.due = until
