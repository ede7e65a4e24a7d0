"""One gRPC server at one socket."""

from __future__ import annotations

from pathlib import Path

import pytest
from apportion.errors import ConfigError, StorageError
from apportion.kubelet import endpoint
from apportion.kubelet.endpoint import SocketServer, TcpServer
from google.protobuf.internal import api_implementation


def test_the_fast_protobuf_is_in_use(caplog: pytest.LogCaptureFixture) -> None:
    endpoint.check_protobuf()
    assert caplog.records == []


def test_a_slow_protobuf_is_a_warning_with_what_to_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_implementation, "Type", lambda: "python")
    endpoint.check_protobuf()
    assert "reinstall protobuf" in caplog.text


def test_a_socket_that_cannot_be_made_is_tried_again_by_the_next_check(short: Path) -> None:
    server = SocketServer(short / "folder/one.sock", (), workers=1)
    (short / "folder").write_text("in the way")
    with pytest.raises(StorageError, match="cannot serve at"):
        server.start()
    with pytest.raises(StorageError, match="cannot serve at"):
        server.ensure()
    (short / "folder").unlink()
    assert server.ensure()
    assert not server.ensure()
    assert server.path.is_socket()
    server.stop(1)
    assert not server.path.exists()


def test_a_socket_that_another_took_is_taken_back(short: Path) -> None:
    first = SocketServer(short / "one.sock", (), workers=1)
    first.start()
    second = SocketServer(short / "one.sock", (), workers=1)
    second.start()
    assert first.ensure()
    assert not first.ensure()
    second.stop(1)
    assert first.ensure()
    first.stop(1)


def test_a_path_that_is_no_address_is_an_error(short: Path) -> None:
    with pytest.raises(StorageError):
        SocketServer(short / ("x" * 120), (), workers=1).start()


@pytest.mark.parametrize("address", ["nonsense", "192.0.2.1:1"])
def test_an_address_for_probes_that_cannot_be_had_is_a_setting_to_correct(address: str) -> None:
    with pytest.raises(ConfigError, match="health_address"):
        TcpServer(address, ()).start()
