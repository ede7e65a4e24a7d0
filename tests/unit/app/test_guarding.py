"""The guard in the plugin: when it runs, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from apportion.app.guarding import Guarding
from apportion.app.loops import Loops
from apportion.config import Config
from apportion.metrics import GuardSample
from apportion.model import GpuUuid, ShareKey
from apportion.watch.guard import View

KEY = ShareKey("uid-0")
SEEN = View("", 100.0, 0.5, {KEY: 7}, {(GpuUuid("GPU-1"), "host"): 3})


class Standing:
    """Stands for what the guard is wired with, none of which these tests let it use."""

    boot = "boot"

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: ()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guarding(clock: Clock, **settings: Any) -> Guarding:
    standing = cast("Any", Standing())
    return Guarding(
        config=Config(**settings),
        cards=list,
        nvml=standing,
        enforcer=standing,
        store=standing,
        fetch=lambda _ref: {},
        events=standing,
        counts=standing,
        clock=clock,
    )


class Names(Loops):
    """Loops that are only named."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def every(self, name: str, seconds: Callable[[], float], action: Callable[[], None]) -> None:
        assert seconds() > 0
        assert callable(action)
        self.names.append(name)


@pytest.mark.parametrize("mode", ["kill", "observe"])
def test_it_looks_unless_it_is_off(mode: str) -> None:
    loops = Names()
    guarding(Clock(), guard=mode).start(loops)
    assert loops.names == ["guard", "reservations", "guard-watchdog"]
    off = Names()
    guarding(Clock(), guard="off").start(off)
    assert off.names == []
    assert guarding(Clock(), guard="off").sample() is None


def test_what_it_saw_is_shown_for_as_long_as_it_is_true() -> None:
    clock = Clock()
    made = guarding(clock)
    assert made.sample() == GuardSample(sees=False, seconds=0.0, unattributed={})
    assert made.truth(KEY) is None
    made._guard.view = SEEN
    assert made.sample() == GuardSample(sees=True, seconds=0.5, unattributed={("GPU-1", "host"): 3})
    assert made.truth(KEY) == 7
    assert made.truth(ShareKey("other-0")) is None
    clock.now += 17
    assert made.sample() == GuardSample(sees=False, seconds=0.5, unattributed={})
    assert made.truth(KEY) is None


def test_the_blind_see_nothing() -> None:
    made = guarding(Clock())
    made._guard.view = View(blind="no hostPID")
    assert made.sample() == GuardSample(sees=False, seconds=0.0, unattributed={})


def test_no_reading_for_long_is_said_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    made = guarding(clock)
    told: list[str] = []
    monkeypatch.setattr(made._report, "blind", told.append)
    made.start(Names())
    made.check()
    assert caplog.text == ""
    assert told == []
    for _ in range(3):
        clock.now += 17
        made.check()
    assert caplog.text.count("NVML does not answer") == 1
    assert told
    assert all("NVML does not answer" in text for text in told)
    made._guard.view = View("", clock.now)
    made.check()
    assert "all is well again" in caplog.text
