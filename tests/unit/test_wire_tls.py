"""The API server's certificate, as a pod without a kubeconfig checks it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer

import pytest
from apportion import wire
from apportion.connections import Limits


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_arguments: object) -> None:
        pass


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, *_arguments: object) -> None:
        """A client that refuses the certificate hangs up."""


class _Server6(_Server):
    address_family = socket.AF_INET6


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities for the loopback addresses, and one for another name."""
    folder = tmp_path_factory.mktemp("certificates")
    here = "IP:127.0.0.1,IP:::1"
    for name, subject in (("one", here), ("two", here), ("elsewhere", "DNS:elsewhere")):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}",
             "-keyout", f"{name}.key", "-out", f"{name}.crt"],
            cwd=folder, capture_output=True, check=True, timeout=30,
        )  # fmt: skip
    return folder


@pytest.fixture
def serve(certificates: Path) -> Iterator[Callable[..., int]]:
    """Start servers with a certificate; give their ports."""
    running: list[tuple[_Server, threading.Thread]] = []

    def start(name: str, host: str = "127.0.0.1") -> int:
        server = (_Server6 if ":" in host else _Server)((host, 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / f"{name}.crt", certificates / f"{name}.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((server, thread))
        return server.server_address[1]

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def pod(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., wire.Wire]:
    """Give the way of a pod to a port of this host, by one authority."""

    def connect(port: int, authority: str = "one", host: str = "127.0.0.1") -> wire.Wire:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        (tmp_path / "ca.crt").write_bytes((certificates / f"{authority}.crt").read_bytes())
        (tmp_path / "token").write_text("secret")
        return wire.connect("", tmp_path)

    return connect


def send(way: wire.Wire) -> bytes:
    return way.send("GET", "/", kind="application/json", body=None, limits=Limits(5, 5)).data


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_with_the_certificate_of_the_account_is_believed(
    serve: Callable[..., int], pod: Callable[..., wire.Wire], host: str
) -> None:
    assert send(pod(serve("one", host), "one", host)) == b"ok"


@pytest.mark.parametrize(("server", "authority"), [("two", "one"), ("elsewhere", "elsewhere")])
def test_one_with_another_certificate_or_for_another_name_gets_(
    serve: Callable[..., int], pod: Callable[..., wire.Wire], server: str, authority: str
) -> None:
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        send(pod(serve(server), authority))


def test_a_new_authority_holds_for_the_next_connection(
    serve: Callable[..., int],
    pod: Callable[..., wire.Wire],
    certificates: Path,
    tmp_path: Path,
) -> None:
    way = pod(serve("two"), "one")
    with pytest.raises(ssl.SSLError):
        send(way)
    (tmp_path / "ca.crt").write_bytes((certificates / "two.crt").read_bytes())
    assert send(way) == b"ok"


def test_a_proxy_of_the_environment_is_not_asked(
    serve: Callable[..., int],
    pod: Callable[..., wire.Wire],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server is the cluster's own; a proxy would get every node's token."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(pod(serve("one"))) == b"ok"
