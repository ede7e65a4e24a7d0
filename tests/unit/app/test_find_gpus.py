"""How long a starting plugin waits for its GPUs before it serves kubelet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from apportion import app as module
from apportion.app import App
from apportion.app.loops import Loops
from apportion.app.pulse import Pulse


class Hanging(Pulse):
    """A scan that began long ago."""

    hangs = True

    def beat(self, scan: Callable[[], bool]) -> None:
        self.begun = True
        scan()


def starting(
    scan: Callable[[], bool], others: Callable[[], bool], *, hangs: bool = False
) -> tuple[App, Loops]:
    """Return a plugin that looks for GPUs, and its loops; the other parts are played."""
    loops, pulse = Loops(), Hanging(1) if hangs else Pulse(1)
    app = App.__new__(App)
    parts = {
        "_loops": loops,
        "_pulse": pulse,
        "_config": SimpleNamespace(scan_interval_s=60),
        "_gpus": SimpleNamespace(scan=scan, usable=False),
        "_instance": SimpleNamespace(others_alive=others),
        "_show_readiness": lambda: None,
    }
    for name, part in parts.items():
        setattr(app, name, part)
    return app, loops


def test_a_good_scan_is_all_it_waits_for() -> None:
    app, loops = starting(lambda: True, lambda: pytest.fail("asked for others"))
    app._find_gpus()
    loops.stop()
    assert loops.join(20)


@pytest.mark.parametrize("hangs", [False, True])
def test_nobody_else_serves_kubelet_so_it_does_without_gpus(hangs: bool) -> None:  # noqa: FBT001 - a parameter
    app, loops = starting(lambda: False, lambda: False, hangs=hangs)
    app._find_gpus()
    assert not loops.stopping.is_set()
    loops.stop()
    assert loops.join(20)


@pytest.mark.parametrize("hangs", [False, True])
def test_while_another_one_serves_it_waits_until_that_one_goes(
    monkeypatch: pytest.MonkeyPatch,
    hangs: bool,  # noqa: FBT001 - a parameter
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    left = iter([True, True, True])
    app, loops = starting(lambda: False, lambda: next(left, False), hangs=hangs)
    app._find_gpus()
    assert next(left, None) is None
    loops.stop()
    assert loops.join(20)


def test_a_stop_ends_the_wait_though_the_scan_hangs() -> None:
    release = threading.Event()
    app, loops = starting(lambda: release.wait(20), lambda: True)
    threading.Timer(0.2, loops.stop).start()
    app._find_gpus()
    assert not release.is_set()
    release.set()
    assert loops.join(20)
