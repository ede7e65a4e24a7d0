"""How the shares of a claim are now, by what lies on disk."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable

from apportion import claimstatus
from apportion.claimstatus import Condition, ShareStatus
from apportion.errors import StateError, StorageError
from apportion.ledger.schema import Record
from apportion.model import Access, Share, ShareKey, Usage


class Look:
    """Reads ledgers, and knows of which shares the limits are missing.

    Args:
        node: name of the node.
        usage: reads the ledger of a share (Enforcer.usage).
        limited: the shares whose limits are in force.
        conditions: more of a share than Ready.
        now: seconds since 1970.
    """

    def __init__(
        self,
        *,
        node: str,
        usage: Callable[[ShareKey], Usage],
        limited: Callable[[], Iterable[ShareKey]],
        conditions: Callable[[Share], tuple[Condition, ...]] = lambda _share: (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._node, self._usage, self._limited = node, usage, limited
        self._conditions, self._now = conditions, now
        self._unlimited: frozenset[ShareKey] = frozenset()

    def limits(self, records: Iterable[Record]) -> None:
        """Look which of these claims' shares have no limits in force; too slow for each claim."""
        keys = {share.key for record in records for share in record.shares}
        self._unlimited = frozenset(keys - set(self._limited()))

    def prepared(self, record: Record) -> None:
        """Know that this claim's limits are in force: it was prepared just now."""
        self._unlimited -= {share.key for share in record.shares}

    def at(self, record: Record) -> dict[ShareKey, ShareStatus]:
        """Return how the claim's shares are, by key."""
        # Whole seconds, as conditions have them.
        now = dt.datetime.fromtimestamp(self._now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            share.key: ShareStatus(
                node=self._node,
                key=share.key,
                uuid=share.uuid,
                capacity=share.capacity,
                access=share.access,
                usage=self._read(share),
                observed=now,
                conditions=(self._ready(share.key), *self._conditions(share)),
            )
            for share in record.shares
        }

    def _read(self, share: Share) -> Usage | None:
        # The ledger of a whole card knows nothing of containers without the front libraries.
        if share.access is not Access.SHARE:
            return None
        try:
            return self._usage(share.key)
        except (StateError, StorageError):
            return None

    def _ready(self, key: ShareKey) -> Condition:
        if key not in self._unlimited:
            return Condition(claimstatus.READY, "True", "Prepared", "its limits are in force")
        return Condition(
            claimstatus.READY,
            "False",
            "LimitsMissing",
            "its limits file is missing, so its containers get no memory: delete its pods",
        )
