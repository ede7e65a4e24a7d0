"""Prometheus metrics: few, in base units, and read from the truth when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apportion import __version__
from apportion.errors import ConfigError
from apportion.model import ClaimRef, CoresUse

_LABELS = ("device", "uuid", "namespace", "claim")
# Of counters, which never go: claims of templates have ever new names. Events and logs name them.
_LASTING = ("device", "uuid", "namespace")

_NS = 1_000_000_000

# Most of a Prepare is one read of the API server and a few fsyncs; kubelet gives up at 45 s.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


@dataclass(frozen=True, slots=True)
class ShareSample:
    """One share as it is seen by a scrape.

    Attributes:
        device: name in the slice.
        uuid: GPU.
        namespace: of the claim.
        claim: its name.
        pods: names of those that it was prepared for.
        limit: memory in bytes.
        used: memory charged to live processes, None where that cannot be read.
        truth: memory by NVML, None where that is not known.
        cores: percent of the GPU.
        time: its time on the GPU, None where that cannot be read.
    """

    device: str
    uuid: str
    namespace: str
    claim: str
    pods: tuple[str, ...]
    limit: int
    used: int | None
    truth: int | None = None
    cores: int = 0
    time: CoresUse | None = None


@dataclass(frozen=True, slots=True)
class GuardSample:
    """The guard's last reading; unattributed: bytes by GPU and where the processes live."""

    sees: bool
    seconds: float
    unattributed: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class HealthSample:
    """One published device as it is seen by a scrape; reason: of the worst condition, or empty."""

    device: str
    uuid: str
    reason: str
    healthy: bool


class _Stop(Protocol):
    def shutdown(self) -> None: ...
    def server_close(self) -> None: ...


class Metrics:
    """All metrics of the plugin, in a registry of their own."""

    def __init__(
        self,
        shares: Callable[[], Iterable[ShareSample]],
        guard: Callable[[], GuardSample | None] = lambda: None,
    ) -> None:
        """Wire it; nothing is served yet.

        Args:
            shares: reads the prepared shares; called by each scrape.
            guard: the guard's last reading; None: it is off.
        """
        self.registry = prometheus_client.CollectorRegistry()
        self._server: _Stop | None = None
        self._seconds = prometheus_client.Histogram(
            "apportion_claim_seconds",
            "Seconds for one claim of a kubelet call.",
            ("method", "result"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._errors = self._counter(
            "apportion_claim_errors_total",
            "Claims that kubelet was given an error for.",
            ("method",),
        )
        self._devices = prometheus_client.Gauge(
            "apportion_published_devices",
            "Devices in the slices of this node, as last seen at the API server.",
            registry=self.registry,
        )
        self._publish_errors = prometheus_client.Counter(
            "apportion_publish_errors_total",
            "Failed tries to publish the slices of this node.",
            registry=self.registry,
        )
        self._count_guard()
        self._xids = self._counter(
            "apportion_gpu_xids_total",
            "Xids that the driver reported, errors of programs included.",
            ("uuid", "xid"),
        )
        self._mps = self._counter(
            "apportion_mps_events_total",
            "What happened to MPS: daemons and servers that ended, and what did not work.",
            ("uuid", "reason"),
        )
        for method in ("prepare", "unprepare"):
            self._errors.labels(method)
        prometheus_client.Gauge(
            "apportion_build_info",
            "Always 1; the labels say what runs.",
            ("version",),
            registry=self.registry,
        ).labels(__version__).set(1)
        self.registry.register(_Shares(shares))
        self.registry.register(_Guard(guard))

    def _count_guard(self) -> None:
        self._excesses = self._counter(
            "apportion_guard_excesses_total",
            "Times that a claim's processes were found to hold more of a GPU than their share.",
            _LASTING,
        )
        self._kills = self._counter(
            "apportion_guard_kills_total",
            "Processes that the guard ended for that.",
            _LASTING,
        )
        self._stranger_kills = self._counter(
            "apportion_guard_stranger_kills_total",
            "Processes without a share of a shared GPU that the guard ended.",
            ("uuid",),
        )

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> prometheus_client.Counter:
        return prometheus_client.Counter(name, text, labels, registry=self.registry)

    def observe(self, method: str, failed: bool, seconds: float) -> None:  # noqa: FBT001 - a callback
        """Count one claim of a kubelet call."""
        self._seconds.labels(method, "error" if failed else "ok").observe(seconds)
        if failed:
            self._errors.labels(method).inc()

    def published(self, devices: int) -> None:
        """Note how many devices the slices have."""
        self._devices.set(devices)

    def publish_failed(self) -> None:
        """Count a failed try to publish."""
        self._publish_errors.inc()

    def guard_found(self, device: str, uuid: str, ref: ClaimRef) -> None:
        """Count a claim that went over its share of a GPU."""
        self._excesses.labels(device, uuid, ref.namespace).inc()

    def guard_killed(self, device: str, uuid: str, ref: ClaimRef) -> None:
        """Count a process that the guard ended."""
        self._kills.labels(device, uuid, ref.namespace).inc()

    def guard_stranger_killed(self, uuid: str) -> None:
        """Count a process without a share that the guard ended."""
        self._stranger_kills.labels(uuid).inc()

    def count_xid(self, uuid: str, xid: int) -> None:
        """Count an Xid."""
        self._xids.labels(uuid, str(xid)).inc()

    def count_mps(self, uuid: str, reason: str) -> None:
        """Count what happened to a GPU's MPS daemon."""
        self._mps.labels(uuid, reason).inc()

    def watch_health(self, read: Callable[[], Iterable[HealthSample]]) -> None:
        """Let each scrape read the devices' health; called once."""
        self.registry.register(_Health(read))

    def serve(self, address: str) -> int:
        """Serve /metrics at an address such as `0.0.0.0:9400` or `[::]:9400`; return the port.

        Raises:
            ConfigError: the address is taken, or not this machine's.
        """
        host, _colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            server, _thread = prometheus_client.start_http_server(int(port), host, self.registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics at {address!r}: {error}; set metrics_address to host:port "
                "with a free port, or to nothing"
            ) from error
        self._server = server
        return int(server.server_port)

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Health(Collector):
    """The published devices, as gauges."""

    def __init__(self, read: Callable[[], Iterable[HealthSample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Name the metric without reading anything: this is called when it is registered."""
        return (self._family(),)

    def collect(self) -> Iterator[Metric]:
        """Read the devices and return their gauges."""
        family = self._family()
        for sample in self._read():
            labels = (sample.device, sample.uuid, sample.reason)
            family.add_metric(labels, float(sample.healthy))
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "apportion_gpu_health",
            "1: the GPU can be used; 0: it is lost or faulty. The reason is what is worst, if any.",
            labels=("device", "uuid", "reason"),
        )


class _Shares(Collector):
    """The prepared shares, as gauges."""

    def __init__(self, read: Callable[[], Iterable[ShareSample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without reading anything: this is called when it is registered."""
        return (*self._families(), *_times())

    def collect(self) -> Iterator[Metric]:
        """Read the shares and return their gauges and their time on the GPUs."""
        count, info, limit, used, truth = self._families()
        samples = list(self._read())
        count.add_metric((), len(samples))
        limits: Counter[tuple[str, ...]] = Counter()
        totals: Counter[tuple[str, ...]] = Counter()
        truths: Counter[tuple[str, ...]] = Counter()
        users: set[tuple[str, ...]] = set()
        for sample in samples:
            # A claim may hold several shares of one GPU: one series, the sum of them.
            labels = (sample.device, sample.uuid, sample.namespace, sample.claim)
            # And several pods may use it, which is why the amounts are not by pod.
            users |= {(*labels, pod) for pod in sample.pods}
            limits[labels] += sample.limit
            if sample.used is not None:
                totals[labels] += sample.used
            if sample.truth is not None:
                truths[labels] += sample.truth
        for key in sorted(users):
            info.add_metric(key, 1)
        for family, values in ((limit, limits), (used, totals), (truth, truths)):
            for key, value in sorted(values.items()):
                family.add_metric(key, value)
        yield from (count, info, limit, used, truth)
        yield from _timed(samples)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily("apportion_prepared_shares", "Shares prepared on this node."),
            GaugeMetricFamily(
                "apportion_share_info",
                "Always 1; which pods a share was prepared for.",
                labels=(*_LABELS, "pod"),
            ),
            GaugeMetricFamily(
                "apportion_share_memory_limit_bytes", "Memory of the share.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "apportion_share_memory_used_bytes",
                "Memory that the share's processes hold, by its ledger.",
                labels=_LABELS,
            ),
            GaugeMetricFamily(
                "apportion_share_truth_bytes",
                "Memory that the share's processes hold, by NVML.",
                labels=_LABELS,
            ),
        )


def _timed(samples: Iterable[ShareSample]) -> tuple[Metric, ...]:
    """Return the shares' cores and their time on the GPUs; one series as above."""
    sums: tuple[Counter[tuple[str, ...]], ...] = (Counter(), Counter(), Counter(), Counter())
    for sample in samples:
        labels = (sample.device, sample.uuid, sample.namespace, sample.claim)
        sums[0][labels] += sample.cores
        if sample.time is not None:
            found = (sample.time.used, sample.time.waited, sample.time.overrun)
            for total, value in zip(sums[1:], found, strict=True):
                total[labels] += value
    families = _times()
    for family, total, unit in zip(families, sums, (100, *(_NS,) * 3), strict=True):
        for key, value in sorted(total.items()):
            family.add_metric(key, value / unit)
    return families


def _times() -> tuple[GaugeMetricFamily | CounterMetricFamily, ...]:
    ratio = GaugeMetricFamily(
        "apportion_share_cores_limit_ratio",
        "Part of the GPU's time that the share may use, 0 to 1.",
        labels=_LABELS,
    )
    seconds = (
        ("used", "Time on the GPU that the share's work took."),
        ("waited", "Time that launches were held back, summed over threads."),
        ("overrun", "Of the used time, what lay outside the share's slots."),
    )
    return (
        ratio,
        *(
            CounterMetricFamily(f"apportion_share_cores_{name}_seconds_total", text, labels=_LABELS)
            for name, text in seconds
        ),
    )


class _Guard(Collector):
    """What the guard saw last, as gauges; none while it is off."""

    def __init__(self, read: Callable[[], GuardSample | None]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without reading anything."""
        return self._families()

    def collect(self) -> Iterator[Metric]:
        """Return the gauges of the last reading."""
        sample = self._read()
        if sample is None:
            return
        sees, seconds, unattributed = self._families()
        sees.add_metric((), int(sample.sees))
        seconds.add_metric((), sample.seconds)
        for key, value in sorted(sample.unattributed.items()):
            unattributed.add_metric(key, value)
        yield from (sees, seconds, unattributed)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "apportion_guard_sees", "1 if the guard sees the node's processes, 0 if not."
            ),
            GaugeMetricFamily("apportion_guard_scan_seconds", "Seconds of the last reading."),
            GaugeMetricFamily(
                "apportion_unattributed_bytes",
                "Memory that processes without a share of the GPU hold, by where they live.",
                labels=("uuid", "where"),
            ),
        )
