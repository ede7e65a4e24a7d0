"""The GPUs' health, wired into the plugin: its loops, and who is told of it."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from apportion import claimstatus
from apportion.app.gpus import Care
from apportion.app.loops import Loops
from apportion.config import Config
from apportion.errors import ApportionError
from apportion.inventory import vitals
from apportion.inventory.nvml import Nvml
from apportion.ledger.store import Store
from apportion.metrics import HealthSample
from apportion.model import (
    ClaimRef,
    Device,
    DeviceHealth,
    DeviceName,
    GpuUuid,
    HealthState,
    Share,
    Taint,
)
from apportion.watch import condition, taints
from apportion.watch.condition import Condition, Conditions, Level
from apportion.watch.health import Health, Hooks, Limits
from apportion.watch.states import Change
from apportion.watch.store import HealthFile

_LOG = logging.getLogger(__name__)

# Reasons of events.
UNHEALTHY, HEALTHY, DAMAGED = "GpuUnhealthy", "GpuHealthy", "RecordDamaged"

# What stands in a claim's condition.
_STATUS = {
    HealthState.HEALTHY: "True",
    HealthState.UNHEALTHY: "False",
    HealthState.UNKNOWN: "Unknown",
}
_REASONS = {
    HealthState.HEALTHY: "NothingFound",
    HealthState.UNHEALTHY: "GpuUnhealthy",
    HealthState.UNKNOWN: "NotRead",
}
_MOST = 2000

_POLL_S = 1.0
_STALE = "NVML has not been read of late; the plugin's log says why"


class Events(Protocol):
    """Where events go; `events.Recorder` is it."""

    def on_node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about this node."""

    def on_pods(self, ref: ClaimRef, reason: str, message: str, *, warning: bool = True) -> None:
        """Note something about the pods of a claim."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Whom to tell.

    Attributes:
        events: where events go.
        count_xid: counts an Xid, by GPU.
        changed: called when taints or health may be others than before.
        more: what else is wrong with a GPU, beside what NVML says.
    """

    events: Events
    count_xid: Callable[[GpuUuid, int], None]
    changed: Callable[[], None]
    more: Callable[[GpuUuid], Sequence[Condition]] = lambda _uuid: ()


class Caring:
    """Looks after the GPUs.

    Args:
        config: the settings.
        nvml: the gate to NVML.
        probe: proves that a GPU works, or raises ApportionError.
        devices: what is published, by name.
        store: knows the claims.
        fresh: whether the last good scan is of late.
        tell: whom to tell.
    """

    def __init__(
        self,
        *,
        config: Config,
        nvml: Nvml,
        probe: Callable[[GpuUuid], None],
        devices: Callable[[], Mapping[DeviceName, Device]],
        store: Store,
        fresh: Callable[[], bool],
        tell: Tell,
    ) -> None:
        self._config, self._devices, self._store = config, devices, store
        self._fresh, self._events, self._changed = fresh, tell.events, tell.changed
        self._effects = taints.Effects(config.taint_lost, config.taint_fault, config.taint_note)
        self.health = Health(
            nvml=nvml,
            vitals=lambda uuid: vitals.read(nvml, uuid),
            probe=probe,
            file=HealthFile(config.plugin_dir, lambda text: tell.events.on_node(DAMAGED, text)),
            boot=store.boot,
            driver=lambda: _driver_instance(config.sysfs),
            limits=Limits(float(config.health_quiet_s), float(config.nvml_timeout_s)),
            by_index=config.device_naming == "index",
            hooks=Hooks(on_change=self._on_change, on_xid=tell.count_xid, more=tell.more),
        )

    def care(self) -> Care:
        """Return what the scans ask."""
        return Care(self.health.settle, self.health.is_bad, self.taints)

    def start(self, loops: Loops) -> None:
        """Take up what is on record, and begin to look."""
        self.health.load()
        loops.every("health", lambda: _POLL_S, self.health.poll)

    def taints(self) -> dict[GpuUuid, tuple[Taint, ...]]:
        """Return the taints of the GPUs that have any."""
        found = {
            uuid: taints.taints(conditions, self._config.driver_name, self._effects, _stamp)
            for uuid, conditions in self.health.conditions().items()
        }
        return {uuid: made for uuid, made in found.items() if made}

    def devices(self) -> tuple[DeviceHealth, ...] | None:
        """Return the health of all published devices for kubelet; None before there is any."""
        conditions, fresh = self.health.conditions(), self._fresh()
        found = tuple(
            self._of(device, conditions.get(device.gpu.uuid, ()), fresh=fresh)
            for device in self._devices().values()
        )
        return found or None

    def told(self, share: Share) -> tuple[claimstatus.Condition, ...]:
        """Return what the claim of a share is told of its GPU."""
        conditions = self.health.conditions().get(share.uuid, ())
        state, message = self._state(conditions, fresh=self._fresh())
        worst = condition.worst(conditions)
        reason = _camel(worst.name) if worst else _REASONS[state]
        return (
            claimstatus.Condition(claimstatus.HEALTHY, _STATUS[state], reason, message[:_MOST]),
        )

    def samples(self) -> Iterator[HealthSample]:
        """Return the health of all published devices for a scrape."""
        conditions = self.health.conditions()
        for device in self._devices().values():
            found = conditions.get(device.gpu.uuid, ())
            worst = condition.worst(found)
            reason = worst.name if worst else ""
            yield HealthSample(device.name, device.gpu.uuid, reason, not condition.bad(found))

    def _of(self, device: Device, conditions: Conditions, *, fresh: bool) -> DeviceHealth:
        state, message = self._state(conditions, fresh=fresh)
        return DeviceHealth(self._config.node_name, device.name, state, int(time.time()), message)

    @staticmethod
    def _state(conditions: Conditions, *, fresh: bool) -> tuple[HealthState, str]:
        state, message = taints.state(conditions), taints.message(conditions)
        if state is HealthState.HEALTHY and not fresh:
            return HealthState.UNKNOWN, _STALE
        return state, message

    def _on_change(self, changes: Sequence[Change]) -> None:
        self._changed()
        names = {device.gpu.uuid: device.name for device in self._devices().values()}
        for change in changes:
            name = names.get(change.gpu, change.gpu)
            begun = [one for one in change.begun if one.level > Level.NOTE]
            for one in begun:
                self._say(change.gpu, UNHEALTHY, f"GPU {name}: {one.text}", warning=True)
            if not begun and _over(change.ended, self.health, change.gpu):
                self._say(change.gpu, HEALTHY, f"GPU {name} works again", warning=False)

    def _say(self, uuid: GpuUuid, reason: str, text: str, *, warning: bool) -> None:
        self._events.on_node(reason, text, warning=warning)
        try:
            records = self._store.records()
        except ApportionError as error:
            _LOG.warning("pods are not told of their GPU: %s", error)
            return
        for record in records:
            if record.boot == self._store.boot and uuid in {s.uuid for s in record.shares}:
                self._events.on_pods(record.ref, reason, text, warning=warning)


def _over(ended: Sequence[Condition], health: Health, uuid: GpuUuid) -> bool:
    """Return whether a GPU was bad and is so no more."""
    return any(one.level > Level.NOTE for one in ended) and not health.is_bad(uuid)


def _camel(name: str) -> str:
    """Return a condition's name as a reason is written: Xid79 for xid-79."""
    return "".join(part.capitalize() for part in name.split("-"))


def _driver_instance(sysfs: Path) -> str:
    """Return what is another with each load of the driver's module; empty where it is not seen.

    sysfs gives each folder that it makes a new inode number.
    """
    try:
        return str((sysfs / "module/nvidia").stat().st_ino)
    except OSError:
        return ""


def _stamp(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
