"""pynvml's functions, each with the answer that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from apportion.model import GpuUuid

UUID = GpuUuid("GPU-6d1c2f5e-8a3b-4c7d-9e0f-000000000000")


def _raising(code: int) -> Callable[..., Any]:
    def call(*_arguments: Any) -> Any:
        raise pynvml.NVMLError(code)

    return call


class Library:
    """Stands for the driver's library: pynvml's functions, each with the answer that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.loaded: list[str] = []
        self.calls: list[str] = []
        self.answer("nvmlInit", None)
        self.answer("nvmlShutdown", None)
        self.answer("nvmlDeviceGetHandleByIndex", "handle")
        self.answer("nvmlDeviceGetHandleByUUID", "handle")
        self.answer("nvmlDeviceGetUUID", UUID)

    def load(self, path: str) -> SimpleNamespace:
        self.loaded.append(path)
        return SimpleNamespace()

    def answer(self, function: str, value: Any) -> None:
        self.answers(function, lambda *_arguments: value)

    def fail(self, function: str, code: int) -> None:
        self.answers(function, _raising(code))

    def answers(self, function: str, call: Callable[..., Any]) -> None:
        def recorded(*arguments: Any) -> Any:
            self.calls.append(function)
            return call(*arguments)

        self._monkeypatch.setattr(pynvml, function, recorded)
