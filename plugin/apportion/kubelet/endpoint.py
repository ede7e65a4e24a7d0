"""A gRPC server at one address: a unix socket that is made again when somebody deletes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.protobuf.internal import api_implementation

from apportion.errors import ConfigError, StorageError

_LOG = logging.getLogger(__name__)

WORKERS = 8
"""Calls at a time; the figure that the measurements in docs/decisions were made with."""

MAX_MESSAGE = 4 << 20
"""Bytes; kubelet's own client accepts no more (gRPC's default), 10,000 claims need 2 MiB."""

_MODE = 0o600
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.so_reuseport", 0),
    # Each call would be measured by a ping and its answer, for windows that no call here fills.
    ("grpc.http2.bdp_probe", 0),
)

Register = Callable[[grpc.Server], None]
"""Adds one service to a server that was not started yet."""


def check_protobuf() -> None:
    """Warn where protobuf runs without its C library: 100 times slower (measured)."""
    found = api_implementation.Type()
    if found != "upb":
        _LOG.warning(
            "protobuf runs without its fast implementation; reinstall protobuf and unset "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
            extra={"implementation": found},
        )


class SocketServer:
    """Services at one unix socket, readable by root only."""

    def __init__(self, path: Path, services: Sequence[Register], workers: int = WORKERS) -> None:
        self.path = path
        self._services = tuple(services)
        self._workers = workers
        self._server: grpc.Server | None = None
        self._inode: tuple[int, int] | None = None
        self._wanted = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Bind and serve; whatever lies at the path is replaced: the instance's lock is held.

        Raises:
            StorageError: the socket cannot be made there.
        """
        with self._lock:
            self._wanted = True
            self._start()

    def ensure(self) -> bool:
        """Make the socket again if its file is gone or another; return whether that was needed."""
        with self._lock:
            alive = self._server is not None and self._inode == _inode(self.path)
            if alive or not self._wanted:
                return False
            # In this order: a gRPC server unlinks its path when it stops, whoever bound it last.
            self._stop(grace_s=1.0)
            self._start()
        _LOG.warning(
            "a socket of the plugin had been deleted and was made again",
            extra={"path": str(self.path)},
        )
        return True

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait up to `grace_s` seconds for those that run, remove the socket."""
        with self._lock:
            self._wanted = False
            self._stop(grace_s)

    def _start(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            server = _server(self._services, self._workers)
            _bind(server, f"unix:{self.path}")
            # Until here the umask rules, which never lets others write, and connecting is writing.
            self.path.chmod(_MODE)
        except OSError as error:
            raise StorageError(f"cannot serve at {self.path}: {error}") from error
        server.start()
        self._server, self._inode = server, _inode(self.path)

    def _stop(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.stop(grace_s).wait()
            self._server = None
            self.path.unlink(missing_ok=True)


class TcpServer:
    """Services at a TCP address, for probes."""

    def __init__(self, address: str, services: Sequence[Register]) -> None:
        self._address = address
        self._services = tuple(services)
        self._server: grpc.Server | None = None
        self.port = 0

    def start(self) -> None:
        """Bind and serve.

        Raises:
            ConfigError: the address is nonsense or taken.
        """
        server = _server(self._services, workers=2)
        try:
            self.port = _bind(server, self._address)
        except OSError as error:
            raise ConfigError(
                f"cannot serve health at {self._address!r}: {error}; set health_address to "
                "host:port with a free port, or to nothing"
            ) from error
        server.start()
        self._server = server

    def stop(self) -> None:
        """Close at once: a probe asks again."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None


def _server(services: Sequence[Register], workers: int) -> grpc.Server:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="grpc")
    server = grpc.server(pool, options=_OPTIONS)
    for register in services:
        register(server)
    return server


def _bind(server: grpc.Server, address: str) -> int:
    """Return the port; gRPC says by a RuntimeError, or by port 0, that it could not."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    if port == 0:
        raise OSError("the address cannot be bound")
    return port


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
