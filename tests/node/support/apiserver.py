"""A real kube-apiserver on a real etcd, without kubelet, scheduler or controllers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

_START_S = 60.0
ADMIN, NOBODY = "admin-token", "nobody-token"


class ApiServer:
    """Starts on free ports of 127.0.0.1 and dies with the test process.

    Args:
        programs: folder of etcd and kube-apiserver.
        folder: where all files go.
        feature_gates: for kube-apiserver.
    """

    def __init__(
        self, programs: Path, folder: Path, feature_gates: Mapping[str, bool] | None = None
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._gates = dict(feature_gates or {})
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._etcd_port, self._peer_port, self.port = free_ports(3)

    def __enter__(self) -> Self:
        self._prepare_files()
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        self._etcd = self._spawn(
            "etcd",
            *("--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._etcd is not None:
            _end(self._etcd)
        shutil.rmtree(self._folder / "etcd", ignore_errors=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self._folder / "pki/apiserver.crt"

    def start(self) -> None:
        """Start kube-apiserver and wait until it answers."""
        key = str(self._folder / "sa.key")
        gates = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self._gates.items()))
        self._server = self._spawn(
            "kube-apiserver",
            *("--etcd-servers", f"http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self.port)),
            *("--cert-dir", str(self._folder / "pki")),
            *("--token-auth-file", str(self._folder / "tokens.csv")),
            *("--authorization-mode", "RBAC"),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-cluster-ip-range", "10.96.0.0/24"),
            # Its own controllers look for a cluster around it.
            "--endpoint-reconciler-type=none",
            *(("--feature-gates", gates) if gates else ()),
        )
        self._await()

    def stop(self) -> None:
        """End kube-apiserver; etcd keeps all objects."""
        if self._server is not None:
            # It would wait a minute for open watches.
            self._server.send_signal(signal.SIGKILL)
            self._server.wait()
            self._server = None

    def kubeconfig(self, url: str = "", token: str = ADMIN) -> Path:
        """Write a kubeconfig for this server, or for a proxy before it at `url`."""
        cluster: dict[str, str] = {"server": url or self.url}
        if not url:
            cluster["certificate-authority"] = str(self.certificate)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        name = hashlib.sha256(f"{token} {url or self.url}".encode()).hexdigest()[:16]
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    def call(
        self, method: str, path: str, body: object = None, token: str = ADMIN
    ) -> dict[str, Any]:
        """Call the API, without the client under test; by default as administrator."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.tls())
        )
        with opener.open(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def _prepare_files(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "tokens.csv").write_text(
            f'{ADMIN},admin,admin,"system:masters"\n{NOBODY},nobody,nobody\n'
        )
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self._folder / "sa.key"), "2048"],
            check=True,
            capture_output=True,
        )

    def _spawn(self, program: str, *args: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                # They end with this process, however that ends.
                ["setpriv", "--pdeathsig", "KILL", str(self._programs / program), *args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "GOMAXPROCS": "2"},
            )

    def _await(self) -> None:
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._server is not None
            assert self._server.poll() is None, self._tail()
            assert time.monotonic() < deadline, self._tail()
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.call("GET", "/apis/resource.k8s.io/v1")
            self.call("GET", "/api/v1/namespaces/default")
        except (OSError, ValueError):
            return False
        return True

    def _tail(self) -> str:
        return "\n".join((self._folder / "kube-apiserver.log").read_text().splitlines()[-15:])


def add_node(server: ApiServer, name: str) -> str:
    """Create a Node; return its UID."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    return str(server.call("POST", "/api/v1/nodes", body)["metadata"]["uid"])


def token_of_pod(server: ApiServer, node: str, account: str, namespace: str) -> str:
    """Return what a pod of this ServiceAccount on this node finds as its token."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {
        "nodeName": node,
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "containers": [{"name": "c", "image": "none"}],
    }
    metadata = {"generateName": f"{account}-"}
    pod = server.call(
        "POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"]}
    answer = server.call(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound},
        },
    )
    return str(answer["status"]["token"])


def free_ports(count: int) -> Sequence[int]:
    """Return TCP ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
