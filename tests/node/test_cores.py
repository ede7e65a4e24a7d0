"""Cores in the whole plugin: slots of a claim, what is lent, what is counted."""

from __future__ import annotations

import struct
import time
import urllib.request
from pathlib import Path

from apportion.cores import layout
from apportion.cores.layout import State
from apportion.cores.slots import Slot
from apportion.enforce import layout as ledger

from tests.node.support.apiserver import free_ports
from tests.node.support.claims import allocated, bursting, share
from tests.node.support.kubelet import until
from tests.node.support.site import Site, error_of
from tests.shim import support
from tests.shim.load import Load

_CARD = "gpu-0000-3b-00-0"
_ALWAYS = 1 << 62  # a launch so late that it is never long ago


def state(folder: Path) -> State:
    found = layout.unpack((folder / "schedule").read_bytes())
    assert found is not None
    return found


def note(folder: Path, *times: int, at: int) -> None:
    """Write into the share's ledger what the front library would."""
    with (folder / "ledger").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(f"<{len(times)}Q", *times))


def test_what_is_idle_is_lent_until_its_owner_wants_it_or_the_plugin_dies(site: Site) -> None:
    plugin = site.start()
    site.ready(plugin)
    claim = allocated(
        site.server,
        "app-claim-cores",
        share(site.node, _CARD, request="one", cores="30"),
        share(site.node, _CARD, request="two", cores="50"),
        config=[bursting("one")],
    )
    assert error_of(site.kubelet.prepare(claim), claim) == "", plugin.text()
    guest, owner = site.host.share_folders()
    assert [state(each).slot for each in (guest, owner)] == [Slot(0, 30), Slot(30, 50)]
    note(guest, _ALWAYS, at=ledger.WANTED_OFFSET)
    until(lambda: state(guest).guests == (Slot(30, 70),))
    note(owner, _ALWAYS, at=ledger.WANTED_OFFSET)
    until(lambda: state(guest).guests == (Slot(80, 20),))
    assert state(owner).guests == ()
    # A plugin that starts again finds the slots, and goes on.
    plugin.kill()
    last = state(guest)
    until(lambda: time.monotonic_ns() > last.guest_until)
    assert state(guest) == last
    again = site.start()
    again.wait_for("registered the plugin")
    until(lambda: state(guest).guest_until > last.guest_until)
    assert state(guest).guests == (Slot(80, 20),)
    assert state(owner).slot == Slot(30, 50)
    assert again.terminate() == 0


def test_a_program_that_launches_is_lent_what_its_neighbour_does_not_use(site: Site) -> None:
    # A long period, of which its own slot is 10 ms: most launches wait for what is lent.
    plugin = site.start(cores_period_ms="1000")
    site.ready(plugin)
    claim = allocated(
        site.server,
        "app-claim-bursting",
        share(site.node, _CARD, request="one", cores="1"),
        share(site.node, _CARD, request="two", cores="50"),
        config=[bursting("one")],
    )
    assert error_of(site.kubelet.prepare(claim), claim) == "", plugin.text()
    guest, owner = site.host.share_folders()
    container = support.Container(site.host.root, site.host.gpus.state_dir)
    container.shares = [support.Share(guest)]
    with Load(container.command(str(support.PROGRAMS / "load"))) as program:
        program.start(0)

        def lent() -> bool:
            assert program.ask("queue", 1000, 1, "plain") == 0
            return state(guest).guests == (Slot(1, 99),)

        until(lent)
    assert state(owner).guests == ()
    assert plugin.terminate() == 0


def test_the_mode_is_published_and_time_is_counted(site: Site) -> None:
    (port,) = free_ports(1)
    plugin = site.start(metrics_address=f"127.0.0.1:{port}")
    site.ready(plugin)
    attributes = site.slices()[0]["spec"]["devices"][0]["attributes"]
    assert attributes["coresMode"] == {"string": "timeslice"}
    claim = site.claim(share(site.node, _CARD, cores="30"))
    assert error_of(site.kubelet.prepare(claim), claim) == "", plugin.text()
    (folder,) = site.host.share_folders()
    note(folder, 2_500_000_000, 500_000_000, 1_000_000, at=ledger.CORES_OFFSET)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = {
        line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if "{" in line
    }
    assert {name: value for name, value in found.items() if "share_cores" in name} == {
        "apportion_share_cores_limit_ratio": 0.3,
        "apportion_share_cores_used_seconds_total": 2.5,
        "apportion_share_cores_waited_seconds_total": 0.5,
        "apportion_share_cores_overrun_seconds_total": 0.001,
    }
