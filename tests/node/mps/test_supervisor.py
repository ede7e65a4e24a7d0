"""The daemons of several GPUs: when they come, when they go, and that none waits for another."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from apportion.app.loops import Loops
from apportion.app.mps import Dividing, Tell
from apportion.config import Config
from apportion.errors import EnforcementError, StorageError
from apportion.model import Capacity, Device, DeviceName, Gpu, GpuUuid
from apportion.mps.daemon import Kind
from apportion.mps.supervisor import Supervisor

from tests.node.mps.support import CLIENT, OTHER, UUID, Node, until
from tests.node.prepare import world

NOBODY = 65534
GPUS = {uuid: replace(world.gpu(n), uuid=uuid) for n, uuid in enumerate((UUID, OTHER))}


@dataclass
class Wish:
    """What a plugin has to do with MPS."""

    wanted: dict[GpuUuid, Gpu] = field(default_factory=dict)
    used: set[GpuUuid] = field(default_factory=set)
    others: bool = False
    clock: float = 0.0
    unreadable: bool = False

    def shares(self) -> set[GpuUuid]:
        if self.unreadable:
            raise StorageError("the shares cannot be read")
        return self.used


def supervisor(
    node: Node, wish: Wish, unfit: Callable[[GpuUuid], str] = lambda _uuid: ""
) -> Supervisor:
    return Supervisor(
        root=node.folder,
        name="apportion.gpu",
        driver=node.driver,
        wanted=lambda: wish.wanted,
        used=wish.shares,
        meant=lambda uuid: uuid in wish.wanted,
        others=lambda: wish.others,
        tell=lambda _uuid, kind, text: node.told.append((kind, text)),
        unfit=unfit,
        clock=lambda: wish.clock,
    )


def look(keeper: Supervisor) -> None:
    """Look after all GPUs, one after the other."""
    for uuid in keeper.survey():
        keeper.tend(uuid)


def test_daemons_come_with_the_gpus_and_go_with_the_last_share(node: Node) -> None:
    wish = Wish(dict(list(GPUS.items())[:1]), {UUID})
    keeper = supervisor(node, wish)
    with pytest.raises(EnforcementError, match="is being started"):
        keeper.require(UUID)
    look(keeper)
    keeper.require(UUID)
    assert keeper.processes() == set(keeper.view(UUID).processes)
    assert keeper.mount(UUID).host_path == str(node.place.clients)
    wish.wanted.clear()
    look(keeper)
    assert node.control.find() is not None
    wish.used.clear()
    look(keeper)
    assert node.control.find() is None
    look(keeper)
    assert node.told == []


def test_a_gpu_older_than_volta_is_unfit(node: Node) -> None:
    keeper = supervisor(node, Wish({UUID: replace(GPUS[UUID], compute_capability=(6, 1))}))
    look(keeper)
    look(keeper)
    with pytest.raises(EnforcementError, match=r"6\.1, and MPS divides cores from 7\.0"):
        keeper.require(UUID)
    assert node.control.find() is None
    assert [kind for kind, _ in node.told] == [Kind.UNFIT]


def test_one_that_is_unfit_for_now_gets_a_daemon_later(node: Node) -> None:
    reasons = ["its compute mode is Prohibited", ""]
    keeper = supervisor(node, Wish({UUID: GPUS[UUID]}), lambda _uuid: reasons.pop(0))
    look(keeper)
    with pytest.raises(EnforcementError, match="compute mode is Prohibited"):
        keeper.require(UUID)
    look(keeper)
    keeper.require(UUID)
    assert [kind for kind, _ in node.told] == [Kind.UNFIT]


def test_a_stop_leaves_what_shares_need(node: Node) -> None:
    wish = Wish({UUID: GPUS[UUID]}, {UUID})
    keeper = supervisor(node, wish)
    look(keeper)
    keeper.stop()
    assert node.control.find() is not None
    wish.used.clear()
    keeper.stop()
    assert node.control.find() is None
    look(keeper)
    assert node.control.find() is None, "nothing is started any more"


def test_a_stop_ends_what_an_earlier_plugin_left_though_nothing_was_looked_after(
    node: Node,
) -> None:
    look(supervisor(node, Wish(dict(GPUS))))
    wish = Wish(unreadable=True)
    keeper = supervisor(node, wish)
    with pytest.raises(StorageError):
        keeper.survey()
    keeper.stop()
    assert node.control.find() is not None, "a share may need it"
    wish.unreadable = False
    keeper.stop()
    assert (node.control.find(), node.second.find()) == (None, None)


def test_what_an_earlier_plugin_left_ends_once_nothing_needs_it(node: Node) -> None:
    """The setting was changed, so the plugin of before did not know that none would follow it."""
    look(supervisor(node, Wish(dict(GPUS))))
    wish = Wish({OTHER: GPUS[OTHER]}, {UUID}, others=True)
    keeper = supervisor(node, wish)
    before = node.second.find()
    look(keeper)
    assert node.control.find() is not None, "a share needs it"
    wish.used.clear()
    look(keeper)
    assert node.control.find() is not None, "another plugin may need it"
    wish.others = False
    look(keeper)
    assert node.control.find() is None
    assert node.second.find() == before
    assert node.told == []


def test_one_that_another_plugin_starts_later_is_found_as_well(node: Node) -> None:
    wish = Wish(others=True)
    keeper = supervisor(node, wish)
    look(keeper)
    assert not keeper.may_serve(UUID)
    look(supervisor(node, Wish({UUID: GPUS[UUID]})))
    assert keeper.may_serve(UUID), "also before it is found"
    wish.others = False
    look(keeper)
    assert node.control.find() is not None, "it is not looked for at each look"
    wish.clock += 60
    look(keeper)
    assert node.control.find() is None


def test_a_gpu_that_may_have_no_daemon_can_have_shares_of_before(node: Node) -> None:
    look(supervisor(node, Wish({UUID: GPUS[UUID]})))
    node.end()
    keeper = supervisor(node, Wish({}, {UUID}), lambda _uuid: "its compute mode is Prohibited")
    look(keeper)
    assert keeper.view(UUID).text == "its compute mode is Prohibited"
    assert keeper.may_serve(UUID)
    assert not keeper.may_serve(OTHER)


def test_programs_of_any_user_find_one_socket_and_nothing_else(node: Node) -> None:
    """The folders of before were open to every user of the node."""
    for folder in (node.place.pipe, node.place.log):
        folder.mkdir(parents=True)
    node.folder.chmod(0o755)
    look(supervisor(node, Wish({UUID: GPUS[UUID]})))
    modes = {
        folder.name: stat.S_IMODE(folder.stat().st_mode)
        for folder in (node.place.pipe, node.place.log, node.place.clients)
    }
    assert modes == {"pipe": 0o700, "log": 0o700, "clients": 0o755}
    assert [path.name for path in node.place.clients.iterdir()] == ["control"]
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    said = {
        folder.name: subprocess.run(
            [*as_nobody, sys.executable, "-c", CLIENT, str(folder)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )
        for folder in (node.place.clients, node.place.pipe)
    }  # fmt: skip
    assert "ok" in said["clients"].stdout
    assert "PermissionError" in said["pipe"].stderr


class Plugin:
    """The parts of a plugin that look after MPS, with their loops."""

    def __init__(self, node: Node) -> None:
        self.loops = Loops()
        self.held, self.asked = threading.Event(), threading.Event()
        capacity = Capacity(100, 1 << 30)
        devices = {
            DeviceName(uuid): Device(DeviceName(uuid), gpu, capacity) for uuid, gpu in GPUS.items()
        }
        self.dividing = Dividing(
            config=Config(cores_mode="mps", shares_dir=node.folder / "shares"),
            nvml=self.itself,
            devices=lambda: devices,
            enforcer=lambda: self.itself,
            store=lambda: self.itself,
            others=lambda: False,
            tell=Tell(self.itself, lambda _uuid, _reason: None, lambda: None),
        )
        self.dividing.supervisor._driver = node.driver

    @property
    def itself(self) -> Any:
        return self

    def optional(self, uuid: str, _function: str) -> int:
        """Say a GPU's compute mode; of the first only when the test lets it."""
        if uuid == UUID:
            self.asked.set()
            self.held.wait()
        return 0

    def allowances(self) -> tuple[()]:
        return ()

    def records(self) -> tuple[()]:
        return ()

    def on_node(self, *_: object, **__: object) -> None:
        """An event that nobody reads."""


def test_a_gpu_that_does_not_answer_keeps_no_other_waiting(node: Node) -> None:
    plugin = Plugin(node)
    plugin.dividing.start(plugin.loops)
    view = plugin.dividing.supervisor.view
    try:
        until(lambda: plugin.asked.is_set() and view(OTHER).ready)
        assert not view(UUID).ready
        (before,) = view(OTHER).processes
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: view(OTHER).ready and view(OTHER).processes != (before,))
        assert not view(UUID).ready
        plugin.held.set()
        until(lambda: view(UUID).ready)
    finally:
        plugin.held.set()
        plugin.loops.stop()
        assert plugin.loops.join(60)
        plugin.dividing.supervisor.stop()
    assert not plugin.loops.failed
