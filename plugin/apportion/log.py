"""Structured logs: text for people, JSON for machines, an ID on each line of a kubelet call.

Levels: ERROR, a person must act. WARNING, something is degraded and will be tried again, or an
input was refused. INFO, the life of the plugin and of each share, one line an event. DEBUG, steps.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

_CALL: contextvars.ContextVar[str] = contextvars.ContextVar("call", default="")

# What logging puts on every record itself; everything else came by `extra` and is a field.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# As a value stands between quotes: nothing at all, and what would end it or its name.
_QUOTED = re.compile(r'^$|[ "=]')

# What somebody else wrote (a claim's fields) must not make a second line of a log.
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), 127)}


@contextlib.contextmanager
def call_id(identifier: str) -> Iterator[None]:
    """Put `identifier` on each line logged by this thread until the block ends."""
    token = _CALL.set(identifier)
    try:
        yield
    finally:
        _CALL.reset(token)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = {k: v for k, v in vars(record).items() if k not in _STANDARD and not k.startswith("_")}
    call = _CALL.get()
    return ({"call": call} if call else {}) | found


def _timestamp(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03d}Z"


@functools.lru_cache(maxsize=1)
def _second(created: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, call, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        # A field called like one of ours is kept beside it, not in its place.
        line |= {f"{k}_" if k in line else k: v for k, v in _fields(record).items()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`time LEVEL message key=value …`, values with spaces in quotes, and always one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end; a traceback follows on lines of its own."""
        message = record.getMessage().translate(_CONTROLS)
        parts = [_timestamp(record), f"{record.levelname:<7}", message]
        parts += [f"{key}={_quoted(value)}" for key, value in _fields(record).items()]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


def _quoted(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and _QUOTED.search(text) is None
    return text if plain else json.dumps(text)


def setup(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send all logs of the process to `stream` (default: standard error).

    Args:
        level: a name of the logging module, in capitals.
        form: "json" or "text".
        stream: where the lines go.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # No line says where in the code it was written, by which process or task; looking costs time.
    logging._srcfile = None  # noqa: SLF001 - logging's own documentation says to
    logging.logProcesses = logging.logMultiprocessing = False
    logging.logThreads = False


class Trouble:
    """A state of trouble: logged when it begins or changes and when it is over, not each time."""

    def __init__(self, logger: logging.Logger, subject: str) -> None:
        self._logger = logger
        self._subject = subject
        self._known = ""

    def begin(self, state: str, message: str, level: int = logging.WARNING) -> None:
        """Log `message` unless this `state` is known already."""
        if state != self._known:
            self._logger.log(level, "%s: %s", self._subject, message)
        self._known = state

    def end(self) -> None:
        """Log that all is well again, if it was not."""
        if self._known:
            self._logger.info("%s: all is well again", self._subject)
        self._known = ""
