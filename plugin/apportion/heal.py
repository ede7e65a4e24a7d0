"""What somebody took or changed of a prepared claim comes back, or is reported.

A CDI spec is written again: it says the same to every container, whenever that starts. So is the
content of a schedule, in the very file that containers have mapped. A share's folder is not:
containers that run hold the old ledger, and beside a new one those that start later would count
anew. It is reported; containers of the claim that start meanwhile fail, since what is to be mounted
is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apportion import log
from apportion.cdi.store import CdiStore
from apportion.enforce import Enforcer
from apportion.errors import ApportionError, EnforcementError
from apportion.ledger.schema import Record, State
from apportion.ledger.store import Store
from apportion.model import ClaimRef, ClaimUid

_LOG = logging.getLogger("apportion.prepare")

# Reasons of events.
SPEC_RESTORED = "CDISpecRestored"
SCHEDULE_RESTORED = "ScheduleRestored"
SHARE_DAMAGED = "ShareDamaged"


class Healer:
    """Looks at what prepared claims have on the node.

    Args:
        store: the claims on disk.
        cdi: the specs on disk.
        enforcer: holds the shares to their limits.
        spec_of: makes a claim's CDI spec; None while it cannot be made, for want of a GPU, say.
        tell: told of each claim with trouble: which, the reason in one word, what happened.
    """

    def __init__(
        self,
        *,
        store: Store,
        cdi: CdiStore,
        enforcer: Enforcer,
        spec_of: Callable[[Record], Mapping[str, Any] | None],
        tell: Callable[[ClaimRef, str, str], None],
    ) -> None:
        self._store, self._cdi, self._enforcer = store, cdi, enforcer
        self._spec_of, self._tell = spec_of, tell
        self._troubles: dict[ClaimUid, log.Trouble] = {}

    def heal(self) -> None:
        """Look at every claim that no call works on; report what fails, and go on.

        Raises:
            StorageError: the folder of the records could not be read.
        """
        records = {
            record.ref.uid: record
            for record in self._store.records()
            if record.boot == self._store.boot and record.state is State.COMPLETED
        }
        for uid in self._troubles.keys() - records.keys():
            del self._troubles[uid]
        self._restore(records.values())
        for uid, record in records.items():
            try:
                with self._store.claim_lock(uid, wait=False) as held:
                    if held and self._store.get(uid) == record:
                        self._heal(record)
            except ApportionError as error:
                _LOG.warning(
                    "cannot look at a prepared claim, tried again later: %s",
                    error,
                    extra={"claim": str(record.ref), "uid": uid},
                )

    def _restore(self, records: Iterable[Record]) -> None:
        owners = {share.key: record.ref for record in records for share in record.shares}
        for key, text in self._enforcer.restore().items():
            _LOG.warning("%s", text, extra={"share": key})
            if key in owners:
                self._tell(owners[key], SCHEDULE_RESTORED, text)

    def _heal(self, record: Record) -> None:
        uid = record.ref.uid
        try:
            for share in record.shares:
                self._enforcer.verify(share)
        except EnforcementError as error:
            subject = f"the share of claim {record.ref}"
            trouble = self._troubles.setdefault(uid, log.Trouble(_LOG, subject))
            trouble.begin(str(error), str(error), logging.ERROR)
            self._tell(record.ref, SHARE_DAMAGED, str(error))
        else:
            if uid in self._troubles:
                self._troubles.pop(uid).end()
        spec = self._spec_of(record)
        if spec is not None and self._cdi.keep_claim(uid, spec):
            text = f"the CDI spec {self._cdi.claim_path(uid)} was missing or changed; written again"
            _LOG.warning("%s", text, extra={"claim": str(record.ref), "uid": uid})
            self._tell(record.ref, SPEC_RESTORED, text)
