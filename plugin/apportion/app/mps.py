"""MPS, wired into the plugin: which GPUs want it, and who is told of what happens."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from apportion.app.health import Events
from apportion.app.loops import Loops
from apportion.config import Config
from apportion.driver import DriverFinder
from apportion.enforce import Enforcer
from apportion.errors import ApportionError, NvmlError
from apportion.inventory import vitals
from apportion.inventory.nvml import Nvml
from apportion.ledger.store import Store
from apportion.model import CoresMode, Device, DeviceName, Gpu, GpuUuid
from apportion.mps.control import Driver
from apportion.mps.daemon import Kind
from apportion.mps.launch import CGROUP
from apportion.mps.supervisor import Supervisor
from apportion.watch import attribution, condition
from apportion.watch.condition import Condition

_LOG = logging.getLogger(__name__)

# A daemon that ends is seen this soon; it and the next program's server start within a second.
_LOOK_S = 0.5
# Errors of programs that the GPU stops them for; 43 and 45 come as well when one is killed.
_FATAL = (13, 31)
# nvmlComputeMode_t.
_DEFAULT_MODE = 0
_MODES = {1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}


@dataclass(frozen=True, slots=True)
class Tell:
    """Whom to tell.

    Attributes:
        events: where events go.
        count: counts what happened, by GPU and reason.
        changed: called when a GPU may be otherwise than before.
    """

    events: Events
    count: Callable[[str, str], None]
    changed: Callable[[], None]


class Dividing:
    """Looks after the MPS daemons.

    Args:
        config: the settings.
        nvml: the gate to NVML.
        devices: what is published, by name.
        enforcer: knows which shares there are.
        store: knows the claims.
        others: whether another plugin serves this node.
        tell: whom to tell.
    """

    def __init__(
        self,
        *,
        config: Config,
        nvml: Nvml,
        devices: Callable[[], Mapping[DeviceName, Device]],
        enforcer: Callable[[], Enforcer],
        store: Callable[[], Store],
        others: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._config, self._devices, self._tell = config, devices, tell
        self._nvml = nvml
        self._enforcer, self._store = enforcer, store
        self._driver_files = DriverFinder(config.driver_root_mount, config.driver_root)
        self._pod = _own_pod(config.proc)
        self._tended: set[GpuUuid] = set()
        self.supervisor = Supervisor(
            root=config.mps_dir,
            name=config.driver_name,
            driver=self._driver,
            wanted=self._wanted,
            used=self._used,
            meant=self._is_meant,
            others=others,
            tell=self._happened,
            unfit=self._unfit,
            proc=config.proc,
            alien=self._is_another_pods,
        )

    def start(self, loops: Loops) -> None:
        """Look after them from now on, each in a loop of its own."""
        loops.every("mps", lambda: _LOOK_S, functools.partial(self._survey, loops))

    def _survey(self, loops: Loops) -> None:
        for uuid in self.supervisor.survey():
            if uuid not in self._tended:
                self._tended.add(uuid)
                tend = functools.partial(self.supervisor.tend, uuid)
                loops.every(f"MPS of GPU {uuid}", lambda: _LOOK_S, tend)

    def on_xid(self, uuid: GpuUuid, xid: int) -> None:
        """Take an Xid as a reason to look; some are a program's fatal fault."""
        fault = f"Xid {xid} of GPU {uuid}: a program's fault" if xid in _FATAL else ""
        self.supervisor.suspect(uuid, fault)

    def conditions(self, uuid: GpuUuid) -> list[Condition]:
        """Return what is wrong with a GPU's daemon, if it has one."""
        view = self.supervisor.view(uuid)
        if view.ready or not view.text or uuid not in self._wanted():
            return []
        return [condition.of_mps(view.text, view.since)]

    def servers(self) -> frozenset[tuple[int, int]]:
        """Return PID and start of all daemons and servers."""
        return frozenset((one.pid, one.start) for one in self.supervisor.processes())

    def _wanted(self) -> dict[GpuUuid, Gpu]:
        return {
            device.gpu.uuid: device.gpu
            for device in self._devices().values()
            if self._is_meant(device.gpu.uuid)
        }

    def _is_meant(self, uuid: GpuUuid) -> bool:
        return self._config.mode_of(uuid) is CoresMode.MPS

    def _used(self) -> Collection[GpuUuid]:
        return {
            allowance.uuid
            for allowance in self._enforcer().allowances()
            if allowance.mode is CoresMode.MPS
        }

    def _unfit(self, uuid: GpuUuid) -> str:
        try:
            mode = vitals.compute_mode(self._nvml, uuid)
        except NvmlError:
            # Of which others say more; the daemon will show whether it works.
            return ""
        if mode == _DEFAULT_MODE:
            return ""
        return (
            f"its compute mode is {_MODES.get(mode, mode)}, which keeps programs from it that have "
            f"a share: nvidia-smi -i {uuid} -c DEFAULT"
        )

    def _driver(self) -> Driver:
        return Driver(
            root=self._config.driver_root,
            mount=self._config.driver_root_mount,
            libdir=self._driver_files().libdir,
            leave=self._pod is not None,
        )

    def _is_another_pods(self, cgroup: str) -> bool:
        # A hierarchy that the daemon could not leave still names the pod that started it, perhaps
        # of an earlier plugin; no pod's process is in this cgroup of the node's.
        moved = any(
            line.endswith(f"/{CGROUP}") and attribution.pod_uid(line) is None
            for line in cgroup.splitlines()
        )
        return not moved and attribution.pod_uid(cgroup) not in (None, self._pod)

    def _happened(self, uuid: GpuUuid, kind: Kind, text: str) -> None:
        _LOG.warning("%s", text, extra={"gpu": uuid, "reason": kind.value})
        self._tell.count(uuid, kind.value)
        self._tell.events.on_node(kind.value, text, warning=True)
        self._tell.changed()
        store = self._store()
        try:
            keys = {a.key for a in self._enforcer().allowances() if a.mode is CoresMode.MPS}
            records = store.records()
        except ApportionError as error:
            _LOG.warning("pods are not told of their GPU's MPS: %s", error)
            return
        for record in records:
            shares = {share.key for share in record.shares if share.uuid == uuid}
            if record.boot == store.boot and shares & keys:
                self._tell.events.on_pods(record.ref, kind.value, text, warning=True)


def _own_pod(proc: Path) -> str | None:
    """Return the UID of the pod whose end would end this process's children, None: of none."""
    try:
        text = (proc / "self/cgroup").read_text()
    except OSError:
        return None
    return attribution.pod_uid(text)
