"""What a daemon writes: read on as it grows, and cut off before it fills the node's memory."""

from __future__ import annotations

import os
from pathlib import Path

MOST = 1 << 20
"""Bytes of one log; it lies on a tmpfs, so they are memory."""

_AT_ONCE = 1 << 16
_LINE = 400


class Tail:
    """One log file.

    Args:
        path: the file; it may not be there yet.
        skip: whether what is in it already is left alone, as when a daemon is adopted.
    """

    def __init__(self, path: Path, *, skip: bool) -> None:
        self._path = path
        self._at = _size(path) if skip else 0

    def lines(self) -> list[str]:
        """Return the whole lines that were added since, cut short; never raises."""
        size = _size(self._path)
        if size < self._at:
            self._at = 0
        # What came too fast to be read is left out, but for its end.
        self._at = max(self._at, size - _AT_ONCE)
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                text = file.read(_AT_ONCE)
        except OSError:
            return []
        whole = text.rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        if size > MOST:
            self._cut()
        lines = (line.decode(errors="replace")[:_LINE].strip() for line in whole.split(b"\n"))
        return [line for line in lines if line]

    def _cut(self) -> None:
        """Empty the file: the daemon goes on at its end, or leaves a hole that takes no room."""
        try:
            os.truncate(self._path, 0)
        except OSError:
            return
        self._at = 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
