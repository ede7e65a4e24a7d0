from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from apportion import claims
from apportion.errors import ClaimError
from apportion.model import (
    Capacity,
    ClaimRef,
    ClaimUid,
    CoresPolicy,
    ResolvedClaim,
    Share,
    ShareKey,
)

from tests.fakes import samples
from tests.fakes.samples import GIB, MIB, claim, config, result, share_config

AT = r"status\.allocation\.devices"


def _resolve(found: Any, ref: ClaimRef = samples.REF, *, cores_min: int = 1) -> ResolvedClaim:
    return claims.resolve(
        found,
        ref,
        driver=samples.DRIVER,
        pool=samples.NODE,
        devices=samples.devices(2),
        cores_min=cores_min,
    )


def _refused(found: Any, words: str, **options: Any) -> None:
    with pytest.raises(ClaimError, match=words) as caught:
        _resolve(found, **options)
    text = str(caught.value)
    assert text.startswith("claim test-dra/single-gpu-0: ")
    assert "\n" not in text
    assert len(text) < 700


def test_the_labs_claim_becomes_a_share() -> None:
    assert _resolve(claim()) == ResolvedClaim(
        ref=samples.REF,
        shares=(
            Share(
                key=ShareKey(f"{samples.CLAIM_UID}-0"),
                request="single-gpu",
                pool="node-0",
                device=samples.device(0).name,
                share_id=samples.SHARE_ID,
                uuid=samples.gpu(0).uuid,
                capacity=Capacity(cores=30, memory=4 * GIB),
                policy=CoresPolicy.CAP,
            ),
        ),
        pods=("pod-0",),
    )


def test_shares_are_numbered_by_their_place_among_all_results() -> None:
    found = claim(
        result(request="nic", driver="nic.example.com", pool="fabric", device="eth0"),
        result(1, request="first", cores="60", memory="8Gi"),
        result(0, request="second", shareID="b" * 36),
    )
    shares = _resolve(found).shares
    assert [share.key[-2:] for share in shares] == ["-1", "-2"]
    assert [share.request for share in shares] == ["first", "second"]
    assert [share.uuid for share in shares] == [samples.gpu(1).uuid, samples.gpu(0).uuid]
    assert shares[0].capacity == Capacity(60, 8 * GIB)


def test_what_a_claim_is_given_here_now() -> None:
    def given(found: Any) -> Any:
        return claims.given(found, samples.REF, driver=samples.DRIVER, pool=samples.NODE)

    whole = claim(result(driver="nic.example.com"), result(1))
    device = samples.device(1).name
    assert given(whole) == {f"{samples.CLAIM_UID}-1": (device, samples.SHARE_ID)}
    assert given(claim(result(pool="another-node"))) == {}
    assert given({"metadata": whole["metadata"]}) == {}
    assert given(whole | {"metadata": {"uid": "another"}}) == {}
    for odd in ({}, whole | {"status": []}, claim(result(device=None))):
        with pytest.raises(ClaimError, match="expected"):
            given(odd)


def test_two_shares_of_one_card_in_a_claim_are_two_shares() -> None:
    found = claim(result(request="a", shareID="a" * 36), result(request="b", shareID="b" * 36))
    first, second = _resolve(found).shares
    assert first.device == second.device
    assert first.key != second.key


def test_the_whole_card_is_a_share_of_all_of_it() -> None:
    found = claim(result(cores="100", memory="14917Mi"))
    assert _resolve(found).shares[0].capacity == Capacity(100, 14917 * MIB)


# The claim itself.


def test_a_claim_made_again_under_its_name_is_refused() -> None:
    other = ClaimRef(ClaimUid("other"), samples.REF.namespace, samples.REF.name)
    _refused(claim(), "its UID is '0b1ba5f2.*kubelet asked for 'other'.*delete the pod", ref=other)


def test_a_uid_that_cannot_name_a_file_is_refused() -> None:
    ref = ClaimRef(ClaimUid("../../etc"), samples.REF.namespace, samples.REF.name)
    _refused(claim(ref=ref), "cannot name a file", ref=ref)


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_refused(status: Any) -> None:
    found = claim()
    found["status"] = status
    _refused(found, r"it is not allocated \(no status.allocation\); delete the claim and its pod")


def test_a_claim_on_its_way_out_is_refused_as_that() -> None:
    found = claim()
    found["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    del found["status"]["allocation"]
    _refused(found, "it is being deleted and no longer allocated")


def test_a_claim_that_is_deleted_while_a_pod_holds_it_is_still_prepared() -> None:
    found = claim()
    found["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert _resolve(found).shares


def test_a_claim_of_other_drivers_is_refused_by_their_names() -> None:
    found = claim(result(driver="b.example.com"), result(driver="a.example.com"))
    _refused(found, r"no device of driver apportion\.gpu .*there: a\.example\.com, b\.example\.com")


def test_a_drivers_name_makes_no_second_line() -> None:
    _refused(claim(result(driver="a\nb")), r"drivers there: a\\nb\)")


def test_a_claim_without_results_is_refused() -> None:
    found = claim()
    found["status"]["allocation"]["devices"]["results"] = []
    _refused(found, r"drivers there: none")


# Results.


def test_a_foreign_pool_is_refused() -> None:
    _refused(claim(result(pool="node-1")), rf"{AT}\.results\[0\]\.pool is 'node-1'.*'node-0'")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    words = rf"{AT}\.results\[0\]\.device is 'hami-gpu-7'.*published: gpu-0000-3b-00-0, gpu-0000-3c"
    _refused(claim(result(device="hami-gpu-7")), words)


def test_without_any_device_the_list_of_known_ones_is_none() -> None:
    with pytest.raises(ClaimError, match="published: none"):
        claims.resolve(claim(), samples.REF, driver=samples.DRIVER, pool="node-0", devices={})


@pytest.mark.parametrize("request_", ["", "a/b/c", "A", "a/", "/a", "a b", "../a", 7, None])
def test_a_request_name_of_another_form_is_refused(request_: Any) -> None:
    _refused(claim(result(request=request_)), rf"{AT}\.results\[0\]\.request is")


def test_a_subrequest_keeps_its_parent() -> None:
    assert _resolve(claim(result(request="gpu/big"))).shares[0].request == "gpu/big"


def test_admin_access_is_refused() -> None:
    _refused(claim(result(adminAccess=True)), "adminAccess is true.*take adminAccess from")
    assert _resolve(claim(result(adminAccess=False))).shares


def test_a_share_without_its_id_is_refused() -> None:
    _refused(claim(result(shareID=None)), "shareID is missing; .*DRAConsumableCapacity")


@pytest.mark.parametrize("share_id", ["", "a/b", "x" * 64, 5, {}])
def test_a_share_id_of_another_form_is_refused(share_id: Any) -> None:
    _refused(claim(result(shareID=share_id)), r"shareID is .*; expected")


def test_one_share_given_twice_is_refused() -> None:
    found = claim(result(request="a"), result(request="b"))
    _refused(found, f"requests a and b have the same share {samples.SHARE_ID}")


def test_one_id_on_two_devices_is_no_duplicate() -> None:
    assert len(_resolve(claim(result(0, request="a"), result(1, request="b"))).shares) == 2


@pytest.mark.parametrize(
    ("consumed", "words"),
    [
        (None, "is missing: the share has no limits; .*DRAConsumableCapacity.*switch it on"),
        ({}, "is missing: the share has no limits"),
        ({"cores": "30"}, r"\.memory is missing: no limit is no share"),
        ({"memory": "4Gi"}, r"\.cores is missing: no limit is no share"),
        ({"cores": None, "memory": "4Gi"}, r"\.cores is missing"),
        (
            {"cores": "30", "memory": "4Gi", "bandwidth": "1"},
            r"\.bandwidth is an unknown capacity; known here: cores, memory",
        ),
        ({"cores": "30", "apportion.gpu/memory": "4Gi"}, "is an unknown capacity"),
        ({"cores": "30", "memory": "4Gb"}, "memory: '4Gb' is not a quantity"),
        ({"cores": "30", "memory": 4.5}, "memory: a float is not a quantity"),
        ({"cores": "30", "memory": []}, "memory: a list is not a quantity"),
        ({"cores": "0.5", "memory": "4Gi"}, "cores: '0.5' is not a whole number"),
        ({"cores": "-1", "memory": "4Gi"}, "cores: '-1' is negative"),
        ({"cores": "0", "memory": "4Gi"}, "cores is 0; a share has at least 1;"),
        ({"cores": "101", "memory": "4Gi"}, "cores is 101, over the 100 of device gpu-0000-3b"),
        ({"cores": "30", "memory": "0"}, "memory is 0; a share has at least 1Mi"),
        ({"cores": "30", "memory": "1Ki"}, "memory is 1Ki; a share has at least 1Mi"),
        ({"cores": "30", "memory": "15Gi"}, "memory is 15Gi, over the 14917Mi of device gpu"),
        ({"cores": "30", "memory": "9Ei"}, "above"),
        ({"cores": "30", "memory": "1500000000"}, "memory is 1500000000, no multiple of 1Mi"),
        ("4Gi", r"consumedCapacity is '4Gi'; expected an object"),
        ([], r"consumedCapacity is a JSON list; expected an object"),
    ],
)
def test_a_capacity_that_the_policy_cannot_give_is_refused(consumed: Any, words: str) -> None:
    _refused(
        claim(result(consumedCapacity=consumed)),
        rf"{AT}\.results\[0\]\.consumedCap.*{words}" if not words.startswith("consumed") else words,
    )


def test_the_least_cores_are_those_that_are_published() -> None:
    found = claim(result(cores="0"))
    assert _resolve(found, cores_min=0).shares[0].capacity.cores == 0
    _refused(claim(result(cores="9")), "cores is 9; a share has at least 10", cores_min=10)


def test_quantities_may_be_numbers() -> None:
    found = claim(result(consumedCapacity={"cores": 30, "memory": 4 * GIB}))
    assert _resolve(found).shares[0].capacity == Capacity(30, 4 * GIB)


# Opaque configuration.

BURST = share_config(cores={"policy": "burst"})
CAP = share_config(cores={"policy": "cap"})


def _policy(*configs: dict[str, Any], request: str = "gpu") -> CoresPolicy:
    found = claim(result(request=request), configs=list(configs))
    return _resolve(found).shares[0].policy


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
    assert [share.policy.value for share in _resolve(found).shares] == ["cap", "burst"]


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
    _refused(
        found,
        rf"{AT}\.config\[1\]\.opaque\.parameters.*{words}"
        if not words.startswith("parameters")
        else words,
    )


def test_our_parameters_are_checked_also_where_they_apply_to_nothing() -> None:
    bad = config(share_config(memory="all"), requests=["not-allocated"])
    _refused(claim(configs=[bad]), r"parameters\.memory is an unknown field")


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
    _refused(claim(configs=[entry]), words)


# Whom it is reserved for.


def test_the_pods_are_those_that_it_is_reserved_for() -> None:
    found = claim(pods=("pod-b", "pod-a"))
    found["status"]["reservedFor"] += [
        {"apiGroup": "scheduling.k8s.io", "resource": "pods", "name": "not-a-pod", "uid": "1"},
        {"resource": "nodes", "name": "not-a-pod", "uid": "2"},
        {"apiGroup": "", "resource": "pods", "name": "pod-c", "uid": "3"},
    ]
    assert _resolve(found).pods == ("pod-a", "pod-b", "pod-c")
    del found["status"]["reservedFor"]
    assert _resolve(found).pods == ()


def test_resolving_changes_nothing_of_the_claim() -> None:
    found = claim(configs=[config(BURST)])
    before = copy.deepcopy(found)
    _resolve(found)
    assert found == before == json.loads(json.dumps(found))
