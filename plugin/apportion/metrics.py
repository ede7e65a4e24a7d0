"""Prometheus metrics: few, in base units, and read from the truth when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apportion import __version__
from apportion.errors import ConfigError

_LABELS = ("device", "uuid", "namespace", "claim")

# Most of a Prepare is one read of the API server and a few fsyncs; kubelet gives up at 45 s.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)


@dataclass(frozen=True, slots=True)
class ShareSample:
    """One share as it is seen by a scrape; memory in bytes, pods by name."""

    device: str
    uuid: str
    namespace: str
    claim: str
    pods: tuple[str, ...]
    limit: int
    used: int | None


class _Stop(Protocol):
    def shutdown(self) -> None: ...
    def server_close(self) -> None: ...


class Metrics:
    """All metrics of the plugin, in a registry of their own."""

    def __init__(self, shares: Callable[[], Iterable[ShareSample]]) -> None:
        """Wire it; nothing is served yet.

        Args:
            shares: reads the prepared shares; called by each scrape.
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
        self._errors = prometheus_client.Counter(
            "apportion_claim_errors_total",
            "Claims that kubelet was given an error for.",
            ("method",),
            registry=self.registry,
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
        for method in ("prepare", "unprepare"):
            self._errors.labels(method)
        prometheus_client.Gauge(
            "apportion_build_info",
            "Always 1; the labels say what runs.",
            ("version",),
            registry=self.registry,
        ).labels(__version__).set(1)
        self.registry.register(_Shares(shares))

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


class _Shares(Collector):
    """The prepared shares, as gauges."""

    def __init__(self, read: Callable[[], Iterable[ShareSample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Name the metrics without reading anything: this is called when it is registered."""
        return self._families()

    def collect(self) -> Iterator[Metric]:
        """Read the shares and return their gauges."""
        count, info, limit, used = self._families()
        samples = list(self._read())
        count.add_metric((), len(samples))
        limits: Counter[tuple[str, ...]] = Counter()
        totals: Counter[tuple[str, ...]] = Counter()
        users: set[tuple[str, ...]] = set()
        for sample in samples:
            # A claim may hold several shares of one GPU: one series, the sum of them.
            labels = (sample.device, sample.uuid, sample.namespace, sample.claim)
            # And several pods may use it, which is why the amounts are not by pod.
            users |= {(*labels, pod) for pod in sample.pods}
            limits[labels] += sample.limit
            if sample.used is not None:
                totals[labels] += sample.used
        for key in sorted(users):
            info.add_metric(key, 1)
        for family, values in ((limit, limits), (used, totals)):
            for key, value in sorted(values.items()):
                family.add_metric(key, value)
        yield from (count, info, limit, used)

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
        )
