"""Threads that die visibly: a loop that fails unexpectedly ends the process with an error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from apportion import log
from apportion.errors import ApportionError

_LOG = logging.getLogger(__name__)


class Loops:
    """The process's loops and the event that ends them."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failed = False
        self._threads: list[threading.Thread] = []

    def start(self, name: str, target: Callable[[], None]) -> None:
        """Run `target` in a thread; if it raises, or returns before its time, all ends.

        Nothing happens once all loops are told to end: even one round may change what others see.
        """
        if self.stopping.is_set():
            return
        thread = threading.Thread(target=self._guarded, args=(name, target), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def every(self, name: str, seconds: Callable[[], float], action: Callable[[], None]) -> None:
        """Run `action` again and again, `seconds()` after the last time, the first time then."""
        trouble = log.Trouble(_LOG, name)

        def loop() -> None:
            while not self.stopping.wait(seconds()):
                try:
                    action()
                except ApportionError as error:
                    # Foreseen: a full disk, an API server that is away. The next time may be good.
                    trouble.begin(str(error), str(error))
                else:
                    trouble.end()

        self.start(name, loop)

    def stop(self) -> None:
        """Let all loops end."""
        self.stopping.set()

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for all loops together; return whether all have ended."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _LOG.warning("a loop does not end", extra={"loop": thread.name})
        return not any(thread.is_alive() for thread in self._threads)

    def _guarded(self, name: str, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception:  # noqa: BLE001 - the process ends by it, with a traceback in the log
            _LOG.exception("a loop failed; the process ends", extra={"loop": name})
            self.failed = True
        else:
            if self.stopping.is_set():
                return
            _LOG.error("a loop ended before its time; the process ends", extra={"loop": name})
            self.failed = True
        self.stopping.set()
