from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from apportion import claimstatus, slices
from apportion.cli import clusterview, view
from apportion.cores.slots import Slot
from apportion.ledger.schema import Record, State
from apportion.model import (
    Access,
    Allowance,
    Capacity,
    ClaimRef,
    ClaimUid,
    CoresMode,
    DeviceName,
    Inventory,
    Share,
    ShareKey,
    Usage,
)

from tests.fakes import samples

BOOT = "boot-2"
USAGE = Usage(total=700 * samples.MIB, held=600 * samples.MIB, processes=2, peak=900, denied=3)


def _record(
    name: str, *, boot: str = BOOT, state: State = State.COMPLETED, card: int = 0
) -> Record:
    uid = ClaimUid(f"uid-{name}")
    device = samples.device(card)
    share = Share(
        key=ShareKey(f"{uid}-0"),
        request="gpu",
        pool=samples.NODE,
        device=device.name,
        share_id=f"share-{name}",
        uuid=device.gpu.uuid,
        capacity=Capacity(cores=30, memory=4 * samples.GIB),
    )
    return Record(boot, state, ClaimRef(uid, "team", name), (f"pod-{name}",), "build", (share,))


def _limits(*records: Record) -> tuple[Allowance, ...]:
    return tuple(
        Allowance(share.key, share.uuid, share.capacity, mode=CoresMode.TIMESLICE)
        for record in records
        for share in record.shares
    )


def _node(*records: Record, **changes: Any) -> view.View:
    given: dict[str, Any] = {
        "boot": BOOT,
        "records": records,
        "devices": tuple(samples.devices().values()),
        "allowances": _limits(*records),
        "usages": {},
        "used": {},
        "slots": {},
    }
    return view.of_node(samples.DRIVER, samples.NODE, **(given | changes))


def test_a_node_without_claims_shows_its_cards() -> None:
    shown = _node(used={samples.gpu(1).uuid: 5})
    assert [(c.device, c.product, c.used, c.memory_given) for c in shown.cards] == [
        ("gpu-0000-3b-00-0", "Tesla T4", None, 0),
        ("gpu-0000-3c-00-0", "Tesla T4", 5, 0),
    ]
    assert shown.shares == ()
    assert shown.complete
    assert shown.problems == ()


def test_shares_come_under_their_cards_sorted_by_claim() -> None:
    b, a, other = _record("b"), _record("a"), _record("c", card=1)
    shown = _node(b, a, other, usages={a.shares[0].key: USAGE})
    assert [(s.device, s.claim) for s in shown.shares] == [
        ("gpu-0000-3b-00-0", "a"),
        ("gpu-0000-3b-00-0", "b"),
        ("gpu-0000-3c-00-0", "c"),
    ]
    first = shown.shares[0]
    assert (first.node, first.uuid, first.namespace) == (samples.NODE, samples.gpu(0).uuid, "team")
    assert (first.pods, first.share_id, first.state) == (("pod-a",), "share-a", view.PREPARED)
    assert (first.used, first.peak, first.refused, first.processes) == (USAGE.held, 900, 3, 2)
    assert (shown.cards[0].memory_given, shown.cards[0].cores_given) == (8 * samples.GIB, 60)
    second = shown.shares[1]
    assert (second.used, second.peak, second.refused, second.processes) == (None,) * 4


def test_how_cores_are_held_and_when_is_shown_where_it_is_known() -> None:
    a, b = _record("a"), _record("b")
    shown = _node(a, b, slots={a.shares[0].key: Slot(10, 30)}, allowances=_limits(a))
    assert [(share.mode, share.slot) for share in shown.shares] == [
        (CoresMode.TIMESLICE, Slot(10, 30)),
        (None, None),
    ]


def test_a_claim_in_the_making_counts_and_one_of_another_boot_does_not() -> None:
    shown = _node(_record("a", state=State.STARTED), _record("b", boot="boot-1"))
    assert [share.state for share in shown.shares] == [view.PREPARING, view.BEFORE_REBOOT]
    assert (shown.cards[0].memory_given, shown.cards[0].cores_given) == (4 * samples.GIB, 30)


def test_a_share_without_limits_is_a_problem() -> None:
    shown = _node(_record("a"), allowances=())
    assert shown.shares[0].state == view.NO_LIMITS
    (problem,) = shown.problems
    assert problem.startswith("team/a has no limits in force")


def test_a_claim_with_two_shares_without_limits_is_one_problem() -> None:
    a = _record("a")
    two = (a.shares[0], replace(a.shares[0], key=ShareKey("uid-a-1"), request="other"))
    shown = _node(replace(a, shares=two), allowances=())
    assert [share.state for share in shown.shares] == [view.NO_LIMITS] * 2
    assert len(shown.problems) == 1


def _renamed(record: Record, name: str) -> Record:
    share = replace(record.shares[0], device=DeviceName(name))
    return replace(record, shares=(share,))


def test_a_card_that_the_plugin_names_otherwise_is_shown_once_by_the_plugin_s_name() -> None:
    shown = _node(_renamed(_record("a"), "gpu-0"))
    assert [(c.device, c.product, len(c.shares)) for c in shown.cards] == [
        ("gpu-0", "Tesla T4", 1),
        ("gpu-0000-3c-00-0", "Tesla T4", 0),
    ]


def test_of_two_names_of_a_card_the_present_boot_s_is_shown() -> None:
    old, new = _renamed(_record("a", boot="boot-1"), "gpu-9"), _renamed(_record("b"), "gpu-0")
    for records in ((old, new), (new, old)):
        card, _other = _node(*records).cards
        assert (card.device, len(card.shares)) == ("gpu-0", 2)


def test_two_cards_of_one_name_stay_two() -> None:
    """The order of the cards has changed, and records know one by its old index."""
    devices = tuple(
        replace(device, name=DeviceName(f"gpu-{1 - index}"))
        for index, device in enumerate(samples.devices().values())
    )
    shown = _node(_renamed(_record("a"), "gpu-0"), devices=devices)
    assert [(card.uuid, len(card.shares)) for card in shown.cards] == [
        (samples.gpu(0).uuid, 1),
        (samples.gpu(1).uuid, 0),
    ]


def test_limits_without_a_claim_are_named() -> None:
    shown = _node(allowances=_limits(_record("gone")))
    (problem,) = shown.problems
    assert problem.startswith("share uid-gone-0 belongs to no prepared claim")


def test_without_nvml_cards_are_known_by_their_shares() -> None:
    shown = _node(_record("a"), devices=())
    (card,) = shown.cards
    assert (card.device, card.uuid) == ("gpu-0000-3b-00-0", samples.gpu(0).uuid)
    assert (card.product, card.memory, card.cores) == ("", None, None)


def _slices(generation: int = 1, count: int = 2, name: str = "s") -> list[dict[str, Any]]:
    policy = slices.Policy(driver=samples.DRIVER, node=samples.NODE)
    inventory = Inventory(tuple(samples.gpu(n) for n in range(count)))
    made = slices.slices(slices.devices(inventory, policy), policy, generation=generation)
    return [item | {"metadata": {"name": name}} for item in made]


def test_the_cluster_shows_what_was_allocated() -> None:
    shown = clusterview.of_cluster(samples.DRIVER, _slices(), [samples.claim()])
    assert [card.device for card in shown.cards] == ["gpu-0000-3b-00-0", "gpu-0000-3c-00-0"]
    card = shown.cards[0]
    assert (card.node, card.uuid, card.product) == (samples.NODE, samples.gpu(0).uuid, "Tesla T4")
    assert (card.memory, card.cores, card.pci) == (14917 * samples.MIB, 100, "0000:3b:00.0")
    (share,) = card.shares
    assert (share.namespace, share.claim, share.uuid) == ("test-dra", "single-gpu-0", card.uuid)
    assert (share.memory, share.cores, share.pods) == (4 * samples.GIB, 30, ("pod-0",))
    assert (share.state, share.share_id) == (view.RESERVED, samples.SHARE_ID)
    assert shown.problems == ()


def _told(claim: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the claim with an entry for its first result, as the plugin makes it."""
    result = claim["status"]["allocation"]["devices"]["results"][0]
    share = replace(
        _record("a").shares[0], pool=result["pool"], device=DeviceName(result["device"]),
        share_id=result["shareID"],
    )  # fmt: skip
    status = claimstatus.ShareStatus(
        samples.NODE, share.key, share.uuid, share.capacity, USAGE, "2026-01-01T00:00:00Z"
    )
    entry = claimstatus.entry(samples.DRIVER, share, replace(status, **changes))
    return claim | {"status": claim["status"] | {"devices": [entry]}}


def test_the_cluster_shows_the_use_that_a_node_told() -> None:
    ages = {"2026-01-01T00:00:00Z": 7}
    shown = clusterview.of_cluster(samples.DRIVER, _slices(), [_told(samples.claim())], ages.get)
    (share,) = shown.shares
    assert (share.used, share.peak, share.refused, share.processes) == (USAGE.held, 900, 3, 2)
    assert (share.observed, share.age) == ("2026-01-01T00:00:00Z", 7)
    assert shown.problems == ()


@pytest.mark.parametrize(
    "change",
    [{"driver": "gpu.example.com"}, {"pool": "node-z"}, {"shareID": "another"}, {"data": {}}],
)
def test_what_is_told_of_something_else_is_no_use_of_a_share(change: dict[str, Any]) -> None:
    claim = _told(samples.claim())
    claim["status"]["devices"][0] |= change
    (share,) = clusterview.of_cluster(samples.DRIVER, _slices(), [claim]).shares
    assert (share.used, share.observed, share.age) == (None, "", None)


def test_a_condition_that_is_not_met_is_a_problem() -> None:
    conditions = (
        claimstatus.Condition("Ready", "True", "Prepared", "in force"),
        claimstatus.Condition("Healthy", "False", "Xid79", "the GPU has fallen off the bus"),
    )
    shown = clusterview.of_cluster(
        samples.DRIVER, _slices(), [_told(samples.claim(), conditions=conditions)]
    )
    (problem,) = shown.problems
    assert problem.endswith("not Healthy (Xid79): the GPU has fallen off the bus")


def test_a_claim_that_no_pod_uses_is_allocated_only() -> None:
    shown = clusterview.of_cluster(samples.DRIVER, _slices(), [samples.claim(pods=())])
    assert shown.shares[0].state == view.ALLOCATED


def test_other_drivers_and_pending_claims_are_left_out() -> None:
    pending = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {}}
    foreign = samples.claim(samples.result(driver="gpu.example.com"))
    assert clusterview.of_cluster(samples.DRIVER, _slices(), [pending, foreign]).shares == ()


def test_old_generations_of_a_pool_are_left_out() -> None:
    both = _slices(generation=1, count=2, name="a") + _slices(generation=2, count=1, name="b")
    assert len(clusterview.of_cluster(samples.DRIVER, both, []).cards) == 1


def test_a_claim_without_amounts_is_a_problem() -> None:
    claim = samples.claim(samples.result(consumedCapacity=None))
    shown = clusterview.of_cluster(samples.DRIVER, _slices(), [claim])
    assert (shown.shares[0].memory, shown.shares[0].cores) == (None, None)
    (problem,) = shown.problems
    assert "DRAConsumableCapacity" in problem


def test_a_card_of_a_kubernetes_without_shares_is_shown_as_given_whole() -> None:
    claim = samples.claim(samples.result(shareID=None, consumedCapacity=None))
    claim["spec"] = {"devices": {"requests": [{"name": "single-gpu", "exactly": {}}]}}
    shown = clusterview.of_cluster(samples.DRIVER, _slices(), [claim])
    (share,) = shown.shares
    assert share.access is Access.WHOLE
    assert (share.memory, share.cores) == (shown.cards[0].memory, shown.cards[0].cores)
    assert shown.problems == ()
    claim["spec"]["devices"]["requests"][0]["exactly"] = {"capacity": {"requests": {"cores": "1"}}}
    (problem,) = clusterview.of_cluster(samples.DRIVER, _slices(), [claim]).problems
    assert "no node prepares it" in problem


def test_a_device_that_is_not_published_is_a_problem_and_still_shown() -> None:
    shown = clusterview.of_cluster(samples.DRIVER, [], [samples.claim()])
    (card,) = shown.cards
    assert (card.device, card.shares[0].claim) == ("gpu-0000-3b-00-0", "single-gpu-0")
    (problem,) = shown.problems
    assert "is not published" in problem


def test_a_broken_slice_shows_what_it_has() -> None:
    (item,) = _slices(count=1)
    item["spec"]["devices"] = [{"name": "odd", "capacity": {"memory": {"value": "much"}}}]
    (card,) = clusterview.of_cluster(samples.DRIVER, [item], []).cards
    assert (card.device, card.uuid, card.memory, card.cores) == ("odd", "", None, None)


def test_the_ledger_of_a_whole_card_is_no_use_of_it() -> None:
    record = _record("a")
    whole = replace(record, shares=(replace(record.shares[0], access=Access.WHOLE),))
    for each, used in ((record, USAGE.held), (whole, None)):
        (share,) = _node(each, usages={each.shares[0].key: USAGE}).shares
        assert (share.access, share.used) == (each.shares[0].access, used)


def test_admin_access_takes_nothing_in_the_cluster_either() -> None:
    look = samples.result(adminAccess=True, request="look", shareID="b" * 36)
    shown = clusterview.of_cluster(
        samples.DRIVER, _slices(), [samples.claim(samples.result(), look)]
    )
    admin, share = sorted(shown.shares, key=lambda share: share.request)
    assert (admin.access, admin.memory, admin.cores) == (Access.ADMIN, 0, 0)
    assert (share.access, shown.cards[0].memory_given) == (Access.SHARE, 4 * samples.GIB)
    assert shown.problems == ()
