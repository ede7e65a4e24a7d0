"""What was there at one moment, and what each container must see by that. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.cluster.requests import asked
from tests.cluster.requests.asked import Devices, Held, Object

CARD = "nvidia.com/gpu"

Cards = dict[str, Held]
"""By a card's UUID."""


@dataclass(frozen=True)
class State:
    """Objects of a cluster.

    Attributes:
        claims: by namespace and name.
        classes: DeviceClasses by name.
        devices: what the nodes publish.
    """

    claims: Mapping[tuple[str, str], Object]
    classes: Mapping[str, Object]
    devices: Devices

    def claims_of(self, pod: Object) -> list[Object]:
        """Return the claims that a pod has, also those that were made for it."""
        names = [_claim_name(pod, entry) for entry in pod["spec"].get("resourceClaims", [])]
        extended = pod["status"].get("extendedResourceClaimStatus")
        names += [extended["resourceClaimName"]] if extended else []
        return [self.claims[pod["metadata"]["namespace"], name] for name in names]

    def expected(self, pod: Object) -> dict[str, Cards]:
        """Return what each container must see: the cards of its claims' allocation, as asked."""
        found = {}
        for container in containers(pod):
            cards: Cards = {}
            for claim, result in self._given(pod, container):
                device = self.devices[result["pool"], result["device"]]
                add(
                    cards,
                    device["attributes"]["uuid"]["string"],
                    asked.held(claim, result, self.classes),
                )
            found[container["name"]] = cards
        return found

    def otherwise(self, pod: Object) -> list[str]:
        """Return in what the claims of a pod were not allocated as asked."""
        differences = [
            f"{claim['metadata']['name']}: {words}"
            for claim in self.claims_of(pod)
            for words in asked.otherwise(claim, self.devices)
        ]
        for container in containers(pod):
            wanted = int(container.get("resources", {}).get("limits", {}).get(CARD, 0))
            if wanted and len([*self._given(pod, container)]) != wanted:
                differences.append(f"{container['name']}: not {wanted} cards")
        return differences

    def _given(self, pod: Object, container: Object) -> Iterator[tuple[Object, Object]]:
        """Yield what a container was given: the claim, and a result of its allocation."""
        namespace = pod["metadata"]["namespace"]
        for use in container.get("resources", {}).get("claims", []):
            (entry,) = [c for c in pod["spec"]["resourceClaims"] if c["name"] == use["name"]]
            yield from _of(self.claims[namespace, _claim_name(pod, entry)], use.get("request"))
        extended = pod["status"].get("extendedResourceClaimStatus")
        for mapping in extended["requestMappings"] if extended else ():
            if mapping["containerName"] == container["name"]:
                claim = self.claims[namespace, extended["resourceClaimName"]]
                yield from _of(claim, mapping["requestName"])


def add(cards: Cards, uuid: str, held: Held) -> None:
    """Put what is held of a card to what is held of it already."""
    cards[uuid] = cards[uuid].and_also(held) if uuid in cards else held


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def _claim_name(pod: Object, entry: Object) -> str:
    if "resourceClaimName" in entry:
        return str(entry["resourceClaimName"])
    statuses = pod["status"]["resourceClaimStatuses"]
    (name,) = [s["resourceClaimName"] for s in statuses if s["name"] == entry["name"]]
    return str(name)


def _of(claim: Object, request: str | None) -> Iterator[tuple[Object, Object]]:
    for result in claim["status"]["allocation"]["devices"]["results"]:
        if request in (None, result["request"].partition("/")[0]):
            yield claim, result
