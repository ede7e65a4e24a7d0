"""The eyes of the other tests: what is not as asked for is seen. Needs no cluster."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest

from tests.cluster.requests import asked
from tests.cluster.requests.asked import WHOLE_CARD, Held, Object

AMOUNT = {"cores": "20", "memory": "1500M"}
GIVEN = {"cores": "20", "memory": "1431Mi"}
CARD, TAINTED = ("node-a", "gpu-0"), ("node-b", "gpu-0")


def devices() -> dict[tuple[str, str], Object]:
    """Return two cards, of which the second has a taint."""
    found: dict[tuple[str, str], Object] = {
        card: {"attributes": {"uuid": {"string": card[0]}}}
        for card in (("node-a", "gpu-0"), TAINTED)
    }
    found[TAINTED]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    return found


def claim() -> Object:
    """Return a claim for two shares of one card, as it is given them."""
    share = {"deviceClassName": "share", "capacity": {"requests": AMOUNT}}
    small = share | {"name": "small"}
    result = {"pool": "node-a", "device": "gpu-0", "consumedCapacity": GIVEN}
    return {
        "spec": {
            "devices": {
                "requests": [
                    {"name": "one", "exactly": share | {"count": 1}},
                    {"name": "two", "firstAvailable": [{"name": "large"}, small]},
                ],
                "constraints": [{"matchAttribute": "apportion.gpu/uuid"}],
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [result | {"request": "one"}, result | {"request": "two/small"}]
                }
            }
        },
    }


def _results(item: Object) -> list[Object]:
    found: list[Object] = item["status"]["allocation"]["devices"]["results"]
    return found


def _consumes(amount: dict[str, str], item: Object) -> None:
    _results(item)[1]["consumedCapacity"] = GIVEN | amount


def _twice(item: Object) -> None:
    item["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2


def _another_card(item: Object) -> None:
    _results(item)[1] |= {"pool": TAINTED[0], "device": TAINTED[1]}


def _apart(item: Object) -> None:
    item["spec"]["devices"]["constraints"] = [{"distinctAttribute": "apportion.gpu/uuid"}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (partial(_consumes, {"cores": "21"}), ["two/small: "]),
        (partial(_consumes, {"memory": "1430Mi"}), ["two/small: "]),
        (lambda item: _results(item)[0].update(adminAccess=True), ["one: admin access"]),
        (_twice, ["one: 1 results instead of 2"]),
        (lambda item: _results(item).pop(), ["two: 0 results instead of 1"]),
        (_another_card, ["two/small: does not tolerate broken", "{'matchAttribute'"]),
        (_apart, ["{'distinctAttribute'"]),
    ],
)
def test_what_is_not_as_asked_is_said(change: Callable[[Object], None], words: list[str]) -> None:
    item = claim()
    assert asked.otherwise(item, devices()) == []
    change(item)
    found = asked.otherwise(item, devices())
    assert len(found) == len(words)
    assert all(said.startswith(start) for said, start in zip(found, words, strict=True)), found


def test_what_is_held_is_by_the_request_and_not_by_what_was_given() -> None:
    item = claim()
    _consumes({"cores": "99", "memory": "1Mi"}, item)
    classes: dict[str, Object] = {"share": {"spec": {}}}
    (_one, two) = _results(item)
    assert asked.held(item, two, classes) == Held(1431, 20, ("cap",))
    policy: Object = {"opaque": {"parameters": {"cores": {"policy": "burst"}}}}
    classes["share"]["spec"]["config"] = [policy]
    assert asked.held(item, two, classes) == Held(1431, 20, ("burst",))
    other = deepcopy(policy) | {"requests": ["two"]}
    other["opaque"]["parameters"]["cores"]["policy"] = "cap"
    item["spec"]["devices"]["config"] = [other]
    assert asked.held(item, two, classes) == Held(1431, 20, ("cap",))
    other["requests"] = ["two/large", "one"]
    assert asked.held(item, two, classes) == Held(1431, 20, ("burst",))


def test_a_request_that_leaves_all_out_is_for_a_whole_card() -> None:
    item = claim()
    del item["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    assert asked.held(item, _results(item)[0], {}) == WHOLE_CARD
    assert WHOLE_CARD.and_also(Held(1, 1, ("cap",))) == WHOLE_CARD
