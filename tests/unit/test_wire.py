"""Requests as they go out, with the credentials that the client has just then."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from apportion import wire
from apportion.connections import Limits
from apportion.connections import Server as Address
from apportion.errors import ConfigError


class Server(ThreadingHTTPServer):
    """Notes what it is sent, and answers with one status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.connections = 0
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    def process_request(self, *arguments: Any) -> None:
        self.connections += 1
        super().process_request(*arguments)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_PATCH = do_GET  # noqa: N815 - named by http.server

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def way(server: Server, tmp_path: Path) -> wire.Wire:
    url = f"http://127.0.0.1:{server.server_port}"
    return by_kubeconfig(tmp_path, {"server": url}, {"token": "secret"})


def send(way: wire.Wire, method: str = "GET", body: Any = None) -> tuple[int, bytes]:
    answer = way.send(method, "/a%20b?c=d", kind="application/x", body=body, limits=Limits(5, 5))
    return answer.status, answer.data


def test_a_request_has_the_credentials_and_says_who_asks(server: Server, way: wire.Wire) -> None:
    assert send(way) == (200, b"ok")
    ((method, path, headers, body),) = server.requests
    assert (method, path, body) == ("GET", "/a%20b?c=d", b"")
    assert headers["authorization"] == "Bearer secret"
    assert headers["user-agent"].startswith("apportion/")
    assert (headers["accept"], headers["content-type"]) == ("application/json", "application/x")


@pytest.mark.parametrize("body", [{}, {"metadata": {"name": "ä"}}])
def test_a_body_is_json(server: Server, way: wire.Wire, body: Any) -> None:
    send(way, "PATCH", body)
    assert json.loads(server.requests[0][3]) == body


def test_a_connection_is_kept_for_the_next_request(server: Server, way: wire.Wire) -> None:
    for _ in range(5):
        send(way)
    assert (len(server.requests), server.connections) == (5, 1)


def test_a_redirect_leads_nowhere(server: Server, way: wire.Wire) -> None:
    server.status = 302
    assert send(way) == (302, b"ok")
    assert len(server.requests) == 1


def test_credentials_are_asked_for_again_after_a_while(server: Server) -> None:
    times, tokens = iter((0.0, 9.0, 11.0)), iter("ab")
    way = wire.Wire(
        Address("127.0.0.1", server.server_port),
        lambda: {"Authorization": next(tokens)},
        clock=lambda: next(times),
    )
    for _ in range(3):
        send(way)
    said = [headers["authorization"] for _method, _path, headers, _body in server.requests]
    assert said == ["a", "a", "b"]


def pod(folder: Path, monkeypatch: pytest.MonkeyPatch, host: str = "10.0.0.1") -> None:
    """Lay out what a pod finds."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (folder / "ca.crt").write_text("a certificate")
    (folder / "token").write_text("one\n")


def test_in_a_pod_the_token_is_the_one_that_kubelet_wrote_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod(tmp_path, monkeypatch)
    credentials = wire.connect("", tmp_path)._credentials
    assert credentials() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two")
    assert credentials() == {"Authorization": "Bearer two"}
    for nonsense, said in ((b"", "no token"), (b"\xff", "ascii")):
        (tmp_path / "token").write_bytes(nonsense)
        with pytest.raises(ValueError, match=said):
            credentials()
    (tmp_path / "token").unlink()
    with pytest.raises(ValueError, match="there is no token in "):
        credentials()


@pytest.mark.parametrize(
    ("host", "said"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]"), ("api", "api")]
)
def test_the_address_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, said: str
) -> None:
    pod(tmp_path, monkeypatch, host)
    server = wire.connect("", tmp_path)._connections.server
    assert (server.host, server.authority) == (host, f"{said}:443")
    assert server.tls is not None


@pytest.mark.parametrize("missing", ["token", "ca.crt", "HOST", "PORT"])
def test_a_pod_without_one_of_these_is_told_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    pod(tmp_path, monkeypatch)
    if missing.isupper():
        monkeypatch.delenv(f"KUBERNETES_SERVICE_{missing}")
    else:
        (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=f"{missing}.*; outside a pod set kubeconfig"):
        wire.connect("", tmp_path)


def test_in_a_pod_the_kubernetes_client_is_not_loaded() -> None:
    code = (
        "import sys, apportion.app\n"
        "print(sorted({'kubernetes', 'pydantic', 'urllib3'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def by_kubeconfig(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> wire.Wire:
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return wire.connect(str(path))


@pytest.fixture
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        for each in (name, name.lower()):
            monkeypatch.delenv(each, raising=False)


@pytest.mark.usefixtures("_no_proxy")
@pytest.mark.parametrize(
    ("url", "authority", "path", "tls"),
    [
        ("https://api", "api:443", "", True),
        ("https://[fd00::1]:6443/", "[fd00::1]:6443", "", True),
        ("https://api:1/k8s/c-1/", "api:1", "/k8s/c-1", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8001", "", False),
    ],
)
def test_the_address_in_a_kubeconfig(
    tmp_path: Path, url: str, authority: str, path: str, *, tls: bool
) -> None:
    way = by_kubeconfig(tmp_path, {"server": url}, {})
    server = way._connections.server
    assert (server.authority, way._path) == (authority, path)
    assert (server.tls is not None, server.proxy) == (tls, None)


@pytest.mark.usefixtures("_no_proxy")
@pytest.mark.parametrize(
    ("cluster", "verified", "named"),
    [
        ({}, True, ""),
        ({"insecure-skip-tls-verify": True}, False, ""),
        ({"tls-server-name": "other"}, True, "other"),
    ],
)
def test_what_a_kubeconfig_says_of_tls(
    tmp_path: Path, cluster: dict[str, Any], *, verified: bool, named: str
) -> None:
    server = by_kubeconfig(tmp_path, {"server": "https://api"} | cluster, {})._connections.server
    assert server.tls is not None
    context = server.tls()
    assert context.check_hostname is verified
    assert context.verify_mode is (ssl.CERT_REQUIRED if verified else ssl.CERT_NONE)
    assert server.name == named


@pytest.mark.usefixtures("_no_proxy")
def test_a_proxy_of_a_kubeconfig_is_gone_through(tmp_path: Path) -> None:
    cluster = {"server": "https://api", "proxy-url": "http://me:a%40b@proxy:3128"}
    proxy = by_kubeconfig(tmp_path, cluster, {})._connections.server.proxy
    assert proxy is not None
    assert (proxy.host, proxy.port) == ("proxy", 3128)
    assert proxy.headers == {"Proxy-Authorization": "Basic bWU6YUBi"}


@pytest.mark.usefixtures("_no_proxy")
def test_a_proxy_is_not_asked_for_what_is_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert by_kubeconfig(tmp_path, {"server": "https://api"}, {})._connections.server.proxy
    monkeypatch.setenv("NO_PROXY", "api")
    assert not by_kubeconfig(tmp_path, {"server": "https://api"}, {})._connections.server.proxy


@pytest.mark.usefixtures("_no_proxy")
@pytest.mark.parametrize(
    "cluster",
    [
        {"server": "https://api", "proxy-url": "socks5://proxy:1080"},
        {"server": "https://api:port"},
        {"server": "ftp://api"},
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_a_setting_to_correct(
    tmp_path: Path, cluster: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="set kubeconfig"):
        by_kubeconfig(tmp_path, cluster, {})


def test_a_port_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod(tmp_path, monkeypatch)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp://10.0.0.1:443")
    with pytest.raises(ConfigError, match="not set to an address"):
        wire.connect("", tmp_path)
