"""300 claims in all forms, made and deleted by chance: no card is ever given twice."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter, defaultdict

import pytest
from apportion.quantity import MIB, parse

from tests.cluster.requests import asked, chance
from tests.cluster.requests.asked import ALL_CORES, USABLE, Object
from tests.cluster.requests.chance import ADMINS
from tests.cluster.requests.site import Site, example
from tests.cluster.requests.state import State

CLAIMS, ROUNDS = 300, 10
_SETTLED_S = 180.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.unless("shared-claim")]


class Crowd:
    """What was made, and what is there of it."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.chance = site, random.Random(seed)  # noqa: S311 - a seed can be repeated
        self.claims = self.made = 0
        self.groups: list[list[Object]] = []

    def make(self, claims: int) -> None:
        """Make that many claims, and the pods that use them."""
        groups: list[list[Object]] = []
        while claims > 0:
            self.made += 1
            count, objects = chance.group(self.chance, f"g{self.made}", claims)
            claims -= count
            self.claims += count
            groups.append(objects)
        self.groups += groups
        self.site.cluster.apply([item for objects in groups for item in objects])

    def end(self, share: float) -> None:
        """Delete some of the groups."""
        gone = [objects for objects in self.groups if self.chance.random() < share]
        self.groups = [objects for objects in self.groups if objects not in gone]
        items = "\n---\n".join(json.dumps(item) for objects in gone for item in objects)
        self.site.cluster.kubectl("delete", "-f", "-", "--wait=false", input=items, timeout=120)

    def running(self) -> list[Object]:
        """Return the pods that run; wait until every other one is known to have no place."""
        limit = time.monotonic() + _SETTLED_S
        while True:
            pods = self.site.pods("--all-namespaces", "-l", "by=chance")
            waiting = [pod for pod in pods if not _is_settled(pod)]
            if not waiting or time.monotonic() > limit:
                assert not waiting, [pod["metadata"]["name"] for pod in waiting]
                return [pod for pod in pods if pod["status"]["phase"] == "Running"]
            time.sleep(0.5)


def _is_settled(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    if pod["status"]["phase"] == "Running":
        return all(status["ready"] for status in pod["status"].get("containerStatuses", []))
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", []))


def check_claims(state: State) -> None:
    """Every claim has what it asks for, and all together have no more than there is."""
    given: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, claim in state.claims.items():
        if "allocation" not in claim.get("status", {}):
            continue
        assert not asked.otherwise(claim, state.devices), name
        chosen = claim["metadata"].get("annotations", {}).get(chance.CHOSEN)
        for result in claim["status"]["allocation"]["devices"]["results"]:
            card = result["pool"], result["device"]
            if chosen:
                attribute, value = json.loads(chosen)
                assert state.devices[card]["attributes"][attribute] == value, name
            if not result.get("adminAccess"):
                given[card][0] += parse(result["consumedCapacity"]["memory"])
                given[card][1] += int(result["consumedCapacity"]["cores"])
    for card, (memory, cores) in given.items():
        assert memory <= USABLE * MIB, card
        assert cores <= ALL_CORES, card


def forms_of(pod: Object, state: State) -> list[str]:
    """Return which forms a pod is an example of."""
    claims = state.claims_of(pod)
    devices = [claim["spec"]["devices"] for claim in claims]
    tainted = {card for card, device in state.devices.items() if "taints" in device}
    results = [r for c in claims for r in c["status"]["allocation"]["devices"]["results"]]
    found = {
        "an init container": any("restartPolicy" not in c for c in _before(pod)),
        "a sidecar": any("restartPolicy" in c for c in _before(pod)),
        "a template": any(
            "resourceClaimTemplateName" in c for c in pod["spec"].get("resourceClaims", [])
        ),
        "a shared claim": any(len(c["status"].get("reservedFor", ())) > 1 for c in claims),
        "a ShareConfig": any("config" in each for each in devices),
        "a selector": any(chance.CHOSEN in c["metadata"].get("annotations", ()) for c in claims),
        "a tainted card": any((r["pool"], r["device"]) in tainted for r in results),
        "nvidia.com/gpu": "extendedResourceClaimStatus" in pod["status"],
    }
    return [form for form, there in found.items() if there]


def _before(pod: Object) -> list[Object]:
    return list(pod["spec"].get("initContainers", []))


def test_whatever_comes_and_goes_no_card_is_given_twice(site: Site) -> None:
    seed = int(os.environ.get("APPORTION_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed: APPORTION_TEST_SEED={seed}")
    site.cluster.apply(example("admin-access.yaml").partition("\n---\n")[0])
    site.cluster.apply(example("share-config.yaml").partition("\n---\n")[0])
    one_card = site.all_cards()[:1]
    site.taint(one_card)
    crowd = Crowd(site, seed)
    ran: Counter[str] = Counter()
    for number in range(ROUNDS):
        crowd.make(CLAIMS // ROUNDS)
        pods = crowd.running()
        check_claims(site.state())
        ran.update(pod["metadata"]["name"] for pod in pods)
        if number < ROUNDS - 1:
            crowd.end(0.6)
    assert crowd.claims == CLAIMS
    assert len(ran) > ROUNDS
    pods, state = crowd.running(), site.state()
    assert pods
    for pod in pods:
        assert site.seen(pod) == state.expected(pod), pod["metadata"]["name"]
    last = Counter(form for pod in pods for form in forms_of(pod, state))
    print(f"{len(ran)} pods have run; of the last {len(pods)} had {dict(last)}")
    crowd.end(1.0)
    site.walk.until("left on the nodes", site.leftovers, [], timeout=120)
    site.walk.kubectl("delete", "namespace", ADMINS, "--timeout=60s")
    site.walk.kubectl("delete", "deviceclass", chance.BURSTING)
    site.walk.until("claims", lambda: [*site.state().claims], [])
    site.heal(one_card)
