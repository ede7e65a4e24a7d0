"""The daemon: built without side effects, then started, run and stopped in order."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from apportion import __version__, kube, kubeerrors, offer
from apportion.app import sampling
from apportion.app.gpus import Gpus
from apportion.app.guarding import Guarding
from apportion.app.health import Caring, Tell
from apportion.app.loops import Loops
from apportion.app.missing import LOOK_S, Missing
from apportion.app.mps import Dividing
from apportion.app.mps import Tell as Divided
from apportion.app.pulse import Pulse
from apportion.app.reporting import make_reporter
from apportion.cdi.store import CdiStore
from apportion.config import Config
from apportion.driver import DriverFinder
from apportion.enforce import Enforcer, registry
from apportion.errors import ConfigError, KubeError
from apportion.events import Recorder
from apportion.inventory.nvml import Nvml
from apportion.inventory.scan import scan
from apportion.kubelet import Kubelet, instance
from apportion.ledger.store import Store, boot_id
from apportion.metrics import GuardSample, Metrics, ShareSample
from apportion.model import ClaimRef, Device, DeviceName, GpuUuid
from apportion.prepare import Preparer
from apportion.publisher import Publisher
from apportion.reporter import Reporter

_LOG = logging.getLogger(__name__)

# Calls may take this long to end; the DaemonSet gives 30 s before SIGKILL.
_DRAIN_S = 20.0
_JOIN_S = 5.0
# After all of these together; still before SIGKILL, so that the log says what hung.
_LAST_S = 28.0
# While the driver is away, and for as long as a deleted socket may go unnoticed.
_RETRY_S = 5.0
_SOCKETS_S = 2.0
# How often it is looked whether the first scan is over, and whether one hangs.
_POLL_S = 0.1
_WATCHDOG_S = 5.0


class App:
    """All parts of the plugin, wired; `run` is its life."""

    def __init__(self, config: Config) -> None:
        """Wire the parts.

        Raises:
            ConfigError: a setting is missing, or does not fit this machine.
        """
        if not config.node_name:
            raise ConfigError("node_name is not set; the DaemonSet takes it from spec.nodeName")
        self._config = config
        self._loops = Loops()
        self._kube = _api_server(config)
        self._nvml = Nvml(config.driver_root_mount)
        self._pulse = Pulse(config.scan_interval_s)
        self._events = Recorder(self._kube, driver=config.driver_name, node=config.node_name)
        self._metrics = Metrics(self._samples, self._guard_sample)
        self._instance = instance(
            config.driver_name, config.plugin_dir, config.registry_dir, config.pod_uid
        )
        self._dividing = self._make_dividing()
        self._enforcer: Enforcer = registry.make(
            config,
            self._loops.stopping.is_set,
            mps=self._dividing.supervisor,
            claimed=lambda: self._store.shares(),  # noqa: PLW0108 - the store comes after
        )
        boot = boot_id(config.proc)
        self._store = Store(config.plugin_dir, boot, self._enforcer.allowances, self._on_damage)
        self._caring = self._make_caring()
        self._gpus = Gpus(
            read=functools.partial(scan, self._nvml, config.sysfs),
            prove=self._prove,
            policy=offer.policy(config),
            others=self._instance.others_alive,
            held=lambda uuid: self._store.held(uuid).memory,
            on_change=self._wake,
            on_trouble=self._events.on_node,
            health=self._caring.care(),
        )
        self._reporter = self._make_reporter()
        self._preparer = self._make_preparer()
        self._guarding = self._make_guarding()
        self._publisher = self._make_publisher()
        self._kubelet = Kubelet(
            self._instance,
            prepare=self._preparer.prepare,
            unprepare=self._preparer.unprepare,
            observe=self._metrics.observe,
            on_status=self._on_status,
            devices=self._caring.devices,
            health_address=config.health_address,
        )
        self._missing = Missing(
            config.driver_name,
            get_class=self._kube.get_class,
            watched=self._kubelet.health_watched,
            registered=lambda: self._registered,
        )
        self._registered = self._published = False
        self._lent_s = 0.0

    def _make_preparer(self) -> Preparer:
        config = self._config
        return Preparer(
            config=config,
            fetch=self._fetch,
            devices=self._gpus.devices,
            store=self._store,
            cdi=CdiStore(config.cdi_dir, config.driver_name),
            enforcer=self._enforcer,
            driver_files=DriverFinder(config.driver_root_mount, config.driver_root),
            tell=self._events.on_pods,
            on_prepared=self._reporter.prepared,
            on_removed=self._reporter.removed,
            in_use=lambda key: bool(self._guarding.truth(key)),
        )

    def _make_reporter(self) -> Reporter:
        return make_reporter(
            self._config,
            api=self._kube,
            store=self._store,
            enforcer=self._enforcer,
            events=self._events,
            conditions=self._caring.told,
        )

    def _make_publisher(self) -> Publisher:
        return Publisher(
            self._kube,
            driver=self._config.driver_name,
            node=self._config.node_name,
            desired=self._gpus.bodies,
            refresh=self._caring.health.absorb,
            on_published=self._on_published,
            on_error=self._metrics.publish_failed,
            on_dropped=functools.partial(self._events.on_node, "FieldsDropped"),
        )

    def _make_guarding(self) -> Guarding:
        return Guarding(
            config=self._config,
            cards=lambda: [device.gpu.uuid for device in self._gpus.devices().values()],
            nvml=self._nvml,
            enforcer=self._enforcer,
            store=self._store,
            fetch=self._fetch,
            events=self._events,
            counts=self._metrics,
            servers=self._dividing.servers,
        )

    def _make_dividing(self) -> Dividing:
        return Dividing(
            config=self._config,
            nvml=self._nvml,
            devices=self._devices,
            enforcer=lambda: self._enforcer,
            store=lambda: self._store,
            others=self._instance.others_alive,
            tell=Divided(self._events, self._metrics.count_mps, self._hasten),
        )

    def _make_caring(self) -> Caring:
        caring = Caring(
            config=self._config,
            nvml=self._nvml,
            probe=self._probe,
            devices=self._devices,
            store=self._store,
            fresh=lambda: self._pulse.fresh,
            tell=Tell(self._events, self._on_xid, self._on_health, self._dividing.conditions),
        )
        self._metrics.watch_health(caring.samples)
        return caring

    def run(self) -> bool:
        """Serve until SIGTERM, SIGINT or a failed loop; return whether all went well.

        Raises:
            FatalError, RetryableError: it could not start; the message says why.
        """
        self._catch_signals()
        self._say_settings()
        self._instance.acquire()
        try:
            self._answer_probes()
            self._loops.start("events", self._events.run)
            # Before anything is published: shares from before may be in use.
            self._guarding.start(self._loops)
            self._caring.start(self._loops)
            self._dividing.start(self._loops)
            self._find_gpus()
            self._serve_kubelet()
            self._start_loops()
            self._loops.stopping.wait()
        finally:
            ended = self._shut_down()
        status = int(self._loops.failed)
        if not ended:
            # A thread in a driver that does not answer: the interpreter's end could wait for it.
            os._exit(status)
        return status == 0

    def _catch_signals(self) -> None:
        def stop(number: int, _frame: object) -> None:
            # A handler runs in the middle of whatever the main thread does, which may hold the
            # very lock that logging or setting an event needs: so not here, but in a thread.
            name = signal.Signals(number).name
            threading.Thread(target=self._stop, args=(name,), name="signal").start()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def _stop(self, signal_name: str) -> None:
        _LOG.info("stopping", extra={"signal": signal_name})
        self._loops.stop()

    def _say_settings(self) -> None:
        settings = dataclasses.asdict(self._config)
        settings["ignored"] = " ".join(self._config.ignored)
        _LOG.info("apportion %s starts", __version__, extra=dict(sorted(settings.items())))

    def _answer_probes(self) -> None:
        self._kubelet.start_health()
        if self._config.metrics_address:
            self._metrics.serve(self._config.metrics_address)

    def _find_gpus(self) -> None:
        """Wait until shares can be prepared here, unless nobody else answers kubelet.

        kubelet prefers the plugin that registered last: one that cannot prepare must not take the
        place of one that can. But without any plugin, pods with shares cannot even end.
        """
        # In threads: whatever hangs in the driver must not hold up a stop.
        self._loops.every("scan", self._scan_interval, self._scan)
        self._loops.every("watchdog", lambda: _WATCHDOG_S, self._watch)
        looked = self._pulse.looked
        while not self._loops.stopping.is_set():
            if looked.wait(_POLL_S):
                looked.clear()
                if self._pulse.good or not self._instance.others_alive():
                    return
            elif self._pulse.hangs:
                if not self._instance.others_alive():
                    return
                self._loops.stopping.wait(_RETRY_S)

    def _serve_kubelet(self) -> None:
        if not self._loops.stopping.is_set():
            # What crashed calls left goes before new ones come; which claims exist is asked later.
            self._preparer.sweep(ask=False)
            # What is loaded by now stays; a full collection looks at it for 13 ms, and all wait.
            gc.collect()
            gc.freeze()
            self._kubelet.serve()
            self._kubelet.register()

    def _start_loops(self) -> None:
        config = self._config
        self._loops.start("publish", self._publisher.run)
        self._loops.start("report", self._reporter.run)
        self._loops.start("watch", self._publisher.watch)
        self._loops.every("sockets", lambda: _SOCKETS_S, self._kubelet.check)
        self._loops.every("sweep", lambda: config.sweep_interval_s, self._sweep)
        self._loops.every("missing", lambda: LOOK_S, self._missing.look)
        self._loops.every("lend", lambda: self._lent_s, self._lend)

    def _shut_down(self) -> bool:
        """Stop all in order; return whether no loop is left behind."""
        last = threading.Timer(_LAST_S, _leave)
        last.daemon = True
        last.start()
        self._loops.stop()
        self._kubelet.stop(_DRAIN_S)
        self._publisher.stop()
        self._reporter.stop()
        self._events.stop()
        ended = self._loops.join(_JOIN_S)
        self._metrics.stop()
        self._nvml.close()
        if not self._instance.others_alive():
            self._preparer.retire()
            self._dividing.supervisor.stop()
        self._instance.release()
        _LOG.info("stopped; shares and slices stay")
        return ended

    def _prove(self, uuid: GpuUuid) -> None:
        self._preparer.ready(uuid)

    def _probe(self, uuid: GpuUuid) -> None:
        self._preparer.probe(uuid)

    def _devices(self) -> Mapping[DeviceName, Device]:
        return self._gpus.devices()

    def _fetch(self, ref: ClaimRef) -> dict[str, Any]:
        """Return the claim; the errors go to kubelet, which shows them and calls again."""
        try:
            return self._kube.get_claim(ref)
        except KubeError as error:
            raise type(error)(kubeerrors.hinted(error), error.status) from error

    def _on_damage(self, ref: ClaimRef | None, text: str) -> None:
        self._events.on_node("RecordDamaged", text)
        if ref is not None:
            self._events.on_claim(ref, "RecordDamaged", text)

    def _wake(self) -> None:
        # A scan that the stop broke off says nothing of the GPUs.
        if not self._loops.stopping.is_set():
            self._publisher.wake()

    def _scan_interval(self) -> float:
        if not self._pulse.begun:
            return 0.0
        interval = self._config.scan_interval_s
        return interval if self._gpus.usable else min(interval, _RETRY_S)

    def _scan(self) -> None:
        self._pulse.beat(self._gpus.scan)
        self._show_readiness()

    def _on_health(self) -> None:
        self._wake()
        self._kubelet.tell_health()
        self._reporter.changed()

    def _hasten(self) -> None:
        self._caring.health.hasten()

    def _on_xid(self, uuid: GpuUuid, xid: int) -> None:
        self._metrics.count_xid(uuid, xid)
        self._dividing.on_xid(uuid, xid)

    def _watch(self) -> None:
        self._pulse.check()
        self._caring.health.check()
        self._show_readiness()

    def _sweep(self) -> None:
        self._kubelet.sweep()
        self._preparer.sweep(ask=True)

    def _lend(self) -> None:
        self._lent_s = _RETRY_S  # unless it went well
        self._lent_s = self._enforcer.lend()

    def _on_status(self, registered: bool) -> None:  # noqa: FBT001 - a callback
        self._registered = registered
        self._show_readiness()

    def _on_published(self, devices: int) -> None:
        # Once is enough: an API server that goes away later makes this pod no less ready. Nor is
        # one that keeps not all: then cards are given whole.
        self._published = True
        self._metrics.published(devices)
        self._show_readiness()

    def _show_readiness(self) -> None:
        known = self._gpus.usable and self._pulse.fresh
        ready = self._registered and self._published and known
        self._kubelet.set_ready(ready=ready and not self._loops.stopping.is_set())

    def _guard_sample(self) -> GuardSample | None:
        return self._guarding.sample()

    def _samples(self) -> Iterator[ShareSample]:
        return sampling.shares(self._store, self._enforcer, self._guarding.truth)


def _api_server(config: Config) -> kube.Kube:
    return kube.connect(config.kubeconfig, config.api_timeout_s, config.service_account_dir)


def _leave() -> None:
    """End the process at once: something in it does not end by itself."""
    mine = threading.current_thread()
    names = sorted(thread.name for thread in threading.enumerate() if thread is not mine)
    _LOG.warning("not stopped in time; ended all the same", extra={"threads": " ".join(names)})
    os._exit(1)
