"""What claims ask for, and whether they were given that. Pure.

The amounts come from the requests alone, never from what the scheduler wrote down for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apportion.quantity import MIB, parse

from tests.fakes.fakegpu import DEFAULT_GPUS

DRIVER = "apportion.gpu"
TOTAL = DEFAULT_GPUS[0].memory_mib
"""MiB that the driver itself says a card has."""
USABLE = TOTAL - DEFAULT_GPUS[0].reserved_mib
ALL_CORES = 100

Object = dict[str, Any]
Devices = Mapping[tuple[str, str], Object]
"""What the nodes publish, by pool and device."""


@dataclass(frozen=True, order=True)
class Held:
    """What a container has of one card.

    Attributes:
        mib: how large it sees the card.
        cores: percent of the card's cores that it is held to; None: to nothing.
        policies: of the shares that hold it to them, sorted.
    """

    mib: int
    cores: int | None = None
    policies: tuple[str, ...] = ()

    def and_also(self, other: Held) -> Held:
        """Return what both are together; who has the whole card is held to nothing."""
        if self.cores is None or other.cores is None:
            return WHOLE_CARD
        policies = tuple(sorted({*self.policies, *other.policies}))
        return Held(self.mib + other.mib, self.cores + other.cores, policies)

    def __str__(self) -> str:
        cores = "all" if self.cores is None else self.cores
        policies = "".join(f", {policy}" for policy in self.policies if policy != "cap")
        return f"{self.mib} MiB and {cores} cores{policies}"


WHOLE_CARD = Held(TOTAL)


def expression(attribute: str, value: Object) -> str:
    """Return in CEL that a device has an attribute as published: its name, and its typed value."""
    domain, _slash, name = attribute.rpartition("/")
    field = f'device.attributes["{domain or DRIVER}"].{name}'
    ((kind, what),) = value.items()
    if kind == "version":
        return f'{field}.compareTo(semver("{what}")) == 0'
    return f"{field} == {json.dumps(what)}"


def request_of(claim: Object, name: str) -> Object:
    """Return the request, or the alternative of one, that a result is for."""
    parent, _slash, alternative = name.partition("/")
    (request,) = [r for r in claim["spec"]["devices"]["requests"] if r["name"] == parent]
    if not alternative:
        found: Object = request["exactly"]
        return found
    (found,) = [each for each in request["firstAvailable"] if each["name"] == alternative]
    return found


def amounts(request: Object) -> tuple[int, int]:
    """Return the MiB and cores of a request: what it leaves out is all, a part of a MiB is one."""
    wanted = request.get("capacity", {}).get("requests", {})
    memory = -(-parse(wanted["memory"]) // MIB) if "memory" in wanted else USABLE
    return memory, int(wanted.get("cores", ALL_CORES))


def held(claim: Object, result: Object, classes: Mapping[str, Object]) -> Held:
    """Return what a result must let a container have, by its request and the class of that."""
    request = request_of(claim, result["request"])
    mib, cores = amounts(request)
    if request.get("adminAccess") or (mib, cores) == (USABLE, ALL_CORES):
        return WHOLE_CARD
    return Held(mib, cores, (_policy(claim, result["request"], classes),))


def _policy(claim: Object, name: str, classes: Mapping[str, Object]) -> str:
    of_class = classes[request_of(claim, name)["deviceClassName"]]["spec"].get("config", [])
    of_claim = [
        config
        for config in claim["spec"]["devices"].get("config", [])
        if not config.get("requests") or {name, name.partition("/")[0]} & {*config["requests"]}
    ]
    found = "cap"
    for config in (*of_class, *of_claim):
        found = config["opaque"]["parameters"].get("cores", {}).get("policy", found)
    return found


def otherwise(claim: Object, devices: Devices) -> list[str]:
    """Return in what an allocation is not as asked, by its requests and constraints.

    A claim for all cards has as many as the scheduler found fit to be given.
    """
    results = claim["status"]["allocation"]["devices"]["results"]
    differences = [words for result in results for words in _amiss(claim, result, devices)]
    for request in claim["spec"]["devices"]["requests"]:
        names = [r["request"] for r in results if r["request"].partition("/")[0] == request["name"]]
        chosen = request_of(claim, names[0]) if names else {}
        wanted = chosen.get("count", 1)
        if len(names) != wanted and chosen.get("allocationMode") != "All":
            differences.append(f"{request['name']}: {len(names)} results instead of {wanted}")
    for constraint in claim["spec"]["devices"].get("constraints", []):
        differences += _broken(constraint, results, devices)
    return differences


def _amiss(claim: Object, result: Object, devices: Devices) -> Iterator[str]:
    request = request_of(claim, result["request"])
    consumed = result["consumedCapacity"]
    found = (parse(consumed["memory"]), int(consumed["cores"]))
    mib, cores = amounts(request)
    if found != (mib * MIB, cores):
        yield f"{result['request']}: {consumed} instead of {mib}Mi and {cores} cores"
    if bool(result.get("adminAccess")) is not bool(request.get("adminAccess")):
        yield f"{result['request']}: admin access is {result.get('adminAccess')}"
    tolerated = {toleration["key"] for toleration in request.get("tolerations", [])}
    for taint in devices[result["pool"], result["device"]].get("taints", []):
        if taint["effect"] != "None" and taint["key"] not in tolerated:
            yield f"{result['request']}: does not tolerate {taint['key']}"


def _broken(constraint: Object, results: Iterable[Object], devices: Devices) -> Iterator[str]:
    names = set(constraint.get("requests", ()))
    found = [
        devices[result["pool"], result["device"]]["attributes"]
        for result in results
        if not names or result["request"].partition("/")[0] in names
    ]
    same = "matchAttribute" in constraint
    attribute = constraint["matchAttribute" if same else "distinctAttribute"]
    values = [str(each[attribute.removeprefix(f"{DRIVER}/")]) for each in found]
    if len(set(values)) != (1 if same else len(values)):
        yield f"{constraint}: {values}"
