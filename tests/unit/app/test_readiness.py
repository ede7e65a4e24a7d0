"""When the plugin says that it is ready; the parts that it asks are played."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from apportion.app import App

_ALL = {"registered": True, "published": True, "usable": True, "fresh": True, "stopping": False}


def ready(**state: bool) -> bool:
    """Return what a plugin in this state says."""
    said: list[bool] = []
    stopping = threading.Event()
    if state["stopping"]:
        stopping.set()
    app = App.__new__(App)
    parts = {
        "_registered": state["registered"],
        "_published": state["published"],
        "_gpus": SimpleNamespace(usable=state["usable"]),
        "_pulse": SimpleNamespace(fresh=state["fresh"], check=lambda: None),
        "_caring": SimpleNamespace(health=SimpleNamespace(check=lambda: None)),
        "_loops": SimpleNamespace(stopping=stopping),
        "_kubelet": SimpleNamespace(set_ready=lambda *, ready: said.append(ready)),
    }
    for name, part in parts.items():
        setattr(app, name, part)
    app._watch()
    (found,) = said
    return found


def test_the_watchdog_says_ready_when_all_is_well() -> None:
    assert ready(**_ALL)


@pytest.mark.parametrize("what", _ALL)
def test_any_one_that_is_not_well_is_not_ready(what: str) -> None:
    assert not ready(**_ALL | {what: not _ALL[what]})
