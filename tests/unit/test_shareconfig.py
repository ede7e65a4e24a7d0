"""ShareConfig in a claim's allocation: which policy a share has, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from apportion.model import CoresPolicy

from tests.fakes.samples import claim, config, result, share_config
from tests.unit.test_claims import AT, refused, resolve

BURST = share_config(cores={"policy": "burst"})
CAP = share_config(cores={"policy": "cap"})


def _policy(*configs: dict[str, Any], request: str = "gpu") -> CoresPolicy:
    found = claim(result(request=request), configs=list(configs))
    return resolve(found).shares[0].policy


def test_without_a_policy_a_share_is_capped() -> None:
    assert _policy() is CoresPolicy.CAP
    assert _policy(config()) is CoresPolicy.CAP
    assert _policy(config(share_config(cores={}))) is CoresPolicy.CAP


def test_a_policy_is_taken_from_the_claim_or_its_class() -> None:
    assert _policy(config(BURST)) is CoresPolicy.BURST
    assert _policy(config(BURST, source="FromClass")) is CoresPolicy.BURST


def test_the_claim_goes_over_its_class_in_any_order() -> None:
    of_class, of_claim = config(CAP, source="FromClass"), config(BURST)
    assert _policy(of_class, of_claim) is CoresPolicy.BURST
    assert _policy(of_claim, of_class) is CoresPolicy.BURST
    assert _policy(config(BURST, source="FromClass"), config(CAP)) is CoresPolicy.CAP


def test_of_one_source_the_last_one_counts_and_silence_changes_nothing() -> None:
    assert _policy(config(BURST), config(CAP)) is CoresPolicy.CAP
    assert _policy(config(BURST), config(share_config())) is CoresPolicy.BURST


@pytest.mark.parametrize(
    ("requests", "request_", "covered"),
    [
        ([], "gpu", True),
        (None, "gpu", True),
        (["gpu"], "gpu", True),
        (["gpu"], "gpu/big", True),
        (["gpu/big"], "gpu/big", True),
        (["gpu/small"], "gpu/big", False),
        (["gpu/big"], "gpu", False),
        (["gp"], "gpu", False),
        (["other", "gpu"], "gpu", True),
    ],
)
def test_a_config_is_for_the_requests_it_names(
    requests: Any, request_: str, *, covered: bool
) -> None:
    found = _policy(config(BURST, requests=requests), request=request_)
    assert (found is CoresPolicy.BURST) is covered


def test_each_share_has_the_policy_of_its_own_request() -> None:
    found = claim(
        result(request="a", shareID="a" * 36),
        result(request="b", shareID="b" * 36),
        configs=[config(BURST, requests=["b"])],
    )
    assert [share.policy.value for share in resolve(found).shares] == ["cap", "burst"]


def test_configs_of_other_drivers_and_other_kinds_are_left_alone() -> None:
    assert _policy(config({"any": "thing"}, driver="nic.example.com")) is CoresPolicy.CAP
    assert _policy({"source": "FromClaim"}) is CoresPolicy.CAP
    assert _policy({"source": "FromFuture", "opaque": None}) is CoresPolicy.CAP


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (share_config(core={}), r"\.core is an unknown field; known here: apiVersion, cores, kind"),
        (share_config(**{"a\nb": 1}), r"\.a\\nb is an unknown field"),
        (share_config(cores={"polciy": "cap"}), r"\.cores\.polciy is an unknown field"),
        (share_config(cores={"policy": "max"}), r"policy is 'max'; expected cap or burst"),
        (share_config(cores={"policy": ""}), r"policy is ''; expected a text"),
        (share_config(cores={"policy": None}), r"policy is missing; expected a text"),
        (share_config(cores={"policy": True}), r"policy is a JSON bool; expected a text"),
        (share_config(cores="cap"), r"cores is 'cap'; expected an object"),
        (share_config(cores=[]), r"cores is a JSON list; expected an object"),
        (share_config(kind="GpuConfig"), r"kind is 'GpuConfig'; expected 'ShareConfig'"),
        (share_config(kind=None), r"kind is missing; expected 'ShareConfig'"),
        (share_config(apiVersion="apportion.gpu/v1"), r"apiVersion is 'apportion.gpu/v1'; expect"),
        (share_config(apiVersion=["v1"]), r"apiVersion is a JSON list"),
        ({}, "apiVersion is missing"),
        ([], "parameters is a JSON list; expected an object"),
        ("text", "parameters is 'text'; expected an object"),
    ],
)
def test_nonsense_in_our_parameters_is_refused_with_its_path(parameters: Any, words: str) -> None:
    found = claim(configs=[config(CAP), config(parameters)])
    refused(
        found,
        rf"{AT}\.config\[1\]\.opaque\.parameters.*{words}"
        if not words.startswith("parameters")
        else words,
    )


def test_our_parameters_are_checked_also_where_they_apply_to_nothing() -> None:
    bad = config(share_config(memory="all"), requests=["not-allocated"])
    refused(claim(configs=[bad]), r"parameters\.memory is an unknown field")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (config(source="FromNode"), "source is 'FromNode'; expected FromClass or FromClaim"),
        (config(source=""), "source is ''"),
        (config(requests="gpu"), "requests is 'gpu'; expected a list"),
        (config(requests=[1]), r"requests\[0\] is a JSON int; expected a text"),
        (config(opaque=[]), "opaque is a JSON list"),
        (config(opaque={"parameters": {}}), "opaque.driver is missing"),
        ("text", r"config\[0\] is 'text'; expected an object"),
    ],
)
def test_nonsense_around_our_parameters_is_refused(entry: Any, words: str) -> None:
    refused(claim(configs=[entry]), words)


# Whom it is reserved for.
