"""What was found in other DRA drivers' Prepare and must not be here, one test a finding.

The numbers are those of the list that the project keeps of other drivers: D for defects found by
reading them, I for public reports.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from apportion.config import Config
from apportion.model import ClaimOutcome, ClaimRef, ClaimUid

from tests.node.prepare.world import DEVICES, UUIDS, Faulty, World, claim, ref, result

GIB = 1 << 30


def _limits(world: World, name: str, index: int = 0) -> dict[str, str]:
    lines = (world.share(name, index) / "limits").read_text().splitlines()
    found: dict[str, str] = dict(line.split(" ", 1) for line in lines[1:])
    return found


def _left(world: World, name: str = "c") -> list[str]:
    """Return all that there is of a claim."""
    return [path for path in world.state() if ref(name).uid in path]


def test_d1_a_repeated_prepare_after_a_restart_gives_the_same_answer(world: World) -> None:
    wanted = world.add("c", result(0), result(1))
    first = world.preparer().prepare(wanted)
    assert first.devices
    assert world.restarted().preparer().prepare(wanted) == first


def test_d2_unprepare_removes_all_that_a_failed_prepare_made(world: World) -> None:
    wanted = world.add("c", result(0), result(1))
    cdi = Faulty(world.cdi, "write_claim")
    # The undo fails as well, as on a disk that fails.
    enforcer = Faulty(world.enforcer, "remove", nth=1)
    assert world.preparer(cdi=cdi, enforcer=enforcer).prepare(wanted).error
    assert _left(world)
    assert world.preparer().unprepare(wanted) == ClaimOutcome()
    assert _left(world) == []


def test_d3_two_requests_on_one_gpu_are_two_shares_with_limits_of_their_own(world: World) -> None:
    outcome = world.prepared(
        "c",
        result(0, request="small", memory="4Gi", cores="20"),
        result(0, request="large", memory="8Gi", cores="40"),
    )
    own = [device.cdi_ids[0] for device in outcome.devices]
    assert len(set(own)) == 2
    names = [device["name"] for device in world.spec("c")["devices"]]
    assert len(set(names)) == len(names), "a repeated name makes a CDI spec invalid"
    assert [_limits(world, "c", n)["memory"] for n in (0, 1)] == [str(4 * GIB), str(8 * GIB)]


def test_d4_two_claims_in_one_container_have_nothing_that_the_other_overwrites(
    world: World,
) -> None:
    world.prepared("a", result(0, memory="2Gi"))
    world.prepared("b", result(0, memory="3Gi"))
    places: list[str] = []
    for name in ("a", "b"):
        (device,) = world.spec(name)["devices"]
        edits = device["containerEdits"]
        assert not edits.get("env"), "the last one of a name would win"
        places += [mount["containerPath"] for mount in edits["mounts"]]
    assert len(set(places)) == len(places)
    assert [_limits(world, name)["memory"] for name in ("a", "b")] == [str(2 * GIB), str(3 * GIB)]


def test_d5_the_order_of_results_never_moves_a_limit_to_another_gpu(world: World) -> None:
    parts = [
        result(0, request="one", memory="1Gi", cores="10"),
        result(1, request="two", memory="2Gi", cores="20"),
        result(0, request="three", memory="3Gi", cores="30"),
    ]
    truth = {"1Gi": UUIDS[0], "2Gi": UUIDS[1], "3Gi": UUIDS[0]}
    for number, order in enumerate(itertools.permutations(parts)):
        name = f"c{number}"
        world.prepared(name, *order)
        for index, part in enumerate(order):
            memory = part["consumedCapacity"]["memory"]
            found = _limits(world, name, index)
            assert found["uuid"] == truth[memory]
            assert found["memory"] == str(int(memory.removesuffix("Gi")) * GIB)
        world.preparer().unprepare(ref(name))


@pytest.mark.parametrize("missing", ["all", "memory", "cores"])
def test_d8_a_share_without_its_capacity_is_refused_never_guessed(
    world: World, missing: str
) -> None:
    before = world.state()
    part = result(0)
    if missing == "all":
        del part["consumedCapacity"]
    else:
        del part["consumedCapacity"][missing]
    outcome = world.preparer().prepare(world.add("c", part))
    assert "consumedCapacity" in outcome.error
    assert world.state() == before


def test_d9_no_cores_at_all_are_refused_since_none_must_never_mean_unlimited(world: World) -> None:
    outcome = world.preparer().prepare(world.add("c", result(0, cores="0")))
    assert "cores" in outcome.error
    assert not outcome.devices


def test_d12_a_result_of_another_driver_with_our_devices_name_is_not_ours(world: World) -> None:
    foreign = result(0, memory="1Gi", share_id="foreign") | {"driver": "gpu.example.com"}
    wanted = world.add("c", foreign, result(0, memory="4Gi"))
    outcome = world.preparer().prepare(wanted)
    assert [device.device for device in outcome.devices] == [DEVICES[0]]
    assert world.store.held(UUIDS[0]).memory == 4 * GIB


def test_d12_a_result_of_another_pool_is_refused(world: World) -> None:
    outcome = world.preparer().prepare(world.add("c", result(0) | {"pool": "another-node"}))
    assert "another-node" in outcome.error


def test_d15_a_second_pod_after_a_restart_finds_the_first_ones_ledger(world: World) -> None:
    wanted = world.add("c")
    world.preparer().prepare(wanted)
    ledger = world.share("c") / "ledger"
    with ledger.open("r+b") as running:
        running.seek(24)
        running.write((3 * GIB).to_bytes(8, "little"))
    inode = ledger.stat().st_ino
    again = world.restarted()
    again.claims["c"]["status"]["reservedFor"].append(
        {"resource": "pods", "name": "second", "uid": "p2"}
    )
    assert again.preparer().prepare(wanted).devices
    assert ledger.stat().st_ino == inode
    assert int.from_bytes(ledger.read_bytes()[24:32], "little") == 3 * GIB


def test_d16_a_tenant_that_locks_its_files_holds_up_nobody(world: World) -> None:
    first = world.add("a")
    world.preparer().prepare(first)
    folder = world.share("a")
    assert (folder / "ledger").stat().st_mode & 0o777 == 0o666, "programs need not be root"
    with (folder / "ledger").open("rb") as ledger, (folder / "limits").open("rb") as limits:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        fcntl.flock(limits, fcntl.LOCK_EX)
        assert world.preparer().prepare(world.add("b", result(1))).devices
        assert world.preparer().prepare(first).devices
        assert world.preparer().unprepare(first) == ClaimOutcome()


def test_d17_an_upgrade_leaves_the_libraries_of_running_containers_alone(world: World) -> None:
    world.prepared("a")
    (old,) = (world.config.plugin_dir / "lib").iterdir()
    with (old / "libcuda.so.1").open("rb") as mapped:
        before = mapped.read()
        (world.config.shim_dir / "libcuda.so.1").write_text("another version")
        world.prepared("b", result(1))
        mapped.seek(0)
        assert mapped.read() == before
    assert (old / "libcuda.so.1").exists()


def test_d18_a_library_that_is_gone_comes_back_or_prepare_says_why(world: World) -> None:
    world.prepared("a")
    (build,) = (world.config.plugin_dir / "lib").iterdir()
    (build / "libcuda.so.1").unlink()
    world.prepared("b", result(1))
    assert (build / "libcuda.so.1").exists()
    (build / "libcuda.so.1").unlink()
    (world.config.shim_dir / "libcuda.so.1").unlink()
    before = world.state()
    outcome = world.preparer().prepare(world.add("c", result(1)))
    assert "libcuda.so.1" in outcome.error
    assert world.state() == before


def test_d19_i4_every_path_follows_its_setting(world: World) -> None:
    world.prepared("c")
    specs = [json.loads(path.read_text()) for path in sorted(world.config.cdi_dir.iterdir())]
    edits = [spec.get("containerEdits", {}) for spec in specs]
    edits += [device["containerEdits"] for spec in specs for device in spec["devices"]]
    mounts = [mount for edit in edits for mount in edit.get("mounts", [])]
    config: Config = world.config
    roots = (config.shares_dir, config.plugins_dir, config.driver_root)
    assert {root for root in roots for m in mounts if Path(m["hostPath"]).is_relative_to(root)} == {
        *roots
    }
    strays = [m for m in mounts if not any(Path(m["hostPath"]).is_relative_to(r) for r in roots)]
    assert strays == []


def test_d20_a_claim_that_went_while_the_plugin_was_down_is_swept(world: World) -> None:
    world.prepared("c")
    assert _left(world)
    world.claims.clear()
    world.restarted().preparer().sweep(ask=True)
    assert _left(world) == []


def test_d22_the_answer_carries_the_share_id_of_each_share(world: World) -> None:
    outcome = world.prepared("c", result(0, share_id="x"), result(0, share_id="x"))
    ids = [device.share_id for device in outcome.devices]
    assert all(ids)
    assert len(set(ids)) == 2


def test_d24_a_claim_that_is_missing_fails_alone(world: World) -> None:
    good, missing = world.add("good"), ref("missing")
    preparer = world.preparer()
    assert preparer.prepare(missing).error
    assert preparer.prepare(good).devices


def test_d26_a_late_unprepare_takes_nothing_from_the_successor_of_the_same_name(
    world: World,
) -> None:
    old = world.add("c")
    world.preparer().prepare(old)
    new = ClaimRef(ClaimUid("uid-of-the-new-one"), old.namespace, old.name)
    world.claims["c"] = claim(new, result(0))
    assert world.preparer().prepare(new).devices
    after_new = {path: text for path, text in world.state().items() if new.uid in path}
    assert world.preparer().unprepare(old) == ClaimOutcome()
    assert {p: t for p, t in world.state().items() if new.uid in p} == after_new


def test_i1_i11_after_a_reboot_nothing_that_was_prepared_is_trusted(world: World) -> None:
    wanted = world.add("c")
    first = world.preparer().prepare(wanted)
    shutil.rmtree(world.config.driver_shares_dir)  # a tmpfs
    after = world.restarted("boot-2")
    assert after.store.held(UUIDS[0]).memory == 0
    assert after.preparer().prepare(wanted) == first
    assert (after.share("c") / "ledger").stat().st_size > 0


def test_i10_damage_unknown_fields_and_truncation_stop_neither_plugin_nor_other_claims(
    world: World,
) -> None:
    wanted = [world.add(name, result(0, memory="1Gi", cores="5")) for name in "abc"]
    for one in wanted:
        world.preparer().prepare(one)
    world.record_path("a").write_bytes(world.record_path("a").read_bytes()[:40])
    world.record_path("b").write_bytes(b"")
    after = world.restarted()
    after.preparer().sweep(ask=True)
    for one in wanted:
        assert after.preparer().prepare(one).devices
        assert after.preparer().unprepare(one) == ClaimOutcome()
    assert world.store.held(UUIDS[0]).memory == 0


def test_i13_a_device_node_that_is_missing_fails_and_is_looked_for_again(world: World) -> None:
    node = world.config.driver_root_mount / "dev/nvidia0"
    node.unlink()
    wanted = world.add("c")
    assert "/dev/nvidia0" in world.preparer().prepare(wanted).error
    node.touch()
    assert world.preparer().prepare(wanted).devices


def test_i20_a_replay_puts_a_lost_cdi_spec_back(world: World) -> None:
    wanted = world.add("c")
    world.preparer().prepare(wanted)
    path = world.cdi.claim_path(wanted.uid)
    content = path.read_bytes()
    path.unlink()
    world.preparer().prepare(wanted)
    assert path.read_bytes() == content


def test_i21_i22_what_the_scheduler_gave_twice_is_refused_with_the_claim_in_the_way(
    world: World,
) -> None:
    world.prepared("first", result(0, memory="10Gi", cores="60"))
    for memory, cores in (("5Gi", "10"), ("1Gi", "50")):
        outcome = world.preparer().prepare(
            world.add("second", result(0, memory=memory, cores=cores))
        )
        assert "default/first" in outcome.error
        assert UUIDS[0] in outcome.error
    assert world.store.held(UUIDS[0]).memory == 10 * GIB


@pytest.mark.parametrize("cores", ["0.5", "30500m", "1e-1"])
def test_i23_a_fraction_of_a_step_is_refused_never_rounded(world: World, cores: str) -> None:
    outcome = world.preparer().prepare(world.add("c", result(0, cores=cores)))
    assert "cores" in outcome.error


def test_two_records_never_share_a_file(world: World) -> None:
    """What makes other drivers slow with many claims is one file of all; here it is one each."""
    for number in range(20):
        world.prepared(f"c{number}", result(number % 2, memory="1Mi", cores="1"))
    names = os.listdir(world.config.plugin_dir / "claims")  # noqa: PTH208
    assert len(names) == 20
