"""A plain HTTP proxy before the real API server, which does what real ones do on bad days."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.node.support.apiserver import ApiServer

Match = Callable[[str, str], bool]


def every(_method: str, _path: str) -> bool:
    return True


def method(name: str) -> Match:
    return lambda verb, _path: verb == name


def containing(text: str) -> Match:
    return lambda _verb, path: text in path


class Fault:
    """What happens to matching requests.

    status: the answer; 0 closes the connection without one.
    hang: wait first, until the proxy's `released` is set.
    times: how often; -1 is always.
    then_forward: go on to the API server in the end.
    """

    def __init__(
        self, match: Match, *, status: int = 0, hang: bool = False, times: int = -1
    ) -> None:
        self.match = match
        self.status = status
        self.hang = hang
        self.times = times
        self.then_forward = False

    def takes(self, verb: str, path: str) -> bool:
        if self.times == 0 or not self.match(verb, path):
            return False
        self.times -= 1
        return True


class Proxy:
    """Forwards to the server at `url`; `faults` and `away`/`back` may be used at any time."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.released = threading.Event()
        self.connections: set[socket.socket] = set()
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self.back()
        return self

    def __exit__(self, *_: object) -> None:
        self.away()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def count(self, verb: str) -> int:
        return sum(found == verb for found, _path in self.requests)

    def away(self) -> None:
        """Refuse connections and cut those that are open."""
        if self._http is None or self._thread is None:
            return
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self.cut()
        self._thread.join()
        self._http = None

    def cut(self) -> None:
        """Cut the open connections, watches among them."""
        for one in list(self.connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def back(self) -> None:
        """Listen, always at the same port."""
        self.released = threading.Event()
        proxy = self

        class Bound(_Handler):
            owner = proxy

        self._http = _Server(("127.0.0.1", self._port), Bound)
        self._port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the play."""


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.owner.connections.add(self.connection)

    def finish(self) -> None:
        self.owner.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is http's
        """Say nothing."""

    def _serve(self) -> None:
        proxy = self.owner
        proxy.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = next((f for f in proxy.faults if f.takes(self.command, self.path)), None)
        if fault is not None:
            self._fail(fault)
        if fault is None or fault.then_forward:
            self._forward(body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names are http's

    def _fail(self, fault: Fault) -> None:
        if fault.hang:
            self.owner.released.wait(60)
        if fault.then_forward:
            return
        if not fault.status:
            self.close_connection = True
            return
        content = {"kind": "Status", "message": "played by the test", "code": fault.status}
        data = json.dumps(content).encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _forward(self, body: bytes) -> None:
        server = self.owner.server
        upstream = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=server.tls(), timeout=300
        )
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while chunk := answer.read1(65536):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            upstream.close()
