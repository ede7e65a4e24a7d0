"""ShareConfig: what a claim or a DeviceClass sets for our driver, and what of it goes. Pure.

Source: resource.k8s.io/v1 DeviceAllocationConfiguration, and KEP-4816 for names of subrequests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apportion import names
from apportion.fields import Field
from apportion.model import CoresPolicy

_SOURCES = ("FromClass", "FromClaim")
"""In rising precedence: what a claim says goes over what its class says."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """One ShareConfig of ours: the requests it is for (none: all), and what it sets."""

    requests: tuple[str, ...]
    policy: CoresPolicy | None

    def covers(self, request: str) -> bool:
        """Return whether it is for `request`; the name of a parent covers its subrequests."""
        parent = request.split("/", maxsplit=1)[0]
        return not self.requests or request in self.requests or parent in self.requests


def configs(config: Field, driver: str) -> list[ShareConfig]:
    """Return the configurations for our driver, in rising precedence.

    All of them are checked, also those for requests that got no device: what is refused must not
    depend on which alternative the scheduler took.
    """
    found: dict[str, list[ShareConfig]] = {source: [] for source in _SOURCES}
    for entry in config.entries():
        opaque = entry.get("opaque")
        if opaque.value is None or opaque.get("driver").text() != driver:
            continue
        source = entry.get("source").text()
        if source not in found:
            raise entry.get("source").wrong(" or ".join(_SOURCES))
        requests = tuple(request.text() for request in entry.get("requests").entries())
        found[source].append(ShareConfig(requests, _parameters(opaque.get("parameters"))))
    return [config for source in _SOURCES for config in found[source]]


def _parameters(parameters: Field) -> CoresPolicy | None:
    """Return the cores policy of a ShareConfig, None where it sets none."""
    for key, expected in (("apiVersion", names.CONFIG_API), ("kind", names.CONFIG_KIND)):
        if parameters.get(key).value != expected:
            raise parameters.get(key).wrong(repr(expected))
    parameters.known("apiVersion", "kind", names.CORES)
    cores = parameters.get(names.CORES)
    cores.known("policy")
    policy = cores.get("policy")
    if "policy" not in cores.mapping():
        return None
    try:
        return CoresPolicy(policy.text())
    except ValueError as error:
        raise policy.wrong(" or ".join(CoresPolicy)) from error


def policy(request: str, configs: Sequence[ShareConfig]) -> CoresPolicy:
    """Return the last policy set for a request; without one, idle cores are not taken."""
    found = CoresPolicy.CAP
    for config in configs:
        if config.policy is not None and config.covers(request):
            found = config.policy
    return found
