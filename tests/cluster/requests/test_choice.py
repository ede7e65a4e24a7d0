"""Which card a claim gets, and how what it gets is held."""

from __future__ import annotations

import json

from tests.cluster.requests.asked import DRIVER, USABLE, Object, expression
from tests.cluster.requests.site import PLACES, Site, example

STANDARD = "resource.kubernetes.io"


def test_everything_that_is_published_can_be_asked_for(site: Site) -> None:
    devices = site.state().devices
    pool, name = max(devices)
    device = devices[pool, name]
    expressions = [expression(at, value) for at, value in device["attributes"].items()]
    assert len(expressions) == 14
    expressions += [
        f'device.capacity["{DRIVER}"].{at}.compareTo(quantity("{amount["value"]}")) == 0'
        for at, amount in device["capacity"].items()
    ]
    expressions += [f'device.driver == "{DRIVER}"', "device.allowMultipleAllocations == true"]
    made = json.loads(example("choose-a-card.yaml").partition("\n---\n")[0])
    request = made["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    request["selectors"] = [{"cel": {"expression": each}} for each in expressions]
    pod = example("choose-a-card.yaml").partition("\n---\n")[2]
    with site.running(f"{json.dumps(made)}\n---\n{pod}", "pod/choose-a-card"):
        (found,) = site.get("resourceclaims")["items"]
        (result,) = found["status"]["allocation"]["devices"]["results"]
        assert (result["pool"], result["device"]) == (pool, name)


def test_where_a_card_is_is_published(site: Site) -> None:
    found = {}
    for device in site.state().devices.values():
        at = device["attributes"]
        place = (at[f"{STANDARD}/pcieRoot"]["string"], at[f"{STANDARD}/numaNode"]["int"])
        found[at["uuid"]["string"]] = place
    assert found == PLACES


def test_one_root_complex_means_the_node_that_has_two_cards_below_one(site: Site) -> None:
    """The other node has two cards, too, and gives them to who does not ask for that."""

    def anywhere(item: Object) -> None:
        if item["kind"] == "ResourceClaimTemplate":
            devices = item["spec"]["spec"]["devices"]
            devices["constraints"].pop()
            del devices["requests"][0]["exactly"]["selectors"]
        else:
            item["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-a"}

    def elsewhere(item: Object) -> None:
        if item["kind"] == "Pod":
            item["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-a"}

    file, pod = "near-each-other.yaml", "pod/near-each-other"
    with site.running(example(file, anywhere), pod):
        pass
    with site.running(example(file, elsewhere)):
        site.walk.until("waits", lambda: site.unschedulable("near-each-other"), True)
    with site.running(example(file), pod):
        assert site.get(pod)["spec"]["nodeName"] == "node-b"


def test_which_policy_a_share_has(site: Site) -> None:
    with site.running(example("share-config.yaml"), "pod/share-config"):
        assert policies(site, "share-config") == {"batch": ("burst",), "service": ("cap",)}


def test_a_share_config_is_for_one_alternative_or_for_all(site: Site) -> None:
    """Each request has a large alternative, which no node can give, and a small one."""
    names = {"for-small": "burst", "for-large": "cap", "for-all": "burst"}

    def three(item: Object) -> None:
        if item["kind"] == "Pod":
            (main,) = item["spec"]["containers"]
            item["spec"]["containers"] = [
                main | {"name": name, "resources": {"claims": [{"name": "gpu", "request": name}]}}
                for name in names
            ]
            return
        devices = item["spec"]["spec"]["devices"]
        ((request,), (config,)) = devices["requests"], devices["config"]
        request["firstAvailable"][1]["capacity"]["requests"] = {"cores": "10", "memory": "1Gi"}
        devices["requests"] = [request | {"name": name} for name in names]
        wanted = ("for-small/small", "for-large/large", "for-all")
        devices["config"] = [config | {"requests": [each]} for each in wanted]

    with site.running(example("first-available.yaml", three), "pod/first-available"):
        found = policies(site, "first-available")
        assert found == {name: (policy,) for name, policy in names.items()}


def policies(site: Site, pod: str) -> dict[str, tuple[str, ...]]:
    """Return the policies of the one card of each container."""
    return {
        container: held.policies
        for container, cards in site.seen(site.get("pod", pod)).items()
        for held in cards.values()
    }


def test_all_of_a_card_by_numbers_is_a_whole_card(site: Site) -> None:
    def all_of_it(item: Object) -> None:
        if item["kind"] == "ResourceClaimTemplate":
            request = item["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            request["capacity"]["requests"] = {"cores": "100", "memory": f"{USABLE}Mi"}

    with site.running(example("share.yaml", all_of_it), "pod/share"):
        pod = site.get("pod", "share")
        assert site.seen(pod) == site.state().expected(pod)
        assert "/run/apportion/driver/" in site.walk.kubectl(
            "exec", "share", "--", "readlink", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
        )
