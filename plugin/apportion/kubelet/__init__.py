"""Everything that kubelet sees of the plugin: sockets, registration, claims, health.

The only package that knows gRPC. `Kubelet` is its whole interface.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from apportion.kubelet import stream
from apportion.kubelet.endpoint import SocketServer, TcpServer, check_protobuf
from apportion.kubelet.instance import Instance, instance
from apportion.kubelet.registration import Registration
from apportion.kubelet.server import Action, ClaimServer, Observer, supported_versions

LIVENESS = "liveness"
READINESS = "readiness"
# A probe without a service name means "is it alive": restarting because of a slow API server
# would help nobody.
_ALIVE = ("", LIVENESS)

__all__ = ["LIVENESS", "READINESS", "Instance", "Kubelet", "instance", "supported_versions"]


class Kubelet:
    """The plugin's side of kubelet's APIs; built without side effects, then started in parts."""

    def __init__(
        self,
        own: Instance,
        *,
        prepare: Action,
        unprepare: Action,
        observe: Observer,
        on_status: Callable[[bool], None],
        devices: stream.Devices = lambda: None,
        health_address: str = "",
    ) -> None:
        self._instance = own
        self._stream = stream.HealthServer(devices)
        self._claims = ClaimServer(prepare, unprepare, observe)
        self._health = health.HealthServicer()
        self._set(_ALIVE, serving=True)
        self._set((READINESS,), serving=False)
        self._dra = SocketServer(
            own.dra_socket, (self._claims.register, self._stream.register, self._add_health)
        )
        versions = (*supported_versions(), *stream.supported_versions())
        registration = Registration(own.driver, own.dra_socket, versions, on_status).register
        self._registration = SocketServer(own.registration_socket, (registration,), workers=2)
        self._tcp = TcpServer(health_address, (self._add_health,)) if health_address else None
        self._stopping = threading.Event()

    @property
    def health_port(self) -> int:
        """The TCP port of the health service; 0 without one."""
        return self._tcp.port if self._tcp else 0

    def start_health(self) -> None:
        """Answer probes: alive, not ready."""
        check_protobuf()
        if self._tcp:
            self._tcp.start()

    def serve(self) -> None:
        """Remove sockets of the dead and open the DRA socket."""
        self._instance.sweep()
        self._dra.start()

    def register(self) -> None:
        """Open the registration socket, which is what kubelet waits for."""
        self._registration.start()

    def check(self) -> None:
        """Make sockets again that somebody deleted; nothing while stopping."""
        if not self._stopping.is_set():
            self._dra.ensure()
            self._registration.ensure()

    def sweep(self) -> None:
        """Remove sockets of instances that died."""
        self._instance.sweep()

    def set_ready(self, *, ready: bool) -> None:
        """Say to readiness probes whether kubelet has us and the slices are published."""
        self._set((READINESS,), serving=ready)

    def tell_health(self) -> None:
        """Tell kubelet how the devices are now, not only with the next repetition."""
        self._stream.wake()

    def health_watched(self) -> bool:
        """Return whether kubelet ever asked how the devices are."""
        return self._stream.watched

    def stop(self, grace_s: float) -> None:
        """Take no new calls, wait up to `grace_s` seconds for those that run, then leave.

        In this order: when the registration socket goes, kubelet closes its connection and with it
        all calls that run (DRAPluginManager.remove in pkg/kubelet/cm/dra/plugin, 1.34 to 1.36).
        """
        self._stopping.set()
        self._set((READINESS,), serving=False)
        # A stream is no call that would end by itself.
        self._stream.stop()
        self._dra.stop(grace_s)
        self._registration.stop(1.0)
        self._claims.close()
        self._stream.close()
        if self._tcp:
            self._tcp.stop()

    def _add_health(self, server: object) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    def _set(self, services: tuple[str, ...], *, serving: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for service in services:
            self._health.set(service, statuses.SERVING if serving else statuses.NOT_SERVING)
