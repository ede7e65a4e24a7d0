"""Words for the person who waits."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

_TERMINAL_INTERVAL = 1.0  # seconds between updates of one line on a terminal
_LOG_INTERVAL = 30.0  # seconds between lines in a log


def say(text: str) -> None:
    """One line, at once."""
    print(f"[cluster] {text}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """`8 s`, `2 min 10 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def task(text: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """Say what is being done, how long it has taken so far, and when it is done."""
    start = time.monotonic()
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(text, detail, start, done), daemon=True)
    say(f"{text} …")
    reporter.start()
    outcome = "failed after"
    try:
        yield
        outcome = "done in"
    finally:
        done.set()
        reporter.join()
        say(f"{text}: {outcome} {duration(time.monotonic() - start)}")


def _report(text: str, detail: Callable[[], str], start: float, done: threading.Event) -> None:
    terminal = sys.stderr.isatty()
    while not done.wait(_TERMINAL_INTERVAL if terminal else _LOG_INTERVAL):
        more = detail()
        line = f"{text} … {duration(time.monotonic() - start)}{', ' if more else ''}{more}"
        if terminal:
            print(f"\r\033[K[cluster] {line}", end="", file=sys.stderr, flush=True)
        else:
            say(line)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
