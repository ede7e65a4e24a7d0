"""A plugin that starts anew while all memory of the GPUs is in use: what runs is served."""

from __future__ import annotations

import pytest

from tests.node.support.kubelet import until
from tests.node.support.site import Site, error_of

_OUT_OF_MEMORY = 2


@pytest.mark.parametrize("function", ["cuDevicePrimaryCtxRetain", "cuInit"])
def test_what_runs_is_served_and_what_is_new_waits_for_room(site: Site, function: str) -> None:
    plugin = site.start()
    site.ready(plugin)
    running = site.claim()
    before = site.kubelet.prepare(running)
    published = site.published()
    plugin.kill()
    site.host.gpus.inject(None, function, _OUT_OF_MEMORY)
    again = site.start()
    again.wait_for("new shares are refused: the self-test .* could not be finished")
    again.wait_for("registered the plugin")
    until(lambda: len(site.kubelet.plugins) == 1)
    assert site.kubelet.prepare(running) == before
    new = site.claim()
    assert "no new one is prepared until it passes" in error_of(site.kubelet.prepare(new), new)
    assert [path.name for path in site.host.share_folders()] == [f"{running['uid']}-0"]
    site.ready(again)
    assert site.published() == published
    site.host.gpus.clear()
    until(lambda: not error_of(site.kubelet.prepare(new), new), 90)
    again.wait_for("new shares are refused: all is well again")
    assert error_of(site.kubelet.unprepare(running), running) == ""
