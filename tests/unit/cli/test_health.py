"""What the commands say of the GPUs' health, from the plugin's file and from slices."""

from __future__ import annotations

from pathlib import Path

import pytest
from apportion import slices
from apportion.cli import clusterview, doctor, status
from apportion.config import Config
from apportion.ledger.store import boot_id
from apportion.model import Inventory, Taint
from apportion.watch import record
from apportion.watch.condition import Condition, Conditions, Level, Reason
from apportion.watch.record import Known, Record

from tests.fakes import samples

UUID = samples.gpu().uuid
XID = Condition(Reason.XID, Level.LOST, 1764500000, "Xid 79: it fell off the bus", 79)
HOT = Condition(Reason.THERMAL, Level.NOTE, 1764500000, "the GPU is hot")


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    found = Config(
        node_name=samples.NODE,
        plugins_dir=tmp_path / "plugins",
        shares_dir=tmp_path / "shares",
        driver_root_mount=tmp_path / "no-driver",
        guard="off",
    )
    (found.plugin_dir / "claims").mkdir(parents=True)
    return found


def write(settings: Config, *conditions: Condition, boot: str = "") -> None:
    known: Conditions = conditions
    content = Record(boot or boot_id(settings.proc), "", {UUID: Known(samples.gpu(), known)})
    (settings.plugin_dir / record.FILE).write_bytes(record.dump(content))


def look(settings: Config) -> doctor.Finding:
    (check,) = (check for check in doctor.CHECKS if check.name == "health")
    (finding,) = doctor.examine(settings, (check,))
    return finding


def test_status_notes_a_lost_gpu_and_fails_for_nothing_else(settings: Config) -> None:
    write(settings, XID, HOT)
    found = status.of_node(settings)
    assert f"GPU {UUID}: Xid 79: it fell off the bus" in found.problems
    assert not [problem for problem in found.problems if "hot" in problem]


@pytest.mark.parametrize(
    ("conditions", "shown"), [(None, ""), ((), "ok"), ((XID, HOT), "xid-79, thermal")]
)
def test_a_cards_health_in_a_word(conditions: Conditions | None, shown: str) -> None:
    assert status._shown(conditions) == shown


def test_what_was_before_a_boot_is_not_shown(settings: Config) -> None:
    write(settings, XID, boot="another")
    assert not [problem for problem in status.of_node(settings).problems if "Xid" in problem]
    assert look(settings).text == "nothing is known yet since the boot"


def test_a_damaged_file_is_a_failure_of_both(settings: Config) -> None:
    (settings.plugin_dir / record.FILE).write_bytes(b"{")
    found = status.of_node(settings)
    assert not found.complete
    assert [problem for problem in found.problems if "damaged health record" in problem]
    assert look(settings).state == "bad"


def test_doctor_finds_what_is_bad(settings: Config) -> None:
    write(settings, XID, HOT)
    assert look(settings) == doctor.Finding("health", "bad", f"{UUID}: {XID.text}")


def test_doctor_mentions_what_is_worth_knowing(settings: Config) -> None:
    assert look(settings).state == "good"
    write(settings)
    assert look(settings).text == "all are well"
    write(settings, HOT)
    assert look(settings) == doctor.Finding("health", "good", f"{UUID}: the GPU is hot")


def test_in_the_cluster_taints_tell() -> None:
    policy = slices.Policy(driver=samples.DRIVER, node=samples.NODE)
    offered = slices.devices(Inventory((samples.gpu(0), samples.gpu(1))), policy)
    taints = {
        UUID: (
            Taint("apportion.gpu/xid", "79", "NoSchedule", "2026-01-31T12:00:00Z"),
            Taint("apportion.gpu/lost", "", "NoSchedule", "2026-01-31T12:00:00Z"),
        )
    }
    bodies = slices.slices(offered, policy, generation=1, taints=taints)
    found = clusterview.of_cluster(samples.DRIVER, bodies, [])
    assert [card.health for card in found.cards] == ["xid-79, lost", "ok"]
