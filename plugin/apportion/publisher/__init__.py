"""Keeps the node's ResourceSlices at the API server as they should be.

Two loops. One compares what is there, read anew each time, with what should be, and repairs; it
runs when the bell rings, and on a timer. The other watches the slices and rings the bell. So a
lost or doubled event costs one more look and never a wrong slice, and no cache can be stale.

Source of the rules for pools: k8s.io/api/resource/v1 (ResourcePool) and the controller in
k8s.io/dynamic-resource-allocation/resourceslice, whose 30 s delay after a deletion is not kept:
kubelet deletes all slices of the node whenever it starts, and pods wait for them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from apportion import log, slices
from apportion.backoff import Backoff
from apportion.errors import (
    KubeConflictError,
    KubeError,
    KubeExpiredError,
    KubeNotFoundError,
    RetryableError,
)
from apportion.kube import Kube, Watch
from apportion.kubeerrors import say
from apportion.publisher.lacks import Lacks
from apportion.publisher.plan import Body, Desired, Plan, device_names, plan

_LOG = logging.getLogger(__name__)

# A look without a reason, should the watch ever fail to ring.
_RESYNC_S = 300.0
# Two programs that each "correct" the other's slices must not load the API server.
_ROUNDS = 5
_ROUNDS_S = 30.0


class Publisher:
    """The loop that repairs (`run`) and the loop that watches (`watch`), one thread each."""

    def __init__(
        self,
        api: Kube,
        *,
        driver: str,
        node: str,
        desired: Desired,
        refresh: Callable[[], None] = lambda: None,
        on_published: Callable[[int], None] = lambda _devices: None,
        on_error: Callable[[], None] = lambda: None,
        on_dropped: Callable[[str], None] = lambda _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wire it; nothing happens yet.

        Args:
            api: the API server.
            driver: name of the DRA driver.
            node: name of the node and of its pool.
            desired: what should be there.
            refresh: called between each look and what is decided by it, so that `desired` can
                learn what another plugin of this node knew when it wrote what was found.
            on_published: told after each good look: how many devices are there.
            on_error: told of each failed try.
            on_dropped: told each time that the API server keeps not all, what to say of it.
            clock: seconds, monotonic.
        """
        self._api, self._driver, self._node = api, driver, node
        self._desired, self._refresh = desired, refresh
        self._on_published, self._on_error = on_published, on_error
        self._clock = clock
        self._lacks = Lacks(clock, on_dropped)
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._stream: Watch | None = None
        self._backoff = Backoff()
        self._floor = 0
        self._node_uid = ""
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)
        self._stood: Sequence[Body] | None = None
        self._api_trouble = log.Trouble(_LOG, "slices cannot be published")
        self._fight_trouble = log.Trouble(_LOG, "slices keep being changed")
        self._watch_trouble = log.Trouble(_LOG, "slices cannot be watched")

    def wake(self) -> None:
        """Look again now: what is desired may have changed."""
        self._bell.set()

    def stop(self) -> None:
        """End both loops soon. The slices stay: shares that run need no scheduler."""
        self._stop.set()
        self._bell.set()
        if self._stream is not None:
            self._stream.close()

    def run(self) -> None:
        """Repair until stopped."""
        while not self._stop.is_set():
            self._bell.clear()
            self._bell.wait(self.step())

    def step(self) -> float:
        """Look once and repair; return the seconds until the next look, unless the bell rings."""
        try:
            wait = self._reconcile()
        except KubeConflictError as error:
            # Somebody was faster: look again. Only if it goes on is it worth a word.
            _LOG.debug("slices changed meanwhile", extra={"error": str(error)})
            return self._backoff.next()
        except KubeError as error:
            if self._lacks.refused(error):
                return 0.0
            self._on_error()
            level = logging.WARNING if isinstance(error, RetryableError) else logging.ERROR
            say(self._api_trouble, error, level)
            return self._backoff.next()
        self._backoff.reset()
        self._api_trouble.end()
        return wait

    def _reconcile(self) -> float:
        found = self._api.list_slices(self._driver, self._node).items
        self._refresh()
        now = self._clock()
        due = self._lacks.begin()
        # Before the plan: what changes in between is news once more, and never taken for a fight.
        wanted = self._wanted(0)
        todo = self._plan(found, accept_dropped=not due)
        if todo is None:
            return _RESYNC_S
        if not todo:
            self._stood = wanted
            self._settled(found, todo.generation, complete=due)
            return self._lacks.again_in(_RESYNC_S)
        # News of our own, such as a taint, waits for nobody.
        wait = self._throttle(now) if wanted == self._stood else 0.0
        if wait > 0:
            return wait
        if todo.create:
            # The node may be a new object of the old name, and slices of the old one are doomed.
            self._read_node()
            todo = self._plan(found, accept_dropped=not due)
            if todo is None:
                return _RESYNC_S
        self._apply(todo)
        self._stood = wanted
        # What was written is looked at once more, from the server: nothing is believed.
        return 0.0

    def _plan(self, found: Sequence[Body], *, accept_dropped: bool) -> Plan | None:
        if not self._node_uid:
            self._read_node()
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": self._node_uid,
            "controller": True,
        }
        return plan(
            found,
            self._wanted,
            pool=self._node,
            owner=owner,
            floor=self._floor,
            accept_dropped=accept_dropped,
        )

    def _wanted(self, generation: int) -> Sequence[Body] | None:
        """Return what should be there, as far as this API server keeps it."""
        bodies = self._desired(generation)
        return None if bodies is None else self._lacks.kept(bodies)

    def _read_node(self) -> None:
        try:
            node = self._api.get_node(self._node)
        except KubeNotFoundError as error:
            raise KubeNotFoundError(
                f"there is no node {self._node!r}; node_name must be its name at the API server",
                error.status,
            ) from error
        self._node_uid = str(node["metadata"]["uid"])

    def _apply(self, todo: Plan) -> None:
        # First what must not be there: better nothing published than a device that is gone.
        for body in todo.delete:
            self._api.delete_slice(body)
        self._floor = max(self._floor, todo.generation)
        stored = [(body, self._api.update_slice(body)) for body in todo.update]
        stored += [(body, self._api.create_slice(body)) for body in todo.create]
        _LOG.info(
            "slices published",
            extra={
                "generation": todo.generation,
                "new": len(todo.create),
                "changed": len(todo.update),
                "removed": len(todo.delete),
            },
        )
        differences = [slices.differs(body, there) for body, there in stored]
        self._lacks.dropped([path for found in differences for path in found.dropped])

    def _settled(self, found: Sequence[Body], generation: int, *, complete: bool) -> None:
        """Note that there is nothing to do; `complete`: not even what the server dropped."""
        self._floor = max(self._floor, generation)
        self._lacks.settled(complete=complete)
        if len(self._rounds) < _ROUNDS or self._clock() - self._rounds[0] >= _ROUNDS_S:
            self._fight_trouble.end()
        self._on_published(sum(len(device_names(body)) for body in found))

    def _throttle(self, now: float) -> float:
        """Return the seconds until what somebody changed may be put right once more."""
        if len(self._rounds) == _ROUNDS and now - self._rounds[0] < _ROUNDS_S:
            self._fight_trouble.begin(
                "fight",
                f"{_ROUNDS} repairs in {_ROUNDS_S:.0f} s; does another program, or another "
                "version of this plugin, write the slices of this node? Slower now",
            )
            return self._rounds[0] + _ROUNDS_S - now
        self._rounds.append(now)
        return 0.0

    def watch(self) -> None:
        """Ring the bell at each change of the slices, until stopped."""
        backoff = Backoff()
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._api.list_slices(self._driver, self._node).version
                    self.wake()
                version = self._follow(version, backoff)
            except KubeExpiredError:
                version = ""
            except KubeError as error:
                say(self._watch_trouble, error)
                version = ""
            # A server that ends every watch at once, or answers each list with 410, is no reason
            # to ask as fast as possible. Any event resets this.
            self._stop.wait(backoff.next())

    def _follow(self, version: str, backoff: Backoff) -> str:
        """Follow one watch to its end; return the version to go on from."""
        with contextlib.closing(self._api.watch_slices(self._driver, self._node, version)) as it:
            self._stream = it
            if self._stop.is_set():
                # Came too late for `stop` to close it; its connection closes when it is read out.
                it.close()
            for kind, there in it:
                version = there["metadata"]["resourceVersion"]
                backoff.reset()
                self._watch_trouble.end()
                if kind != "BOOKMARK":
                    self.wake()
        return version
