"""Whole cards beside shares: the driver's own libraries and numbers, and nobody else on them."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.requests.asked import WHOLE_CARD, Held, Object
from tests.cluster.requests.site import PLACES, Site, example

LIBDIR = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = (f"{LIBDIR}/libcuda.so.1", f"{LIBDIR}/libnvidia-ml.so.1")
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def fronts(site: Site, pod: str, container: str) -> list[str]:
    """Return which of the driver's usual names a front library lies at."""
    where = ("exec", pod, "-c", container, "--")
    mounts = site.walk.kubectl(*where, "cat", "/proc/self/mountinfo")
    points = {line.split()[4] for line in mounts.splitlines()}
    return [name for name in LIBRARIES if name in points]


def test_a_container_with_whole_cards_has_no_front(site: Site) -> None:
    with site.running(example("whole-card.yaml"), "pod/whole-card"):
        assert fronts(site, "whole-card", "main") == []
        links = site.walk.kubectl("exec", "whole-card", "--", "readlink", *LIBRARIES)
        assert links.split() == [
            f"/run/apportion/driver/{name.rpartition('/')[2]}" for name in LIBRARIES
        ]
        assert [*site.seen(site.get("pod", "whole-card"))["main"].values()] == [WHOLE_CARD]
        assert "CUDA_SUCCESS" in site.cuda("whole-card", "alloc", "14800MiB")


def test_a_whole_card_and_a_share_in_one_container(site: Site) -> None:
    name = "whole-card-and-share"
    with site.running(example(f"{name}.yaml"), f"pod/{name}"):
        pod = site.get("pod", name)
        seen = site.seen(pod)
        assert seen == site.state().expected(pod)
        share = Held(2048, 10, ("cap",))
        assert {*seen["both"].values()} == {share, WHOLE_CARD}
        assert [*seen["train-only"].values()] == [WHOLE_CARD]
        assert fronts(site, name, "both") == list(LIBRARIES)
        assert fronts(site, name, "train-only") == []
        place = [*seen["both"].values()].index(WHOLE_CARD)
        device, other = str(place), str(1 - place)
        answer = site.cuda(name, "--device", device, "alloc", "14700MiB", container="both")
        assert OUT_OF_MEMORY not in answer
        assert "CUDA_SUCCESS" in answer
        answer = site.cuda(name, "--device", other, "alloc", "2049MiB", container="both")
        assert OUT_OF_MEMORY in answer


def test_a_whole_card_and_a_share_of_it_wait_for_each_other(site: Site) -> None:
    """All want one card, and the others are free."""
    uuid = max(PLACES)
    share = example("share.yaml", of_card(uuid))
    whole = example("whole-card.yaml", of_card(uuid))
    try:
        site.cluster.apply(share)
        ready(site, "share")
        site.cluster.apply(whole)
        waits(site, "whole-card")
        site.delete(share)
        ready(site, "whole-card")
        assert site.seen(site.get("pod", "whole-card")) == {"main": {uuid: WHOLE_CARD}}
        site.cluster.apply(share)
        waits(site, "share")
        site.delete(whole)
        ready(site, "share")
        assert site.seen(site.get("pod", "share")) == {"main": {uuid: Held(4096, 30, ("cap",))}}
    finally:
        site.delete(share)
        site.delete(whole)


def of_card(uuid: str) -> Callable[[Object], None]:
    """Return a change of an example, by which its request is for one card."""
    selector = {"cel": {"expression": f'device.attributes["apportion.gpu"].uuid == "{uuid}"'}}

    def change(item: Object) -> None:
        if item["kind"] == "ResourceClaimTemplate":
            (request,) = item["spec"]["spec"]["devices"]["requests"]
            request["exactly"]["selectors"] = [selector]

    return change


def ready(site: Site, pod: str) -> None:
    site.cluster.wait_for("condition=Ready", f"pod/{pod}", timeout=100)


def waits(site: Site, pod: str) -> None:
    """The scheduler finds no place for a pod, and gives its claim nothing."""
    site.walk.until("waits", lambda: site.unschedulable(pod), True)
    (claim,) = site.state().claims_of(site.get("pod", pod))
    assert "allocation" not in claim.get("status", {})
