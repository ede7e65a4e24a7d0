"""What is known of the GPUs outlives the plugin, and ends with the driver or the node."""

from __future__ import annotations

import logging

import pytest
from apportion.inventory.xids import Event
from apportion.model import Inventory
from apportion.watch.condition import Reason
from apportion.watch.health import Health
from apportion.watch.store import read

from tests.unit.watch.played import BOTH, ONE, QUIET_S, TWO, Site, fall_ill, names

# Over restarts.


def test_d23_a_restart_keeps_what_was_wrong(site: Site, health: Health) -> None:
    fall_ill(site, health)
    (before,) = health.conditions()[ONE.uuid]
    site.seconds += 10_000
    again = site.start()
    assert again.conditions()[ONE.uuid] == (before,)
    # Nobody looked while the plugin was down: the time to be good begins now.
    again.settle(BOTH)
    again.poll()
    assert names(again) == ["xid-79"]
    site.pass_time(again, QUIET_S)
    assert names(again) == []


def test_a_gpu_that_went_while_the_plugin_was_down_is_gone(site: Site, health: Health) -> None:
    assert names(health) == []
    again = site.start()
    assert again.settle(Inventory((TWO,))) == BOTH
    assert names(again) == ["gone"]


@pytest.mark.parametrize("what", ["boot", "instance"])
def test_a_reboot_and_a_new_driver_end_it_all(site: Site, health: Health, what: str) -> None:
    fall_ill(site, health)
    setattr(site, what, "another")
    again = site.start()
    assert again.conditions() == {}
    assert again.settle(Inventory((TWO,))) == Inventory((TWO,))


def test_a_driver_that_is_loaded_anew_while_the_plugin_runs(site: Site, health: Health) -> None:
    site.pending.append(Event(TWO.uuid, 79))
    health.poll()
    health.settle(Inventory((TWO,)))
    site.instance = ""
    assert health.settle(Inventory((TWO,))) == BOTH
    site.instance = "200"
    assert health.settle(Inventory((TWO,))) == Inventory((TWO,))
    assert (names(health), names(health, TWO)) == ([], [])


def test_a_driver_that_is_not_loaded_yet_when_the_plugin_starts(site: Site, health: Health) -> None:
    fall_ill(site, health)
    site.instance = ""
    again = site.start()
    assert names(again) == ["xid-79"]
    site.instance = "200"
    assert again.settle(Inventory((TWO,))) == Inventory((TWO,))
    assert names(again) == []


def test_what_another_plugin_noted_is_taken_over(site: Site, health: Health) -> None:
    other = site.start()
    other.settle(BOTH)
    fall_ill(site, other)
    assert names(health) == []
    site.pass_time(health, 6)
    assert names(health) == ["xid-79"]


def test_a_damaged_file_is_put_aside(
    site: Site, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    fall_ill(site, health)
    (site.folder / "health.json").write_bytes(b"{")
    again = site.start()
    assert again.conditions() == {}
    assert "damaged health record" in caplog.text
    (text,) = site.damage
    assert "kept as" in text
    assert (site.folder / "health.json.damaged").read_bytes() == b"{"
    again.settle(BOTH)
    assert read(site.folder) is not None


def test_a_disk_that_fails_is_said_once_and_tried_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    health = site.start()
    site.folder.touch()
    health.settle(BOTH)
    fall_ill(site, health)
    assert names(health) == ["xid-79"]
    assert caplog.text.count("health cannot be written down") == 1
    site.folder.unlink()
    site.pass_time(health, 6)
    assert "all is well again" in caplog.text
    assert read(site.folder) is not None


def test_reasons_are_names_that_users_write() -> None:
    assert sorted(Reason) == [
        "ecc",
        "gone",
        "hang",
        "lost",
        "mps",
        "recovery",
        "remap-failed",
        "remap-pending",
        "thermal",
        "unmonitored",
        "unreadable",
        "xid",
    ]


def test_what_one_plugin_writes_takes_nothing_of_the_other_away(site: Site) -> None:
    first, second = site.start(), site.start()
    first.settle(BOTH)
    second.settle(BOTH)
    fall_ill(site, first, 79)
    fall_ill(site, second, 48)
    assert names(second) == ["xid-79", "xid-48"]
    first.absorb()
    assert names(first) == ["xid-79", "xid-48"]
