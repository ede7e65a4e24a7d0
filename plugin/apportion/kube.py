"""The API server, in dictionaries.

Dictionaries, because the client's typed models drop or refuse fields that they do not know, and
cost memory. From the client comes authentication, for a kubeconfig (`wire`).
No limit of requests on our side: who calls too often has to wait by itself (`backoff`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from apportion import answers, wire
from apportion.connections import ERRORS, Answer, Limits
from apportion.errors import (
    KubeError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from apportion.kubeerrors import error_type
from apportion.model import ClaimRef

_RESOURCE = "/apis/resource.k8s.io/v1"
"""Served by Kubernetes 1.34 and newer."""

_SLICES = f"{_RESOURCE}/resourceslices"
_CLASS = f"{_RESOURCE}/deviceclasses/{{name}}"
_CLAIM = f"{_RESOURCE}/namespaces/{{namespace}}/resourceclaims/{{name}}"
_NODE = "/api/v1/nodes/{name}"
_EVENTS = "/apis/events.k8s.io/v1/namespaces/{namespace}/events"

_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"

_CONNECT_S = 5
_PAGE = 500
# Half a million objects, which is more than an API server can hold.
_PAGES = 1000
# An object is at most 1.5 MiB in etcd, and a few times that in JSON.
_LINE = 16 << 20

_WATCH_S = 240
# The server sends a bookmark each minute: a connection that is silent for longer is dead.
_WATCH_SILENCE_S = 90

_FAILED = 500
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class SliceList:
    """Slices, and the resource version to watch on from."""

    items: tuple[dict[str, Any], ...]
    version: str


class Watch:
    """Events of one watch, until the server ends it; `close` may be called by another thread."""

    def __init__(self, response: Answer) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (type, object); BOOKMARK objects hold a resource version only.

        Raises:
            KubeExpiredError: the resource version is too old; list again.
            KubeError: the server said so, or the connection broke.
        """
        try:
            yield from self._events()
        except KubeUnavailableError:
            # After `close` a broken connection is what was wanted.
            if not self._closed:
                raise
        finally:
            self._response.close()

    def _events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        rest = b""
        with _broken("watch"):
            for chunk in self._response.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield _event(line)
                if len(rest) > _LINE:
                    raise KubeUnavailableError("the API server's watch has a line without an end")

    def close(self) -> None:
        """End the iteration soon, or at once if it begins later; that closes the connection."""
        self._closed = True
        # Nothing to shut down any more is no failure.
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()


class Kube:
    """Calls of the API server, safe from many threads; each raises a KubeError when it fails."""

    def __init__(self, way: wire.Wire, timeout_s: float) -> None:
        self._wire = way
        self._limits = Limits(min(timeout_s, _CONNECT_S), timeout_s)

    def get_claim(self, ref: ClaimRef) -> dict[str, Any]:
        """Return the ResourceClaim with this namespace and name, whatever its UID."""
        parts = {"namespace": ref.namespace, "name": ref.name}
        return self._json("GET", _CLAIM, parts, check=answers.check_claim)

    def list_claims(self) -> list[dict[str, Any]]:
        """Return the ResourceClaims of all namespaces."""
        return list(self._list(f"{_RESOURCE}/resourceclaims", {}, answers.check_claim).items)

    def list_slices(self, driver: str, node: str = "") -> SliceList:
        """Return the driver's slices of one node, or of all nodes; never from a cache."""
        return self._list(_SLICES, _selector(driver, node), answers.check_slice)

    def watch_slices(self, driver: str, node: str, version: str) -> Watch:
        """Watch the driver's slices of one node from `version` on, for some minutes."""
        query = _selector(driver, node) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        silence = _WATCH_SILENCE_S
        limits = replace(self._limits, whole=silence, silence=silence)
        return Watch(self._call("GET", _SLICES, query=query, limits=limits))

    def create_slice(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a slice; return it as the server stored it."""
        return self._json("POST", _SLICES, check=answers.check_slice, body=body)

    def update_slice(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace a slice at its resource version; return it as the server stored it."""
        path = {"name": body["metadata"]["name"]}
        return self._json("PUT", _SLICES + "/{name}", path, check=answers.check_slice, body=body)

    def delete_slice(self, found: Mapping[str, Any]) -> None:
        """Delete this slice as it was found: not a changed one, nor another of that name."""
        meta = found["metadata"]
        conditions = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
        self._read("DELETE", _SLICES + "/{name}", {"name": meta["name"]}, body=body)

    def get_node(self, name: str) -> dict[str, Any]:
        """Return the Node."""
        return self._json("GET", _NODE, {"name": name}, check=answers.check_node)

    def get_class(self, name: str) -> dict[str, Any]:
        """Return the DeviceClass."""
        return self._json("GET", _CLASS, {"name": name}, check=answers.check_class)

    def apply_claim_status(
        self, ref: ClaimRef, status: Mapping[str, Any], manager: str
    ) -> dict[str, Any]:
        """Server-side apply of what `manager` owns of the status of this very claim.

        Entries that it had and `status` lacks go; those of others stay. Returns the whole claim.
        Raises KubeInvalidError if another claim has the name now.
        """
        parts = {"namespace": ref.namespace, "name": ref.name}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": parts | {"uid": ref.uid},
            "status": status,
        }
        query = {"fieldManager": manager, "force": "true"}
        check = answers.check_claim
        return self._json(
            "PATCH", _CLAIM + "/status", parts, check=check, query=query, body=body, kind=_APPLY
        )

    def create_event(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an Event in the namespace that it names."""
        path = {"namespace": body["metadata"]["namespace"]}
        return self._json("POST", _EVENTS, path, check=answers.check_event, body=body)

    def patch_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `body` into an Event and return it whole; an empty body changes nothing."""
        path = {"namespace": namespace, "name": name}
        return self._json(
            "PATCH", _EVENTS + "/{name}", path, check=answers.check_event, body=body, kind=_MERGE
        )

    def _list(self, path: str, query: dict[str, str], check: answers.Check) -> SliceList:
        items: list[dict[str, Any]] = []
        what, more = f"GET {path}", ""
        for _ in range(_PAGES):
            asked = query | {"limit": str(_PAGE)} | ({"continue": more} if more else {})
            data = self._read("GET", path, query=asked)
            before = more
            found, more, version = answers.page(what, data, check)
            items += found
            if not more:
                return SliceList(tuple(items), version)
            if more == before:
                break
        raise KubeUnavailableError(f"the API server answered nonsense to {what}: it has no end")

    def _json(
        self,
        method: str,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        check: answers.Check,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
    ) -> dict[str, Any]:
        data = self._read(method, path, parts, query=query, body=body, kind=kind)
        what = f"{method} {path.format(**parts or {})}"
        found = answers.decoded(what, data)
        check(what, found)
        answers.check_is(what, found, parts or {})
        return found

    def _read(
        self,
        method: str,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
    ) -> bytes:
        """Return an answer's whole body, which also gives its connection back."""
        response = self._call(method, path, parts, query=query, body=body, kind=kind)
        with _broken(f"{method} {path}"):
            return response.data

    def _call(
        self,
        method: str,
        path: str,
        parts: Mapping[str, str] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
        limits: Limits | None = None,
    ) -> Answer:
        """Return the answer, its body unread, or raise what its status stands for."""
        what = f"{method} {path.format(**parts or {})}"
        if set((parts or {}).values()) & {"", ".", ".."}:
            raise KubeInvalidError(f"{what}: nothing has such a name")
        with _broken(what):
            target = path.format(**{key: quote(part, "") for key, part in (parts or {}).items()})
            response = self._wire.send(
                method,
                f"{target}?{urlencode(query)}" if query else target,
                kind=kind,
                body=body,
                limits=limits or self._limits,
            )
            if response.status not in _OK:
                error = _error(what, response.status, response.data)
                kind_of = path.partition("/{name}")[0].rpartition("/")[2]
                if isinstance(error, KubeNotFoundError) and not answers.is_missing(
                    response.data, kind_of, (parts or {}).get("name", "")
                ):
                    raise _no_answer(error)
                raise error
            return response


def connect(kubeconfig: str, timeout_s: float, account: Path = wire.ACCOUNT) -> Kube:
    """Return the API server of a kubeconfig, or of the pod's ServiceAccount if that is empty.

    Args:
        kubeconfig: the file.
        timeout_s: for each call, to the last byte of its answer.
        account: where the ServiceAccount's files lie.

    Raises:
        ConfigError: no such file, nonsense in it, or neither pod nor kubeconfig.
    """
    return Kube(wire.connect(kubeconfig, account), timeout_s)


def _selector(driver: str, node: str) -> dict[str, str]:
    fields = f"spec.driver={driver}" + (f",spec.nodeName={node}" if node else "")
    return {"fieldSelector": fields}


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    kind, found = answers.event("watch", line)
    if kind == "ERROR":
        code = found.get("code")
        error = _error("watch", code if isinstance(code, int) else _FAILED, line)
        # What is watched is no object that could be missing.
        raise _no_answer(error) if isinstance(error, KubeNotFoundError) else error
    return kind, found


def _error(what: str, status: int, data: bytes) -> KubeError:
    """Return the error for an answer; the message is the server's own where there is one."""
    return error_type(status)(f"{what}: {status} {answers.message(data)}", status)


def _no_answer(error: KubeError) -> KubeError:
    """Return a 404 that says nothing of an object as an API server that is not there."""
    text = f"{error} (from a proxy, or {_RESOURCE} is not served)"
    return KubeUnavailableError(text, error.status)


@contextlib.contextmanager
def _broken(what: str) -> Iterator[None]:
    """Turn what connection and client raise into "not available": the next try may work."""
    try:
        yield
    except ERRORS as error:
        raise KubeUnavailableError(f"{what}: the API server does not answer: {error}") from error
    except RecursionError as error:
        # An object that was read well can still be too deep to be written.
        raise KubeUnavailableError(f"{what}: too deep: {error}") from error
    except ValueError as error:
        # The ServiceAccount's token is read again now and then, and may be no token just then.
        raise KubeUnavailableError(f"{what}: no usable credentials: {error}") from error
