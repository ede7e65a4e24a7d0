from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from apportion import claims
from apportion.errors import ClaimError
from apportion.model import (
    Access,
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


def resolve(found: Any, ref: ClaimRef = samples.REF, *, cores_min: int = 1) -> ResolvedClaim:
    return claims.resolve(
        found,
        ref,
        driver=samples.DRIVER,
        pool=samples.NODE,
        devices=samples.devices(2),
        cores_min=cores_min,
    )


def refused(found: Any, words: str, **options: Any) -> None:
    with pytest.raises(ClaimError, match=words) as caught:
        resolve(found, **options)
    text = str(caught.value)
    assert text.startswith("claim test-dra/single-gpu-0: ")
    assert "\n" not in text
    assert len(text) < 700


def test_the_labs_claim_becomes_a_share() -> None:
    assert resolve(claim()) == ResolvedClaim(
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
    shares = resolve(found).shares
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
    first, second = resolve(found).shares
    assert first.device == second.device
    assert first.key != second.key


def test_the_whole_card_is_a_share_of_all_of_it() -> None:
    found = claim(result(cores="100", memory="14917Mi"))
    assert resolve(found).shares[0].capacity == Capacity(100, 14917 * MIB)


# The claim itself.


def test_a_claim_made_again_under_its_name_is_refused() -> None:
    other = ClaimRef(ClaimUid("other"), samples.REF.namespace, samples.REF.name)
    refused(claim(), "its UID is '0b1ba5f2.*kubelet asked for 'other'.*delete the pod", ref=other)


def test_a_uid_that_cannot_name_a_file_is_refused() -> None:
    ref = ClaimRef(ClaimUid("../../etc"), samples.REF.namespace, samples.REF.name)
    refused(claim(ref=ref), "cannot name a file", ref=ref)


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_refused(status: Any) -> None:
    found = claim()
    found["status"] = status
    refused(found, r"it is not allocated \(no status.allocation\); delete the claim and its pod")


def test_a_claim_on_its_way_out_is_refused_as_that() -> None:
    found = claim()
    found["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    del found["status"]["allocation"]
    refused(found, "it is being deleted and no longer allocated")


def test_a_claim_that_is_deleted_while_a_pod_holds_it_is_still_prepared() -> None:
    found = claim()
    found["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert resolve(found).shares


def test_a_claim_of_other_drivers_is_refused_by_their_names() -> None:
    found = claim(result(driver="b.example.com"), result(driver="a.example.com"))
    refused(found, r"no device of driver apportion\.gpu .*there: a\.example\.com, b\.example\.com")


def test_a_drivers_name_makes_no_second_line() -> None:
    refused(claim(result(driver="a\nb")), r"drivers there: a\\nb\)")


def test_a_claim_without_results_is_refused() -> None:
    found = claim()
    found["status"]["allocation"]["devices"]["results"] = []
    refused(found, r"drivers there: none")


# Results.


def test_a_foreign_pool_is_refused() -> None:
    refused(claim(result(pool="node-1")), rf"{AT}\.results\[0\]\.pool is 'node-1'.*'node-0'")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    words = rf"{AT}\.results\[0\]\.device is 'hami-gpu-7'.*published: gpu-0000-3b-00-0, gpu-0000-3c"
    refused(claim(result(device="hami-gpu-7")), words)


def test_without_any_device_the_list_of_known_ones_is_none() -> None:
    with pytest.raises(ClaimError, match="published: none"):
        claims.resolve(claim(), samples.REF, driver=samples.DRIVER, pool="node-0", devices={})


@pytest.mark.parametrize("request_", ["", "a/b/c", "A", "a/", "/a", "a b", "../a", 7, None])
def test_a_request_name_of_another_form_is_refused(request_: Any) -> None:
    refused(claim(result(request=request_)), rf"{AT}\.results\[0\]\.request is")


def test_a_subrequest_keeps_its_parent() -> None:
    assert resolve(claim(result(request="gpu/big"))).shares[0].request == "gpu/big"


def test_admin_access_takes_nothing_whatever_the_scheduler_wrote_down() -> None:
    consumed: Any
    for consumed in ({"cores": "100", "memory": "15Gi"}, {"other": "1"}, None):
        (share,) = resolve(claim(result(adminAccess=True, consumedCapacity=consumed))).shares
        assert (share.access, share.capacity) == (Access.ADMIN, Capacity(0, 0))
    assert resolve(claim(result(adminAccess=False))).shares[0].access is Access.SHARE
    refused(claim(result(adminAccess="yes")), "adminAccess is 'yes'; expected true or false")


def test_all_of_a_card_is_a_whole_card_however_it_was_asked_for() -> None:
    memory = samples.device(0).capacity.memory
    (whole,) = resolve(claim(result(cores="100", memory=str(memory)))).shares
    assert whole.access is Access.WHOLE
    assert whole.capacity == samples.device(0).capacity
    for cores, part in (("99", memory), ("100", memory - MIB)):
        (share,) = resolve(claim(result(cores=cores, memory=str(part)))).shares
        assert share.access is Access.SHARE


def test_a_share_without_its_id_is_refused() -> None:
    refused(claim(result(shareID=None)), "shareID is missing; .*DRAConsumableCapacity")


WHOLE: Any = {"deviceClassName": "gpu.apportion.gpu"}
PART: Any = WHOLE | {"capacity": {"requests": {"memory": "4Gi"}}}


def bare(*requests: Any, of: str = "gpu", **changes: Any) -> Any:
    """A claim of a Kubernetes that shares no device: its result has neither ID nor amount."""
    found = claim(result(request=of, shareID=None, consumedCapacity=None, **changes))
    found["spec"] = {"devices": {"requests": list(requests)}}
    return found


@pytest.mark.parametrize(
    ("of", "request_"),
    [
        ("gpu", {"name": "gpu", "exactly": WHOLE}),
        ("gpu", {"name": "gpu", "exactly": WHOLE | {"capacity": {}}}),
        ("gpu/big", {"name": "gpu", "firstAvailable": [PART | {"name": "s"}, {"name": "big"}]}),
    ],
)
def test_without_shares_in_this_kubernetes_a_request_without_capacity_is_for_the_card(
    of: str, request_: Any
) -> None:
    (share,) = resolve(bare({"name": "other", "exactly": PART}, request_, of=of)).shares
    assert (share.access, share.share_id) == (Access.WHOLE, None)
    assert share.capacity == samples.device(0).capacity


def test_admin_access_needs_no_share_id_where_there_are_none() -> None:
    (share,) = resolve(bare(adminAccess=True)).shares
    assert (share.access, share.share_id) == (Access.ADMIN, None)


@pytest.mark.parametrize(
    ("of", "request_"),
    [
        ("gpu", {"name": "gpu", "exactly": PART}),
        ("gpu/small", {"name": "gpu", "firstAvailable": [PART | {"name": "small"}]}),
        ("gpu/none", {"name": "gpu", "firstAvailable": [{"name": "another"}]}),
        ("gpu", {"name": "another", "exactly": WHOLE}),
    ],
)
def test_a_part_that_was_asked_for_is_never_made_a_whole_card(of: str, request_: Any) -> None:
    words = "consumedCapacity is missing: the share has no limits; .*DRAConsumableCapacity"
    refused(bare(request_, of=of), words)


def test_one_card_given_twice_is_refused() -> None:
    found = bare({"name": "gpu", "exactly": WHOLE | {"count": 2}})
    found["status"]["allocation"]["devices"]["results"] *= 2
    refused(found, "gpu and gpu have the same share without an ID of device gpu-0000-3b-00-0")


@pytest.mark.parametrize("share_id", ["", "a/b", "x" * 64, 5, {}])
def test_a_share_id_of_another_form_is_refused(share_id: Any) -> None:
    refused(claim(result(shareID=share_id)), r"shareID is .*; expected")


def test_one_share_given_twice_is_refused() -> None:
    found = claim(result(request="a"), result(request="b"))
    refused(found, f"requests a and b have the same share {samples.SHARE_ID}")


def test_one_id_on_two_devices_is_no_duplicate() -> None:
    assert len(resolve(claim(result(0, request="a"), result(1, request="b"))).shares) == 2


@pytest.mark.parametrize(
    ("consumed", "words"),
    [
        (None, "is missing: the share has no limits; .*switch on .*DRAConsumableCapacity"),
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
    refused(
        claim(result(consumedCapacity=consumed)),
        rf"{AT}\.results\[0\]\.consumedCap.*{words}" if not words.startswith("consumed") else words,
    )


def test_the_least_cores_are_those_that_are_published() -> None:
    found = claim(result(cores="0"))
    assert resolve(found, cores_min=0).shares[0].capacity.cores == 0
    refused(claim(result(cores="9")), "cores is 9; a share has at least 10", cores_min=10)


def test_quantities_may_be_numbers() -> None:
    found = claim(result(consumedCapacity={"cores": 30, "memory": 4 * GIB}))
    assert resolve(found).shares[0].capacity == Capacity(30, 4 * GIB)


# Opaque configuration.


def test_the_pods_are_those_that_it_is_reserved_for() -> None:
    found = claim(pods=("pod-b", "pod-a"))
    found["status"]["reservedFor"] += [
        {"apiGroup": "scheduling.k8s.io", "resource": "pods", "name": "not-a-pod", "uid": "1"},
        {"resource": "nodes", "name": "not-a-pod", "uid": "2"},
        {"apiGroup": "", "resource": "pods", "name": "pod-c", "uid": "3"},
    ]
    assert resolve(found).pods == ("pod-a", "pod-b", "pod-c")
    del found["status"]["reservedFor"]
    assert resolve(found).pods == ()


def test_resolving_changes_nothing_of_the_claim() -> None:
    found = claim(configs=[config(share_config(cores={"policy": "burst"}))])
    before = copy.deepcopy(found)
    resolve(found)
    assert found == before == json.loads(json.dumps(found))
