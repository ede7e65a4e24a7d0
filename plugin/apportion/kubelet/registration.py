"""Registration: kubelet finds our socket, asks who we are, and says whether it takes us."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from apportion.kubelet.pb import pluginregistration_v1_pb2 as pb

_LOG = logging.getLogger(__name__)

_TYPE = "DRAPlugin"
_SERVICE = pb.DESCRIPTOR.services_by_name["Registration"].full_name


class Registration:
    """Answers kubelet's plugin watcher."""

    def __init__(
        self,
        driver: str,
        endpoint: Path,
        versions: Sequence[str],
        on_status: Callable[[bool], None],
    ) -> None:
        """Wire it; nothing happens yet.

        Args:
            driver: name of the DRA driver.
            endpoint: the DRA socket, as kubelet sees it.
            versions: the services there, such as "v1.DRAPlugin".
            on_status: told whenever kubelet says that it took the plugin, or that it refused.
        """
        self._info = pb.PluginInfo(
            type=_TYPE, name=driver, endpoint=str(endpoint), supported_versions=versions
        )
        self._on_status = on_status

    def register(self, server: grpc.Server) -> None:
        """Add the service to `server`."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                self._get_info,
                request_deserializer=pb.InfoRequest.FromString,
                response_serializer=pb.PluginInfo.SerializeToString,
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                self._notify,
                request_deserializer=pb.RegistrationStatus.FromString,
                response_serializer=pb.RegistrationStatusResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, methods)])

    def _get_info(self, _request: Any, _context: grpc.ServicerContext) -> pb.PluginInfo:
        _LOG.debug("kubelet asks who we are")
        return self._info

    def _notify(self, status: Any, _context: grpc.ServicerContext) -> pb.RegistrationStatusResponse:
        if status.plugin_registered:
            _LOG.info("kubelet registered the plugin", extra={"driver": self._info.name})
        else:
            _LOG.error(
                "kubelet refused the plugin and tries again; its log has the details. Does "
                "another driver use this name, and does this kubelet serve DRA (1.34 and newer)?",
                extra={"driver": self._info.name, "error": status.error},
            )
        self._on_status(status.plugin_registered)
        return pb.RegistrationStatusResponse()
