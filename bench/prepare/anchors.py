"""What a Prepare is made of, done alone: a request to the API server, a file made durable."""

from __future__ import annotations

import http.client
import os
import time
from pathlib import Path

from tests.node.support.apiserver import ADMIN, ApiServer


class Gets:
    """GETs of claims over one connection that is kept open, and their seconds."""

    def __init__(self, server: ApiServer) -> None:
        self.seconds: list[float] = []
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=server.tls(), timeout=10
        )

    def get(self, claim: dict[str, str]) -> None:
        """Read one claim, as Prepare does."""
        path = (
            f"/apis/resource.k8s.io/v1/namespaces/{claim['namespace']}/resourceclaims"
            f"/{claim['name']}"
        )
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {ADMIN}"})
        answer = self._connection.getresponse()
        answer.read()
        self.seconds.append(time.perf_counter() - began)
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"GET {path}: status {answer.status}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Files:
    """Files written, made durable and renamed, on the file system of the records."""

    def __init__(self, folder: Path) -> None:
        self.seconds: list[float] = []
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self) -> None:
        """Replace one file of 1 KiB: write, fsync, rename, fsync of the folder."""
        began = time.perf_counter()
        temporary = self._folder / "part"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, b"x" * 1024)
        os.fsync(fd)
        os.close(fd)
        temporary.rename(self._folder / "whole")
        fd = os.open(self._folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        self.seconds.append(time.perf_counter() - began)
