"""One JSON line asked, one JSON line answered, over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.harness.errors import HarnessError

Handler = Callable[[dict[str, Any]], dict[str, Any]]
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
_BACKLOG = 16
_CLIENT_TIMEOUT = 5.0  # seconds a client may take to send its line


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A name for path that fits the 107 bytes of a socket address, however deep its folder is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def call(path: Path, timeout: float, /, **request: Any) -> dict[str, Any]:
    """Ask the server at path; raises HarnessError with the server's words when it refuses."""
    with connection(path, timeout) as link:
        link.sendall(json.dumps(request).encode() + b"\n")
        line = _read_line(link)
    if not line:
        raise HarnessError(f"{path}: closed without an answer to {request.get('op')}")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise HarnessError(str(answer["error"]))
    return answer


@contextlib.contextmanager
def connection(path: Path, timeout: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link, _short_path(path) as short:
        link.settimeout(timeout)
        link.connect(short)
        yield link


def server_pid(path: Path, timeout: float) -> int:
    """The PID, in the caller's PID namespace, of the process that listens at path."""
    with connection(path, timeout) as link:
        raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid: int = _PEER.unpack(raw)[0]
    return pid


def _read_line(link: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        chunk = link.recv(65536)
        if not chunk:
            break
        data += chunk
    return data


class Server:
    """Answers calls one at a time, in the thread that runs serve()."""

    def __init__(self, path: Path, handler: Handler, selector: selectors.BaseSelector) -> None:
        self._handler = handler
        self._socket = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        with _short_path(path) as short:
            self._socket.bind(short)
        path.chmod(0o600)
        self._socket.listen(_BACKLOG)
        selector.register(self._socket, selectors.EVENT_READ, self.answer)

    def answer(self) -> None:
        """Take one call and answer it; a client that breaks off harms nobody else."""
        link, _ = self._socket.accept()
        with link, contextlib.suppress(OSError):
            link.settimeout(_CLIENT_TIMEOUT)
            line = _read_line(link)
            if line:
                link.sendall(json.dumps(self._reply(line)).encode() + b"\n")

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            return self._handler(json.loads(line))
        except (HarnessError, OSError, ValueError, KeyError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        self._socket.close()
