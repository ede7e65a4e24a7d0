"""Whether kubelet ever asked how the devices are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from apportion.kubelet.stream import HealthServer


def test_a_stream_that_was_once_open_is_remembered() -> None:
    server = HealthServer(lambda: ())
    assert not server.watched
    context: Any = SimpleNamespace(is_active=lambda: True, add_callback=lambda _call: None)
    stream = server._watch(None, context)
    next(stream)
    assert server.watched
    stream.close()
    assert server.watched
    server.close()
