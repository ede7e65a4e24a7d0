"""Which shares a pod may use, for processes that show nothing but their pod."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apportion.errors import ApportionError, KubeNotFoundError
from apportion.ledger.schema import Record
from apportion.model import ClaimRef, ShareKey

_AGAIN_S = 60.0


class Reservations:
    """The pods that the prepared claims are reserved for, by UID.

    A claim's record names the pods of its first Prepare only, so the API server is asked, and only
    when a pod turns up that is not known. `refresh` does that, in a thread of its own; `of` never
    waits.

    Args:
        records: reads the records of this boot.
        fetch: reads a claim from the API server.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        records: Callable[[], Iterable[Record]],
        fetch: Callable[[ClaimRef], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records, self._fetch, self._clock = records, fetch, clock
        self._lock = threading.Lock()
        self._known: dict[str, frozenset[ShareKey]] = {}
        self._asked: set[str] = set()
        self._unknown: dict[str, float] = {}

    def of(self, pod: str) -> frozenset[ShareKey] | None:
        """Return the shares of a pod by its UID; None while the API server has not told of it."""
        with self._lock:
            if pod in self._known:
                return self._known[pod]
            if self._unknown.get(pod, 0.0) <= self._clock():
                self._asked.add(pod)
                return None
            return frozenset()

    def refresh(self) -> None:
        """Ask the API server, if a pod was asked for that is not known.

        Raises:
            ApportionError: it does not answer, or the records cannot be read; asked again.
        """
        with self._lock:
            asked = set(self._asked)
        if not asked:
            return
        found: dict[str, frozenset[ShareKey]] = {}
        failure: ApportionError | None = None
        for record in self._records():
            keys = frozenset(share.key for share in record.shares)
            try:
                pods = _pods(self._fetch(record.ref), record.ref)
            except KubeNotFoundError:
                continue
            except ApportionError as error:
                failure = error
                pods = {pod for pod, known in self._known.items() if known & keys}
            for pod in pods:
                found[pod] = found.get(pod, frozenset()) | keys
        self._learn(found, asked if failure is None else asked & found.keys())
        if failure is not None:
            raise failure

    def _learn(self, found: dict[str, frozenset[ShareKey]], answered: set[str]) -> None:
        now = self._clock()
        with self._lock:
            self._known = found
            self._asked -= answered
            self._unknown = {pod: at for pod, at in self._unknown.items() if at > now} | {
                pod: now + _AGAIN_S for pod in answered if pod not in found
            }


def _pods(claim: Mapping[str, Any], ref: ClaimRef) -> set[str]:
    """Return the UIDs of the pods a claim is reserved for; none where another has its name."""
    metadata, status = claim.get("metadata"), claim.get("status")
    if not isinstance(metadata, Mapping) or metadata.get("uid") != ref.uid:
        return set()
    users = status.get("reservedFor") if isinstance(status, Mapping) else None
    return {
        str(user.get("uid"))
        for user in (users if isinstance(users, list) else ())
        if isinstance(user, Mapping) and user.get("resource") == "pods"
    }
