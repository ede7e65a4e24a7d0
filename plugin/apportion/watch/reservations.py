"""Which shares a pod may use, for processes that show nothing but their pod."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from apportion.backoff import Backoff
from apportion.errors import ApportionError, KubeNotFoundError, KubeUnavailableError
from apportion.ledger.schema import Record
from apportion.model import ClaimRef, ClaimUid, ShareKey

_AGAIN_S = 60.0
# For each claim asked for: ten calls a second, on average.
_CALL_S = 0.1


class Reservations:
    """The pods that the prepared claims are reserved for, by UID.

    A claim's record names the pods of its first Prepare only, so the API server is asked, and only
    when a pod turns up that is not known, or the claims are others than before. `refresh` does
    that, in a thread of its own; `of` never waits.

    Args:
        records: reads the records of this boot; too slow to be called each time.
        claims: looks which claims have a record.
        fetch: reads a claim from the API server.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        records: Callable[[], Iterable[Record]],
        claims: Callable[[], frozenset[ClaimUid]],
        fetch: Callable[[ClaimRef], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records, self._list, self._fetch, self._clock = records, claims, fetch, clock
        self._lock = threading.Lock()
        self._known: dict[str, frozenset[ShareKey]] = {}
        self._asked: set[str] = set()
        self._unknown: dict[str, float] = {}
        self._claims: frozenset[ClaimUid] = frozenset()
        self._backoff = Backoff(1.0)
        self._due = clock()

    def of(self, pod: str) -> frozenset[ShareKey] | None:
        """Return the shares of a pod by its UID; None while the API server has not told of it."""
        with self._lock:
            if pod in self._known:
                return self._known[pod]
            if self._unknown.get(pod, 0.0) <= self._clock():
                self._asked.add(pod)
                return None
            return frozenset()

    def refresh(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Ask the API server, if a pod was asked for that is not known or the claims are others.

        Args:
            stopping: asked between calls; nothing is learned once it says so.

        Raises:
            ApportionError: it does not answer, or the records cannot be read; asked again, after a
                pause that grows.
        """
        if self._clock() < self._due:
            return
        with self._lock:
            asked = set(self._asked)
            told = bool(self._known or self._unknown)
        if not asked and not told:
            return
        claims = self._list()
        if not asked and claims == self._claims:
            return
        records = list(self._records())
        found, failure = self._ask(records, stopping)
        if stopping():
            return
        if failure is not None:
            self._due = self._clock() + self._backoff.next()
            self._keep(found)
            raise failure
        self._backoff.reset()
        self._due = self._clock() + len(records) * _CALL_S
        self._claims = claims
        self._learn(found, asked)

    def _ask(
        self, records: Iterable[Record], stopping: Callable[[], bool]
    ) -> tuple[dict[str, frozenset[ShareKey]], ApportionError | None]:
        """Return the shares of each pod, not all of them where there is an error too."""
        found: dict[str, frozenset[ShareKey]] = {}
        failure: ApportionError | None = None
        for record in records:
            if stopping():
                break
            try:
                pods = _pods(self._fetch(record.ref), record.ref)
            except KubeNotFoundError:
                continue
            except KubeUnavailableError as error:
                # Nor will it answer for the others.
                return found, error
            except ApportionError as error:
                failure = error
                continue
            for pod in pods:
                keys = frozenset(share.key for share in record.shares)
                found[pod] = found.get(pod, frozenset()) | keys
        return found, failure

    def _keep(self, found: Mapping[str, frozenset[ShareKey]]) -> None:
        """Add what was found; a pod that was not known stays so: it may have more shares."""
        with self._lock:
            self._known = {
                pod: known | found.get(pod, frozenset()) for pod, known in self._known.items()
            }

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
