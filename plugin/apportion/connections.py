"""HTTP to one server: connections that are kept, and one time limit for a whole request.

The standard library's client limits each read, so a server that drips bytes holds its caller for as
long as it likes. Here a read gets what is left of the time for all of them. Its parser is used, and
nothing above it: that costs as much processor time again as the rest of a request.

Source: RFC 9112 (HTTP/1.1), and section 9.3.6 of RFC 9110 for proxies.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import re
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

ERRORS = (OSError, http.client.HTTPException)
"""What is raised when there is no answer, ValueError for nonsense apart."""

_READ = 1 << 16
_BUFFER = 1 << 14
# Setting a socket's time limit is a call of the kernel: not for less than this, in seconds.
_SLACK = 0.1

# Neither may make a second line.
_WORD = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a request may take, in seconds.

    Attributes:
        connect: to connect, where no connection is open, TLS included.
        whole: for all of it, to the last byte of the answer.
        silence: 0, or how long an answer without an end may say nothing; `whole` is then to its
            headers only.
    """

    connect: float
    whole: float
    silence: float = 0.0


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that tunnels: where it is, and what it is told about who asks."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go.

    Attributes:
        host: a name or an address, IPv6 without brackets.
        port: of TCP.
        tls: gives what its certificate is checked by, anew for each connection; None: no TLS.
        name: the name in its certificate; empty: `host`.
        proxy: what stands before it.
    """

    host: str
    port: int
    tls: Callable[[], ssl.SSLContext] | None = None
    name: str = ""
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """Return host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    """One connection; at most one request is on its way. Each call raises ERRORS."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._silence = 0.0
        self._end = time.monotonic() + min(limits.connect, limits.whole)
        self._armed = self._left()
        first = server.proxy or server
        self._socket = socket.create_connection((first.host, first.port), timeout=self._armed)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.proxy is not None:
                self._tunnel(server, server.proxy)
            if server.tls is not None:
                self._arm()
                # A handshake is one operation, whose time limit is for all of it.
                self._socket = server.tls().wrap_socket(
                    self._socket, server_hostname=server.name or server.host
                )
        except BaseException:
            self._socket.close()
            raise
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    def ask(self, method: str, head: bytes, body: bytes, limits: Limits, end: float) -> Answer:
        """Send a request whose time is over at `end`; return its answer, the body unread."""
        self._end, self._silence = end, 0.0
        self._send(head + body)
        response = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
        response.begin()
        self._silence = limits.silence
        return Answer(response, self)

    def is_quiet(self) -> bool:
        """Return whether nothing came unasked: its end, most often."""
        return not self._readable.poll(0)

    def receive(self, buffer: memoryview) -> int:
        """Read what is there, at least one byte unless it ended."""
        self._arm()
        return self._socket.recv_into(buffer)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file of what is received, as the parser wants one."""
        return io.BufferedReader(_Received(self), _BUFFER)

    def shutdown(self) -> None:
        """End what another thread waits for."""
        # Below TLS, which is that thread's.
        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _arm(self) -> None:
        """Let the next read or write wait for as long as is left."""
        left = self._left()
        if not 0 <= self._armed - left < _SLACK:
            self._socket.settimeout(left)
            self._armed = left

    def _left(self) -> float:
        if self._silence:
            return self._silence
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._arm()
            rest = rest[self._socket.send(rest) :]

    def _tunnel(self, server: Server, proxy: Proxy) -> None:
        self._send(_head("CONNECT", server.authority, {"Host": server.authority, **proxy.headers}))
        response = http.client.HTTPResponse(self, method="CONNECT")  # type: ignore[arg-type]
        with contextlib.closing(response):
            response.begin()
            if response.status != http.HTTPStatus.OK:
                raise ConnectionError(f"the proxy {proxy.host} says {response.status}")


class _Received(io.RawIOBase):
    """What a connection receives; closing it closes no connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._connection.receive(buffer)


class Answer:
    """An answer: its status, and its body by `data` or by `stream`."""

    def __init__(self, response: http.client.HTTPResponse, connection: Connection) -> None:
        self.status = response.status
        self._response, self._connection = response, connection
        self.keep: Callable[[Connection], None] = lambda connection: connection.close()

    @functools.cached_property
    def data(self) -> bytes:
        """The whole body. Reading it gives the connection back. Raises ERRORS."""
        try:
            found = self._response.read()
        except BaseException:
            self.close()
            raise
        if self._response.will_close:
            self.close()
        else:
            self.keep(self._connection)
        return found

    def stream(self) -> Iterator[bytes]:
        """Yield the body as it comes; call `close` after. Raises ERRORS."""
        while chunk := self._response.read1(_READ):
            yield chunk

    def shutdown(self) -> None:
        """End `stream` in another thread soon. Raises OSError: it has ended."""
        self._connection.shutdown()

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
        self._connection.close()


class Connections:
    """Sends requests to one server; safe from many threads, each connection is kept for the next.

    Args:
        server: where to.
        most: connections that are kept.
    """

    def __init__(self, server: Server, most: int) -> None:
        self.server, self._most = server, most
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        weakref.finalize(self, _close, self._idle)

    def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, limits: Limits
    ) -> Answer:
        """Return the answer of whatever status; redirects are not followed, nothing is repeated.

        Args:
            method: of HTTP.
            target: path and query, as they are sent.
            headers: besides Host and Content-Length.
            body: empty: none.
            limits: of the time.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
            ValueError: a header or the target would not be one.
        """
        own = {"Host": self.server.authority, "Accept-Encoding": "identity"}
        if body:
            own["Content-Length"] = str(len(body))
        head = _head(method, target, {**own, **headers})
        end = time.monotonic() + limits.whole
        connection = self._kept() or Connection(self.server, limits)
        try:
            answer = connection.ask(method, head, body, limits, end)
        except BaseException:
            connection.close()
            raise
        answer.keep = self._keep
        return answer

    def _kept(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return a request to the end of its headers. Raises ValueError."""
    if not _WORD.fullmatch(target):
        raise ValueError(f"no target of a request: {target!r}")
    for name, value in headers.items():
        if not _WORD.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name} cannot be sent: it is more than one line of ASCII")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {each}" for name, each in headers.items())]
    return "\r\n".join((*lines, "", "")).encode("ascii")
