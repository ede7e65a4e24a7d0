"""Pods that use one claim: what they have together is what the claim has."""

from __future__ import annotations

from tests.cluster.requests.asked import Held
from tests.cluster.requests.site import Site, example

GRANTED, REFUSED = "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"


def test_two_pods_have_no_more_than_their_one_share(site: Site) -> None:
    """Of 6 GiB one pod holds 4, and the other gets what is left and no MiB of what is not."""
    with site.running(example("two-pods-one-share.yaml"), "pod/team-a", "pod/team-b"):
        one, other = (site.seen(site.get("pod", name))["main"] for name in ("team-a", "team-b"))
        assert one == other
        assert [*one.values()] == [Held(6144, 50, ("cap",))]
        assert GRANTED in site.cuda("team-b", "alloc", "5GiB")
        assert GRANTED in site.cuda("team-a", "alloc", "4GiB", held=True)
        # Each process's context takes 100 MiB.
        left = 2048 - 2 * 100
        assert REFUSED in site.cuda("team-b", "alloc", "5GiB")
        assert REFUSED in site.cuda("team-b", "alloc", f"{left + 2}MiB")
        assert GRANTED in site.cuda("team-b", "alloc", f"{left}MiB", held=True)
        assert REFUSED in site.cuda("team-a", "alloc", "2MiB")
