"""The way to the API server: credentials, and requests as they go out.

In a pod this needs no more than two files and two variables, so the Kubernetes client is loaded
only for a kubeconfig, whose ways to log in are many: it costs 20 MiB and half of the time of a
start.
"""

from __future__ import annotations

import functools
import json
import os
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from apportion import __version__, files
from apportion.connections import Answer, Connections, Limits, Proxy, Server
from apportion.errors import ConfigError, StorageError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts a pod's token and the API server's CA."""

_AGENT = f"apportion/{__version__}"
_AUTHORITY, _TOKEN = "ca.crt", "token"
# More than threads that call at a time: 8 Prepares of 8 claims would wait for each other here.
_CONNECTIONS = 16
_PORTS = {"http": 80, "https": 443}
# Kubelet renews a token when 80 % of its time are over.
_CREDENTIALS_S = 10.0
# What the client raises for a kubeconfig of another shape.
_NONSENSE = (AttributeError, KeyError, TypeError, ValueError)

Credentials = Callable[[], dict[str, str]]
"""Gives headers. Raises ValueError: there are none just then."""


class Wire:
    """Sends requests; safe from many threads.

    Args:
        server: where to.
        credentials: asked every ten seconds.
        path: what stands before each target, without a slash at its end.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        server: Server,
        credentials: Credentials,
        path: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = Connections(server, _CONNECTIONS)
        self._credentials, self._path, self._clock = credentials, path, clock
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._renewal = -1.0

    def send(
        self, method: str, target: str, *, kind: str, body: Mapping[str, Any] | None, limits: Limits
    ) -> Answer:
        """Return the answer of whatever status, its body unread; redirects are not followed.

        Args:
            method: of HTTP.
            target: path and query, as they are sent.
            kind: media type of the body.
            body: sent as JSON.
            limits: of the time.

        Raises:
            OSError, http.client.HTTPException: there is no answer.
            RecursionError: the body is too deep to be written.
            ValueError: there are no credentials just then, or nonsense.
        """
        headers = {
            "Accept": "application/json",
            "Content-Type": kind,
            "User-Agent": _AGENT,
        } | self._authorization()
        data = b"" if body is None else json.dumps(body).encode()
        return self._connections.request(method, self._path + target, headers, data, limits)

    def _authorization(self) -> dict[str, str]:
        with self._lock:
            now = self._clock()
            if now >= self._renewal:
                self._known = self._credentials()
                self._renewal = now + _CREDENTIALS_S
            return self._known


def connect(kubeconfig: str, account: Path = ACCOUNT) -> Wire:
    """Return the way by a kubeconfig, or by the pod's ServiceAccount if that is empty.

    Args:
        kubeconfig: the file, or several as with kubectl.
        account: where the ServiceAccount's files lie.

    Raises:
        ConfigError: no such file, nonsense in it, or neither pod nor kubeconfig.
    """
    return _by_kubeconfig(kubeconfig) if kubeconfig else _in_pod(account)


def _in_pod(account: Path) -> Wire:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    why = "KUBERNETES_SERVICE_HOST and _PORT are not set to an address"
    todo = "outside a pod set kubeconfig to a file"
    if host and port.isdecimal():
        why = _missing(account)
        todo = f"let the pod have its token (automountServiceAccountToken: true); {todo}"
    if why:
        raise ConfigError(f"cannot reach a Kubernetes API: {why}; {todo}")
    # Read anew for each connection: a cluster may change its authority.
    tls = functools.partial(ssl.create_default_context, cafile=str(account / _AUTHORITY))
    return Wire(Server(host, int(port), tls), lambda: _token(account))


def _missing(account: Path) -> str:
    """Return what is wrong with the ServiceAccount's files."""
    try:
        if not files.read(account / _AUTHORITY):
            return f"there is no certificate in {account / _AUTHORITY}"
        _token(account)
    except (ValueError, StorageError) as error:
        return str(error)
    return ""


def _token(account: Path) -> dict[str, str]:
    try:
        token = (files.read(account / _TOKEN) or b"").decode("ascii").strip()
    except StorageError as error:
        raise ValueError(str(error)) from error
    if not token:
        raise ValueError(f"there is no token in {account / _TOKEN}")
    return {"Authorization": f"Bearer {token}"}


def _by_kubeconfig(kubeconfig: str) -> Wire:
    import yaml  # noqa: PLC0415 - the plugin in its pod needs neither
    from kubernetes import client, config  # noqa: PLC0415

    found = client.Configuration()
    try:
        # The client's package is marked as typed; this function of it is not.
        config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, client_configuration=found, persist_config=False
        )
    except (config.ConfigException, yaml.YAMLError, OSError, *_NONSENSE) as error:
        raise _useless(kubeconfig, error) from error

    def credentials() -> dict[str, str]:
        try:
            settings: Iterable[Any] = found.auth_settings().values()
        except config.ConfigException as error:
            raise ValueError(str(error)) from error
        return {each["key"]: each["value"] for each in settings}

    try:
        url = urlsplit(str(found.host))
        server = Server(
            url.hostname or "",
            url.port or _PORTS[url.scheme],
            functools.partial(_context, found) if url.scheme == "https" else None,
            found.tls_server_name or "",
            None if _is_near(found) else _proxy(urlsplit(str(found.proxy))),
        )
    except (KeyError, ValueError) as error:
        raise _useless(kubeconfig, error) from error
    return Wire(server, credentials, url.path.rstrip("/"))


def _context(found: Any) -> ssl.SSLContext:
    """Return what a kubeconfig, as the client has it, wants of TLS. Raises OSError."""
    context = ssl.create_default_context(cafile=found.ssl_ca_cert, cadata=found.ca_cert_data)
    context.check_hostname = found.verify_ssl and found.assert_hostname is not False
    if not found.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        context.load_cert_chain(found.cert_file, found.key_file)
    return context


def _is_near(found: Any) -> bool:
    """Return whether no proxy is to be asked, by kubeconfig and environment."""
    from kubernetes.client import rest  # noqa: PLC0415 - the plugin in its pod needs it not

    return not found.proxy or bool(rest.should_bypass_proxies(found.host, found.no_proxy or ""))


def _proxy(url: SplitResult) -> Proxy:
    """Return the proxy at a URL. Raises ValueError: it is of another kind."""
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"its proxy is none that is spoken to by http: {url.scheme}://…")
    headers = {}
    if url.username is not None:
        login = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {b64encode(login).decode()}"
    return Proxy(url.hostname, url.port or _PORTS["http"], headers)


def _useless(kubeconfig: str, error: Exception) -> ConfigError:
    why = str(error).rstrip(".")
    # As with kubectl a list of files is one that has what any of them has.
    if not any(os.path.lexists(path) for path in kubeconfig.split(os.pathsep)):
        why = "there is no such file"
    return ConfigError(
        f"cannot reach a Kubernetes API by {kubeconfig}: {why}; set kubeconfig to a file that "
        "kubectl can use"
    )
