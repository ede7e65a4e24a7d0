"""What the API server answers, checked once where it comes in; who reads on may trust it. Pure.

A proxy, a load balancer or a server that is half up can put anything behind a status of 200. What
is not of the shape that is asked for is an API server that is not there: tried again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from apportion.errors import KubeUnavailableError

Object = dict[str, Any]
Check = Callable[[str, Object], None]

_META = "metadata"
# Far more than what is read of any object; the API server takes ten thousand in a claim's opaque
# parameters, and Python's decoder not even one.
_LEVELS = 100
_STEP = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}]', re.DOTALL)

_MOST = (1 << 63) - 1
"""Of the API's int64."""


def decoded(what: str, data: bytes) -> Object:
    """Return the JSON object in an answer to the call `what`, without what nests too deep to read.

    There stands null: nothing that is asked for lies so deep, and whoever put it there hides no
    object of anybody else, as a list of all claims that cannot be read would.

    Raises:
        KubeUnavailableError: it is none.
    """
    try:
        try:
            found = json.loads(data)
        except RecursionError:
            found = json.loads(_shallow(data))
    except (ValueError, RecursionError) as error:
        raise _nonsense(what, f"no JSON: {error}") from error
    return _object(what, "it", found)


def page(what: str, data: bytes, check: Check) -> tuple[list[Object], str, str]:
    """Return a list's objects, each checked, its `continue` token and its resource version."""
    found = decoded(what, data)
    meta = _object(what, _META, found.get(_META))
    # Go writes an empty list as null, but not this one.
    items = [_object(what, "an item", item) for item in _list(what, "items", found.get("items"))]
    for item in items:
        check(what, item)
    more = _text(what, "metadata.continue", meta.get("continue") or "")
    return items, more, _text(what, "metadata.resourceVersion", meta.get("resourceVersion"))


def event(what: str, line: bytes) -> tuple[str, Object]:
    """Return type and object of a line of a watch."""
    found = decoded(what, line)
    kind = _filled(what, "type", found.get("type"))
    there = _object(what, "object", found.get("object"))
    if kind != "ERROR":
        _named(what, there, "resourceVersion")
    return kind, there


def check_claim(what: str, found: Object) -> None:
    """Refuse what is no ResourceClaim; its allocation is for others to read."""
    _named(what, found, "name", "namespace", "uid")


def check_node(what: str, found: Object) -> None:
    """Refuse what is no Node."""
    _named(what, found, "name", "uid")


def check_class(what: str, found: Object) -> None:
    """Refuse what is no DeviceClass."""
    _named(what, found, "name")
    _object(what, "spec", found.get("spec"))


def check_event(what: str, found: Object) -> None:
    """Refuse what is no Event."""
    _named(what, found, "name", "namespace")


def check_slice(what: str, found: Object) -> None:
    """Refuse what is no ResourceSlice, as far as the publisher reads it."""
    _named(what, found, "name", "uid", "resourceVersion")
    _list(what, "metadata.ownerReferences", found[_META].get("ownerReferences") or [])
    spec = _object(what, "spec", found.get("spec"))
    pool = _object(what, "spec.pool", spec.get("pool"))
    _filled(what, "spec.pool.name", pool.get("name"))
    generation = pool.get("generation")
    if type(generation) is not int or not 0 <= generation < _MOST:
        raise _nonsense(what, "spec.pool.generation is no number of a generation")
    for device in _list(what, "spec.devices", spec.get("devices") or []):
        _filled(what, "a device's name", _object(what, "a device", device).get("name"))


def check_is(what: str, found: Object, parts: Mapping[str, str]) -> None:
    """Refuse an object of another name or namespace than was asked for."""
    for key, wanted in parts.items():
        if found[_META].get(key) != wanted:
            raise _nonsense(what, f"metadata.{key} is not {wanted!r}")


def is_missing(data: bytes, resource: str, name: str) -> bool:
    """Return whether a 404 is the API server's own word that it does not have this very object.

    A proxy says 404 too, and so does an API server that no longer serves the group. Source:
    NewNotFound in k8s.io/apimachinery/pkg/api/errors.

    Args:
        data: the answer.
        resource: plural of the object's kind, as in its path.
        name: the object's.
    """
    try:
        status = json.loads(data)
        details = status["details"]
        return (status["kind"], status["reason"], details["kind"], details["name"]) == (
            "Status",
            "NotFound",
            resource,
            name,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def message(data: bytes) -> str:
    """Return the words of a failed call's answer: the server's own where there are any."""
    try:
        found = json.loads(data)
        # A watch has its Status one level deeper.
        return str(found.get("object", found)["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data[:200].decode(errors="replace")


def _shallow(data: bytes) -> bytes:
    """Return JSON with null for each object and list that is deeper than _LEVELS; no recursion."""
    kept: list[bytes] = []
    depth = begun = 0
    for step in _STEP.finditer(data):
        sign = step[0]
        if sign in b"[{":
            depth += 1
            if depth == _LEVELS + 1:
                kept += data[begun : step.start()], b"null"
        elif sign in b"]}":
            if depth == _LEVELS + 1:
                begun = step.end()
            depth -= 1
    if depth <= _LEVELS:
        kept.append(data[begun:])
    return b"".join(kept)


def _named(what: str, found: Object, *fields: str) -> None:
    meta = _object(what, _META, found.get(_META))
    for field in fields:
        _filled(what, f"metadata.{field}", meta.get(field))


def _object(what: str, path: str, value: object) -> Object:
    if not isinstance(value, dict):
        raise _nonsense(what, f"{path} is no JSON object")
    return value


def _list(what: str, path: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _nonsense(what, f"{path} is no JSON list")
    return value


def _text(what: str, path: str, value: object) -> str:
    if not isinstance(value, str):
        raise _nonsense(what, f"{path} is no text")
    return value


def _filled(what: str, path: str, value: object) -> str:
    if not _text(what, path, value):
        raise _nonsense(what, f"{path} is empty")
    return str(value)


def _nonsense(what: str, why: str) -> KubeUnavailableError:
    return KubeUnavailableError(f"the API server answered nonsense to {what}: {why}")
