"""Events on the node, on claims and on their pods: what `kubectl describe` shows of trouble.

Noting one costs its caller a lock and a dictionary: a thread of its own (`run`) talks to the API
server. The same words about the same thing are one Event, whose count grows, also over restarts of
the plugin and while the API server is away. What is noted is bounded in number and in rate, and
no failure here reaches the caller.

Source of the rules for Events: ValidateEventCreate and ValidateEventUpdate in
pkg/apis/core/validation/events.go of Kubernetes 1.36.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from apportion import log
from apportion.backoff import Backoff, Bucket
from apportion.errors import (
    KubeConflictError,
    KubeError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from apportion.kubeerrors import is_of_one, say
from apportion.model import ClaimRef

_LOG = logging.getLogger(__name__)

# Kinds of trouble that are remembered at a time, and different words about one of them: a message
# that never says the same twice must not become an Event each time.
_MOST, _MOST_WORDS = 256, 5
# An Event lives for an hour at the API server, counted from its last change.
_FORGET_S = 3600.0
_AGAIN_S, _AGAIN_MOST_S = 60.0, 1800.0
# A claim may be reserved for 256 pods; the first of them by name tell as much.
_MOST_PODS = 16
_BURST, _REFILL_S = 25, 2.0
_MOST_NOTE, _MOST_INSTANCE = 1024, 128
_MISSING = 404

Object = dict[str, Any]


class Api(Protocol):
    """What of kube.Kube is used."""

    def get_claim(self, ref: ClaimRef) -> Object:
        """Return the claim of that name."""

    def create_event(self, body: Mapping[str, Any]) -> Object:
        """Create an Event."""

    def patch_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        """Merge into an Event and return it."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What is said of what; no claim: of the node."""

    claim: ClaimRef | None
    pods: bool
    reason: str
    note: str
    warning: bool

    def like(self, other: _Key) -> bool:
        """Whether both say the same kind of thing of the same thing, in whatever words."""
        return (self.claim, self.pods, self.reason) == (other.claim, other.pods, other.reason)


@dataclass(slots=True)
class _Series:
    """How often it was noted, how much of that is told, and when (wall clock; due: monotonic)."""

    first: float
    last: float
    count: int = 0
    sent: int = 0
    due: float = 0.0
    interval: float = _AGAIN_S
    retry: Backoff = field(default_factory=Backoff)
    # Count that each Event of it had before this process, by name.
    events: dict[str, int] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        return self.count > self.sent


class Recorder:
    """Notes events (any thread, never blocks for long, never raises) and sends them (`run`).

    Args:
        api: the API server.
        driver: name of the DRA driver, who reports.
        node: name of the node.
        clock: seconds, monotonic.
        now: seconds since 1970.
    """

    def __init__(
        self,
        api: Api,
        *,
        driver: str,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._driver, self._node = api, driver, node
        self._clock, self._now = clock, now
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._series: dict[_Key, _Series] = {}
        self._backoff = Backoff()
        self._bucket = Bucket(_BURST, _REFILL_S, clock)
        self._trouble = log.Trouble(_LOG, "events cannot be sent")
        self._full = log.Trouble(_LOG, "events are lost")

    def on_node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about this node.

        Args:
            reason: one word in CamelCase, the same for the same kind of thing.
            message: what happened, to what, and what to do; cut after 1024 bytes.
            warning: whether somebody should care; else it is of type Normal.
        """
        self._note(_Key(None, False, reason, _cut(message), warning))  # noqa: FBT003 - a value

    def on_claim(self, ref: ClaimRef, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about a claim; for the other arguments see `on_node`."""
        self._note(_Key(ref, False, reason, _cut(message), warning))  # noqa: FBT003 - a value

    def on_pods(self, ref: ClaimRef, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about the pods that a claim is reserved for when it is sent.

        Where that cannot be told it is an event on the claim. For the other arguments see
        `on_node`.
        """
        self._note(_Key(ref, True, reason, _cut(message), warning))  # noqa: FBT003 - a value

    def stop(self) -> None:
        """End `run` soon; what is not sent is lost."""
        self._stop.set()
        self._bell.set()

    def run(self) -> None:
        """Send until stopped."""
        while not self._stop.is_set():
            self._bell.clear()
            self._bell.wait(self.step())

    def step(self) -> float | None:
        """Send what is due; return the seconds until the next time, None: until the bell rings."""
        with self._lock:
            self._forget()
            waiting = sorted(
                ((series.due, series.first, key) for key, series in self._pending()),
                key=lambda item: item[:2],
            )
        again: list[float] = []
        for due, _first, key in waiting:
            now = self._clock()
            if due > now:
                return max(min([due, *again]) - now, 0.0)
            short = self._bucket.take()
            if short > 0:
                return short
            series = self._series[key]
            try:
                self._send(key, series)
            except KubeError as error:
                say(self._trouble, error)
                if not is_of_one(error):
                    return self._backoff.next()
                series.due = now + series.retry.next()
                again.append(series.due)
            else:
                self._backoff.reset()
                series.retry.reset()
        return max(min(again) - self._clock(), 0.0) if again else None

    def _note(self, key: _Key) -> None:
        now = self._now()
        with self._lock:
            found = self._series.get(key) or self._alike(key)
            if found is None:
                if len(self._series) >= _MOST and not self._make_room():
                    self._full.begin("full", f"more than {_MOST} kinds of them wait to be sent")
                    return
                found = self._series[key] = _Series(first=now, last=now)
            found.count += 1
            found.last = now
        self._bell.set()

    def _alike(self, key: _Key) -> _Series | None:
        """Return the latest of those alike, if there are so many that this becomes one of them."""
        alike = [series for known, series in self._series.items() if known.like(key)]
        return alike[-1] if len(alike) >= _MOST_WORDS else None

    def _make_room(self) -> bool:
        """Forget what was told and is silent for longest; return whether there was any."""
        told = [key for key, series in self._series.items() if not series.pending]
        if told:
            del self._series[min(told, key=lambda key: self._series[key].last)]
        return bool(told)

    def _forget(self) -> None:
        now = self._now()
        for key, series in list(self._series.items()):
            if not series.pending and now - series.last > _FORGET_S:
                del self._series[key]

    def _pending(self) -> list[tuple[_Key, _Series]]:
        return [(key, series) for key, series in self._series.items() if series.pending]

    def _send(self, key: _Key, series: _Series) -> None:
        """Send one series. Raises KubeUnavailableError or KubeConflictError: try again."""
        count, last = series.count, series.last
        try:
            for regarding in self._regarding(key):
                self._put(key, series, regarding, count, last)
        except (KubeUnavailableError, KubeConflictError) as error:
            # A 404 that is not the Event's own: its namespace has gone, and all in it.
            if error.status != _MISSING:
                raise
        except KubeError as error:
            # Refused for good: said once, and tried again when it is noted again.
            say(self._trouble, error)
        else:
            self._trouble.end()
        with self._lock:
            series.sent = count
            series.due = self._clock() + series.interval
            series.interval = min(series.interval * 2, _AGAIN_MOST_S)
            self._full.end()

    def _regarding(self, key: _Key) -> list[Object]:
        """Return references to the objects that it is about."""
        if key.claim is None:
            # As kubelet names its node; kubectl looks for that too.
            return [{"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node}]
        return (key.pods and self._pods(key.claim)) or [_claim(key.claim)]

    def _pods(self, ref: ClaimRef) -> list[Object]:
        try:
            found = self._api.get_claim(ref)
        except KubeNotFoundError:
            return []
        if found["metadata"]["uid"] != ref.uid:
            return []
        status = found.get("status")
        users = status.get("reservedFor") if isinstance(status, dict) else None
        pods = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": ref.namespace,
                "name": user["name"],
                "uid": user.get("uid", ""),
            }
            for user in users or ()
            if isinstance(user, dict) and user.get("resource") == "pods" and user.get("name")
        ]
        return sorted(pods, key=lambda pod: str(pod["name"]))[:_MOST_PODS]

    def _put(self, key: _Key, series: _Series, regarding: Object, count: int, last: float) -> None:
        """Bring one Event to this count, made anew where its time at the API server is over."""
        namespace = regarding.get("namespace", "default")
        name = _name(self._driver, self._node, key, regarding)
        before = series.events.get(name)
        if before is not None:
            try:
                self._api.patch_event(namespace, name, _counted(before + count, last))
            except KubeNotFoundError:
                pass
            else:
                return
        try:
            self._api.create_event(
                self._body(key, series, regarding, (before or 0) + count)
                | {"metadata": {"namespace": namespace, "name": name}}
            )
        except KubeConflictError:
            # Of this node's plugin before this one, which said the same.
            there = self._api.patch_event(namespace, name, {})
            before = int((there.get("series") or {}).get("count", 1))
            self._api.patch_event(namespace, name, _counted(before + count, last))
        series.events[name] = before or 0

    def _body(self, key: _Key, series: _Series, regarding: Object, count: int) -> Object:
        body: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "eventTime": _time(series.first),
            "reportingController": self._driver,
            "reportingInstance": self._node[:_MOST_INSTANCE],
            "action": key.reason,
            "reason": key.reason,
            "type": "Warning" if key.warning else "Normal",
            "note": key.note,
            "regarding": regarding,
        }
        if key.claim is not None and regarding["kind"] == "Pod":
            body["related"] = _claim(key.claim)
        return body | (_counted(count, series.last) if count > 1 else {})


def _claim(ref: ClaimRef) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": ref.namespace,
        "name": ref.name,
        "uid": ref.uid,
    }


def _counted(count: int, last: float) -> Object:
    return {"series": {"count": count, "lastObservedTime": _time(last)}}


def _name(driver: str, node: str, key: _Key, regarding: Object) -> str:
    """Return the Event's name: the same for the same words, also of another process."""
    parts = (driver, node, key.reason, key.note, regarding["kind"], regarding["uid"])
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
    # A name is at most 253 characters and begins with a letter or digit.
    return f"{str(regarding['name'])[:200].rstrip('.-')}.{digest}"


def _time(seconds: float) -> str:
    there = dt.datetime.fromtimestamp(seconds, dt.UTC)
    return there.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(message: str) -> str:
    """Return the message as an Event can carry it: 1024 bytes of text."""
    data = message.encode(errors="replace")
    if len(data) <= _MOST_NOTE:
        return data.decode()
    return data[: _MOST_NOTE - len("…".encode())].decode(errors="ignore") + "…"
