"""Odd answers with a good status: an API server that is not there, whatever it was asked."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from apportion import slices
from apportion.connections import Limits
from apportion.errors import KubeUnavailableError
from apportion.kube import Kube

from tests.fakes import samples
from tests.unit.test_kube import _REF, Answer, Lines, _kube

_POLICY = slices.Policy(driver=samples.DRIVER, node="n")
_META = {"name": "n", "namespace": "n", "uid": "u", "resourceVersion": "1"}


def body() -> dict[str, Any]:
    """Return a slice as the API server has it."""
    (made,) = slices.slices([samples.device()], _POLICY, generation=1)
    return made | {"metadata": dict(_META)}


def page(*items: object, **meta: object) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7"} | meta, "items": items}).encode()


CALLS: dict[str, Callable[[Kube], object]] = {
    "get_claim": lambda api: api.get_claim(_REF),
    "get_class": lambda api: api.get_class("n"),
    "get_node": lambda api: api.get_node("n"),
    "list_claims": lambda api: api.list_claims(),
    "list_slices": lambda api: api.list_slices("d", "n"),
    "create_slice": lambda api: api.create_slice(body()),
    "update_slice": lambda api: api.update_slice(body()),
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
        b'{"metadata": null, "items": null}',
        b'{"metadata": [], "items": []}',
        b'{"metadata": "x", "items": "abc"}',
        b'{"metadata": {}, "items": {"a": 1}}',
        b'{"metadata": {"uid": null}}',
        b'{"metadata": {"uid": ""}}',
        page(None),
        page({}),
        page({"metadata": {}}),
        page({"metadata": [1]}),
        page(body(), **{"continue": 3}),
    ],
    ids=lambda data: data[:40].decode(errors="replace"),
)
@pytest.mark.parametrize("call", CALLS)
def test_an_odd_answer_is_no_answer(call: str, data: bytes) -> None:
    with pytest.raises(KubeUnavailableError, match="the API server answered nonsense to "):
        CALLS[call](_kube(Answer(data=data)))


ODD: dict[str, Callable[[dict[str, Any]], object]] = {
    "spec": lambda found: found.update(spec=None),
    "pool": lambda found: found["spec"].update(pool="p"),
    "pool name": lambda found: found["spec"]["pool"].update(name=3),
    "generation": lambda found: found["spec"]["pool"].update(generation="x"),
    "generation true": lambda found: found["spec"]["pool"].update(generation=True),
    "generation high": lambda found: found["spec"]["pool"].update(generation=10**30),
    "generation low": lambda found: found["spec"]["pool"].update(generation=-1),
    "devices": lambda found: found["spec"].update(devices={"a": 1}),
    "device": lambda found: found["spec"].update(devices=["a"]),
    "device name": lambda found: found["spec"]["devices"][0].update(name=[]),
    "owners": lambda found: found["metadata"].update(ownerReferences="me"),
    "version": lambda found: found["metadata"].pop("resourceVersion"),
    "name": lambda found: found["metadata"].pop("name"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("call", ["list_slices", "create_slice", "update_slice"])
def test_an_odd_slice_is_no_answer(call: str, odd: str) -> None:
    found = body()
    data = page(found) if call == "list_slices" else json.dumps(found).encode()
    CALLS[call](_kube(Answer(data=data)))
    ODD[odd](found)
    data = page(found) if call == "list_slices" else json.dumps(found).encode()
    with pytest.raises(KubeUnavailableError, match="nonsense"):
        CALLS[call](_kube(Answer(data=data)))


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_another_claim_than_the_one_asked_for_is_no_answer(field: str) -> None:
    meta = {"name": "c", "namespace": "n", "uid": "u"}
    _kube(Answer(data=json.dumps({"metadata": meta}).encode())).get_claim(_REF)
    other = json.dumps({"metadata": meta | {field: "other"}}).encode()
    with pytest.raises(KubeUnavailableError, match=f"metadata.{field} is not"):
        _kube(Answer(data=other)).get_claim(_REF)


def test_a_slice_without_devices_and_owners_is_one() -> None:
    found = copy.deepcopy(body())
    found["spec"]["devices"] = None
    found["metadata"]["ownerReferences"] = None
    assert _kube(Answer(data=page(found))).list_slices("d", "n").items == (found,)


class Pages(Answer):
    """A list that always has one more page."""

    def __init__(self, token: Callable[[int], str]) -> None:
        super().__init__()
        self.token, self.count = token, 0

    def send(self, *request: Any, limits: Limits, **rest: Any) -> Any:
        self.count += 1
        self.data = page(**{"continue": self.token(self.count)})
        return super().send(*request, limits=limits, **rest)


@pytest.mark.parametrize(
    ("token", "most"), [(lambda _n: "more", 2), (lambda n: f"more-{n}", 1000)], ids=["same", "new"]
)
def test_a_list_without_an_end_is_no_answer(token: Callable[[int], str], most: int) -> None:
    pages = Pages(token)
    with pytest.raises(KubeUnavailableError, match="no end"):
        _kube(pages).list_slices("d", "n")
    assert pages.count == most


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": []}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": 3}}}',
        b'{"type": [], "object": {}}',
        b'{"type": "ERROR", "object": null}',
    ],
    ids=lambda line: line[:40].decode(),
)
def test_an_odd_event_ends_the_watch(line: bytes) -> None:
    with pytest.raises(KubeUnavailableError, match="nonsense"):
        list(_kube(Lines(line + b"\n")).watch_slices("d", "n", "1"))


def test_an_event_without_an_end_ends_the_watch() -> None:
    lines = Lines(*[b" " * (1 << 20)] * 32)
    with pytest.raises(KubeUnavailableError, match="line without an end"):
        list(_kube(lines).watch_slices("d", "n", "1"))
    assert lines.closed


def test_what_is_too_deep_to_send_back_is_no_answer() -> None:
    class Deep(Answer):
        def send(self, *_request: Any, **_rest: Any) -> Any:
            raise RecursionError("deep")

    with pytest.raises(KubeUnavailableError):
        _kube(Deep()).update_slice(body())


def _deep(levels: int) -> bytes:
    """Return a claim whose opaque parameters nest so deep, as no Python encoder can write it."""
    config = {"source": "FromClaim", "opaque": {"driver": samples.DRIVER, "parameters": "HERE"}}
    found = {
        "metadata": _META | {"namespace": _REF.namespace, "name": _REF.name},
        "spec": {"text": 'a " and [ and {'},
        "status": {"allocation": {"devices": {"results": [], "config": [config]}}},
    }
    nested = b'{"kind": "x", "deep": ' + b'[{"a": ' * levels + b"1" + b"}]" * levels + b"}"
    return json.dumps(found).encode().replace(b'"HERE"', nested)


@pytest.mark.parametrize("levels", [1, 45, 50, 60, 495, 2500])
def test_a_claim_that_nests_deep_is_read_without_its_depths(levels: int) -> None:
    found = _kube(Answer(data=_deep(levels))).get_claim(_REF)
    assert found["metadata"]["name"] == _REF.name
    assert found["spec"]["text"] == 'a " and [ and {'
    (config,) = found["status"]["allocation"]["devices"]["config"]
    assert config["opaque"]["parameters"]["kind"] == "x"
    assert config["opaque"]["parameters"]["deep"][0].keys() == {"a"}


def test_a_claim_that_nests_deep_hides_no_other() -> None:
    other = json.dumps({"metadata": _META}).encode()
    data = b'{"metadata": {"resourceVersion": "7"}, "items": [%b, %b, %b]}'
    found = _kube(Answer(data=data % (other, _deep(2500), other))).list_claims()
    assert [claim["metadata"]["name"] for claim in found] == ["n", _REF.name, "n"]
