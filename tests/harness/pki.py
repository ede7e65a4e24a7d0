"""Keys, certificates and tokens of one cluster, made by openssl."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.errors import HarnessError

_DAYS = "30"
_TIMEOUT = 30.0  # seconds
ADMIN = "admin"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
PROXY = "kube-proxy"
FRONT_PROXY = "front-proxy-client"  # the API server, when it hands a request on


@dataclass(frozen=True)
class User:
    """Who may ask the API server: name of the kubeconfig, user name, groups."""

    file: str
    name: str
    groups: tuple[str, ...] = ()


def users(nodes: Iterable[str]) -> list[User]:
    """The cluster's users, with the names that Kubernetes' own roles are bound to."""
    return [
        User(ADMIN, "kubernetes-admin", ("system:masters",)),
        User(CONTROLLER_MANAGER, "system:kube-controller-manager"),
        User(SCHEDULER, "system:kube-scheduler"),
        User(PROXY, "system:kube-proxy"),
        *(User(node, f"system:node:{node}", ("system:nodes",)) for node in nodes),
    ]


def make(folder: Path, addresses: Iterable[str]) -> None:
    """Write sa.key, sa.pub and, each its own authority, apiserver and front-proxy .key and .crt."""
    names = [*(f"IP:{address}" for address in addresses), "DNS:kubernetes.default.svc"]
    curve = ["-pkeyopt", "ec_paramgen_curve:P-256"]
    _openssl(folder, "genpkey", "-algorithm", "EC", *curve, "-out", "sa.key")
    _openssl(folder, "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    request = ["req", "-x509", "-newkey", "ec", *curve, "-nodes", "-days", _DAYS]
    output = ["-keyout", "apiserver.key", "-out", "apiserver.crt"]
    subject = ["-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName={','.join(names)}"]
    _openssl(folder, *request, *output, *subject)
    output = ["-keyout", "front-proxy.key", "-out", "front-proxy.crt"]
    _openssl(folder, *request, *output, "-subj", f"/CN={FRONT_PROXY}")


def _openssl(folder: Path, *arguments: str) -> None:
    result = subprocess.run(
        ["openssl", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    if result.returncode:
        raise HarnessError(f"openssl {arguments[0]}: {result.stderr.strip()}")


def write_tokens(folder: Path, people: Iterable[User], server: str) -> None:
    """Write tokens.csv for the API server and <user>.kubeconfig for each user."""
    lines = []
    for user in people:
        token = secrets.token_hex(16)
        lines.append(f'{token},{user.name},{user.name},"{",".join(user.groups)}"\n')
        _private(folder / f"{user.file}.kubeconfig", _kubeconfig(folder, server, token))
    _private(folder / "tokens.csv", "".join(lines))


def _private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _kubeconfig(folder: Path, server: str, token: str) -> str:
    authority = str(folder / "apiserver.crt")
    cluster = {"server": server, "certificate-authority": authority}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "apportion", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [
                {"name": "apportion", "context": {"cluster": "apportion", "user": "user"}}
            ],
            "current-context": "apportion",
        },
        indent=1,
    )
