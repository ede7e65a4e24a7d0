"""What can go wrong with the test cluster, as types."""

from __future__ import annotations

from pathlib import Path

_TAIL_LINES = 15


class HarnessError(Exception):
    """The test cluster could not do what was asked; the message says what to do about it."""


class ComponentError(HarnessError):
    """A program of the cluster ended or did not become ready."""

    def __init__(self, component: str, what: str, log: Path | None) -> None:
        self.component = component
        self.log = log
        super().__init__(f"{component}: {what}{_log_tail(log)}")


def _log_tail(log: Path | None) -> str:
    if log is None or not log.is_file():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return f"\nlast lines of {log}:\n" + "\n".join(f"  {line}" for line in lines)
