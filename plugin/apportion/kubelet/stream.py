"""Kubelet's health stream (KEP-4680): how the devices are, in the status of the pods that use them.

Kubelet holds one stream open for as long as it knows the plugin. What it was told holds for 30 s,
and when a stream ends it forgets all of it, also what another plugin of the driver told during a
rolling update: hence the list is sent again every few seconds, changed or not.

Source: pkg/kubelet/cm/dra (healthinfo.go, manager.go) of Kubernetes 1.36.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from apportion.kubelet.pb import dra_health_v1_pb2 as pb
from apportion.model import DeviceHealth, HealthState

_LOG = logging.getLogger(__name__)

_SERVICE = "DRAResourceHealth"
# The newest first. The messages are the same in all, so one definition serves them.
_VERSIONS = ("v1", "v1beta1", "v1alpha1")

RESEND_S = 5.0
"""Seconds until the list is sent again; kubelet believes it for 30."""

MAX_STREAMS = 8
"""Kubelet opens one, a second one while it reconnects."""

_MAX_MESSAGE = 1024
_STATES = {
    HealthState.HEALTHY: pb.HEALTHY,
    HealthState.UNHEALTHY: pb.UNHEALTHY,
    HealthState.UNKNOWN: pb.UNKNOWN,
}

Devices = Callable[[], Sequence[DeviceHealth] | None]
"""All devices with their health; None while they are not known yet."""


def supported_versions() -> tuple[str, ...]:
    """Return what is advertised to kubelet, made from what is served."""
    return tuple(f"{version}.{_SERVICE}" for version in _VERSIONS)


class HealthServer:
    """Answers NodeWatchResources in all versions of the API; each stream sends the newest list."""

    def __init__(self, devices: Devices, resend_s: float = RESEND_S) -> None:
        """Wire it; nothing happens yet.

        Args:
            devices: asked before each response; must not wait for anything.
            resend_s: seconds until an unchanged list is sent again.
        """
        self._devices, self._resend_s = devices, resend_s
        self._changed = threading.Condition()
        self._version = 0
        self._streams = 0
        self._watched = False
        self._stopping = False
        # Streams last for ever, so they have threads of their own: the server's are for calls.
        # One that does not read what it is sent holds its own thread, and no list but the newest.
        self._pool = ThreadPoolExecutor(2 * MAX_STREAMS, thread_name_prefix="health-stream")

    def register(self, server: grpc.Server) -> None:
        """Add the services of all versions to `server`."""

        def watch(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            return self._watch(request, context)

        watch.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(service, {"NodeWatchResources": handler})
                for service in supported_versions()
            ]
        )

    @property
    def watched(self) -> bool:
        """Whether a stream was ever opened: kubelet does so unless its feature gate is off."""
        return self._watched

    def wake(self) -> None:
        """Send the list again now: it may have changed."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """End all streams cleanly, and each that is opened from now on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads; the server must have stopped before."""
        self._pool.shutdown()

    def _watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with self._changed:
            self._watched = True
            crowded = self._streams >= MAX_STREAMS
            if not crowded:
                self._streams += 1
        if crowded:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open already"
            )
        _LOG.debug("kubelet watches the health of the devices")
        try:
            context.add_callback(self.wake)
            yield from self._responses(context)
        finally:
            with self._changed:
                self._streams -= 1
            _LOG.debug("a health stream ended")

    def _responses(self, context: grpc.ServicerContext) -> Iterator[Any]:
        while True:
            with self._changed:
                if self._stopping or not context.is_active():
                    return
                seen = self._version
            devices = self._devices()
            if devices is not None:
                yield _response(devices)
            with self._changed:
                if self._version == seen and not self._stopping:
                    self._changed.wait(self._resend_s)


def _response(devices: Sequence[DeviceHealth]) -> Any:
    return pb.NodeWatchResourcesResponse(devices=[_entry(device) for device in devices])


def _entry(device: DeviceHealth) -> Any:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=_STATES[device.state],
        last_updated_time=device.seen,
        message=device.message.encode()[:_MAX_MESSAGE].decode(errors="ignore"),
    )
