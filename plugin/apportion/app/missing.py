"""Says what this Kubernetes lacks where no call of the plugin's own would show it.

What it writes and the API server drops, publisher and reporter see for themselves. Nobody asks for
versions: in each of them a feature gate may be on or off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from apportion import log
from apportion.errors import KubeError
from apportion.features import EXTENDED_RESOURCE, POD_HEALTH

_LOG = logging.getLogger(__name__)

LOOK_S = 30.0
"""Seconds between two looks; kubelet opens its stream a few seconds after it has the plugin."""

_CLASS_EVERY = 20  # of these looks


class Missing:
    """One thread calls `look` again and again."""

    def __init__(
        self,
        driver: str,
        *,
        get_class: Callable[[str], Mapping[str, Any]],
        watched: Callable[[], bool],
        registered: Callable[[], bool],
    ) -> None:
        """Wire it; nothing is asked yet.

        Args:
            driver: name of the DRA driver; its class for whole cards is `gpu.<driver>`.
            get_class: returns a DeviceClass or raises KubeError.
            watched: whether kubelet ever opened the stream of the devices' health.
            registered: whether kubelet has the plugin.
        """
        self._class, self._get_class = f"gpu.{driver}", get_class
        self._watched, self._registered = watched, registered
        self._looks = 0
        self._was_registered = False
        self._limit_trouble = log.Trouble(_LOG, "cards by limits")
        self._health_trouble = log.Trouble(_LOG, "health in the status of pods")

    def look(self) -> None:
        """Look once."""
        if self._looks % _CLASS_EVERY == 0:
            self._look_at_class()
        self._looks += 1
        self._look_at_stream()

    def _look_at_class(self) -> None:
        try:
            found = self._get_class(self._class)
        except KubeError as error:
            # No such class, or no right to it, as with another driver's name: then nothing is
            # offered that could be missing. And whether the server is there, others say.
            _LOG.debug("the class for whole cards is not read", extra={"error": str(error)})
            return
        if found["spec"].get("extendedResourceName"):
            self._limit_trouble.end()
            return
        text = EXTENDED_RESOURCE.off(f"DeviceClass {self._class} has no extendedResourceName")
        self._limit_trouble.begin("none", f"{text}, then apply the class again")

    def _look_at_stream(self) -> None:
        registered = self._registered()
        if self._watched():
            self._health_trouble.end()
        elif registered and self._was_registered:
            self._health_trouble.begin("none", POD_HEALTH.off("kubelet does not ask for it"))
        self._was_registered = registered
