"""What arrives at a socket: much at once, in any order, too much, and nonsense."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apportion.kubelet import Kubelet
from apportion.kubelet.endpoint import MAX_MESSAGE
from apportion.kubelet.pb import dra_v1_pb2

from tests.node.kubelet.conftest import UID, Site, claim
from tests.node.support.kubelet import APIS, FakeKubelet, call, unary

_METHOD = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"


class Raw(bytes):
    """Bytes that go over the wire as they are."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name is protobuf's
        return bytes(self)


@pytest.fixture
def channel(kubelet: FakeKubelet) -> grpc.Channel:
    return kubelet.plugins[0].channel


def _works(channel: grpc.Channel) -> bool:
    answer = call(channel, dra_v1_pb2, "NodePrepareResources", [claim()])
    return not answer.claims[UID.format(0)].error


def test_many_calls_of_both_versions_at_once(site: Site, channel: grpc.Channel) -> None:
    apis = list(APIS.values())

    def batch(n: int) -> Any:
        claims = [claim(n * 4 + m) for m in range(4)]
        return call(channel, apis[n % 2], "NodePrepareResources", claims)

    calls = [site.in_thread(functools.partial(batch, n)) for n in range(40)]
    for n, running in enumerate(calls):
        answer = running.result(60)
        assert set(answer.claims) == {UID.format(n * 4 + m) for m in range(4)}
        assert not any(entry.error for entry in answer.claims.values())
    assert len(site.world.store.records()) == 160


def test_claims_of_a_call_do_not_wait_for_each_other(site: Site, channel: grpc.Channel) -> None:
    """Claims 0 to 6 are held until claim 7, the last one, has been entered."""
    gates = [site.hold(UID.format(n)) for n in range(7)]
    running = site.in_thread(
        lambda: call(channel, dra_v1_pb2, "NodePrepareResources", [claim(n) for n in range(8)])
    )
    for _ in range(8):
        assert site.claims.entered.acquire(timeout=20)
    for gate in gates:
        gate.set()
    assert len(running.result(20).claims) == 8


def test_a_call_that_hangs_holds_up_no_other(site: Site, channel: grpc.Channel) -> None:
    gate = site.hold(UID.format(5))
    hanging = site.in_thread(lambda: call(channel, dra_v1_pb2, "NodePrepareResources", [claim(5)]))
    assert site.claims.entered.acquire(timeout=20)
    assert _works(channel)
    gate.set()
    assert not hanging.result(20).claims[UID.format(5)].error


def test_the_order_of_claims_changes_no_answer(channel: grpc.Channel) -> None:
    claims = [claim(n) for n in range(6)]
    forward = call(channel, dra_v1_pb2, "NodePrepareResources", claims)
    backward = call(channel, dra_v1_pb2, "NodePrepareResources", claims[::-1])
    assert forward == backward


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
@pytest.mark.parametrize(
    "uid", ["", "..", ".", "a/b", "../../etc/passwd", "a\0b", "x" * 64, " ", "ä", "a\n"]
)
def test_one_bad_uid_in_a_call_fails_alone(
    site: Site, channel: grpc.Channel, method: str, uid: str
) -> None:
    bad = claim(0) | {"uid": uid}
    answer = call(channel, dra_v1_pb2, method, [bad, claim(1)])
    assert set(answer.claims) == {uid, UID.format(1)}
    assert "cannot name a file" in answer.claims[uid].error
    assert not answer.claims[UID.format(1)].error
    assert site.world.store.uids() | site.world.cdi.claims() <= {UID.format(1)}


def test_a_message_that_is_too_large_is_refused_and_the_next_served(
    channel: grpc.Channel,
) -> None:
    huge = claim() | {"name": "x" * (MAX_MESSAGE + 1)}
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, dra_v1_pb2, "NodePrepareResources", [huge])
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _works(channel)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\x0a\x01\xff", os.urandom(512)],
    ids=["tag", "length", "no utf-8", "random"],
)
def test_bytes_that_are_no_message_fail_their_call_alone(
    channel: grpc.Channel, garbage: bytes
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, _METHOD, Raw(garbage), dra_v1_pb2.NodePrepareResourcesResponse, 20)
    assert raised.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
    assert _works(channel)


@pytest.mark.parametrize(
    "bytes_", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99]
)
def test_connections_that_speak_no_grpc_harm_nobody(
    site: Site, channel: grpc.Channel, bytes_: bytes
) -> None:
    for path in _sockets(site):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(bytes_)
    assert _works(channel)


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    message = dra_v1_pb2.Claim()
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, f"{_METHOD}Twice", message, dra_v1_pb2.Claim, 20)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_each_call_is_one_line_with_claims_errors_and_milliseconds(
    site: Site, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "apportion.kubelet")
    site.claims.errors = {UID.format(1): "no such claim"}
    call(channel, dra_v1_pb2, "NodePrepareResources", [claim(0), claim(1), claim(2)])
    (line,) = (vars(r) for r in caplog.records if r.getMessage() == "prepare answered")
    assert (line["claims"], line["errors"]) == (3, 1)
    assert line["ms"] >= 0


def _sockets(site: Site) -> Iterator[Path]:
    yield from site.plugin_dir.glob("*.sock")
    yield from site.registry.glob("*.sock")


def test_the_plugin_can_be_stopped_twice(plugin: Kubelet) -> None:
    plugin.stop(1)
    plugin.stop(1)
