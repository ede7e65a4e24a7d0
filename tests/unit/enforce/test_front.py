from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from apportion.enforce import layout, registry
from apportion.enforce.front import FrontEnforcer
from apportion.enforce.library import FILES
from apportion.enforce.proof import Trial, Verdict
from apportion.errors import EnforcementError
from apportion.model import Capacity, DriverFiles, Mount, Share, ShareKey

from tests.node.prepare.world import DEVICES, LIBDIR, UUIDS, VERSION, World

SHARE = Share(
    ShareKey("uid-a-0"),
    "gpu",
    "node",
    DEVICES[0],
    None,
    UUIDS[0],
    Capacity(cores=30, memory=4 << 30),
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def driver(world: World) -> DriverFiles:
    host = f"/run/nvidia/driver/{LIBDIR}"
    assert world.config.driver_root == Path("/run/nvidia/driver")
    return DriverFiles(
        libdir=f"/{LIBDIR}",
        cuda=f"{host}/libcuda.so.{VERSION}",
        nvml=f"{host}/libnvidia-ml.so.{VERSION}",
        mounts=(
            Mount(f"{host}/libnvidia-nvvm.so.{VERSION}", f"/{LIBDIR}/libnvidia-nvvm.so.4"),
            Mount("/run/nvidia/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        ),
    )


def test_the_front_is_in_the_registry_and_makes_no_side_effect(world: World) -> None:
    assert sorted(registry.ENFORCERS) == ["front"]
    assert isinstance(registry.make(world.config), FrontEnforcer)
    assert not world.config.plugins_dir.exists()


def test_every_name_of_the_driver_leads_to_the_front_and_the_real_ones_are_aside(
    world: World,
) -> None:
    found = driver(world)
    folder = world.config.plugin_dir / "lib" / world.enforcer.build
    edits = world.enforcer.driver_edits(found)
    places = {mount.container_path: mount.host_path for mount in edits.mounts}
    for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"):
        assert places.pop(f"/{LIBDIR}/{name}") == f"{folder}/libcuda.so.1"
    for name in ("libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}"):
        assert places.pop(f"/{LIBDIR}/{name}") == f"{folder}/libnvidia-ml.so.1"
    assert places == {
        "/run/apportion/driver/libcuda.so.1": found.cuda,
        "/run/apportion/driver/libnvidia-ml.so.1": found.nvml,
    }
    assert not [mount for mount in edits.mounts if mount.writable]
    (hook,) = edits.hooks
    assert hook.path == f"{folder}/apportion-ldcache"
    assert hook.args == ("--ldconfig", f"{folder}/ldconfig", "--folder", f"/{LIBDIR}")


def test_a_share_is_mounted_by_its_key(world: World) -> None:
    host = world.config.driver_shares_dir / SHARE.key
    inside = f"/run/apportion/shares/{SHARE.key}"
    assert world.enforcer.share_edits(SHARE).mounts == (
        Mount(str(host), inside),
        Mount(f"{host}/ledger", f"{inside}/ledger", writable=True),
    )


def test_check_installs_and_tests_once(world: World) -> None:
    found = driver(world)
    world.enforcer.check(found, UUIDS[0])
    world.enforcer.check(found, UUIDS[1])
    world.enforcer.check(replace(found), UUIDS[1])
    (trial,) = world.trials
    libdir = world.config.driver_root_mount / LIBDIR
    assert trial == Trial(
        front=world.config.plugin_dir / "lib" / world.enforcer.build,
        cuda=libdir / f"libcuda.so.{VERSION}",
        nvml=libdir / f"libnvidia-ml.so.{VERSION}",
        others=(("libnvidia-nvvm.so.4", str(libdir / f"libnvidia-nvvm.so.{VERSION}")),),
        uuid=UUIDS[0],
    )
    assert sorted(path.name for path in trial.front.iterdir()) == sorted(FILES)


def test_another_driver_is_tested_again(world: World) -> None:
    found = driver(world)
    world.enforcer.check(found, UUIDS[0])
    cuda = world.config.driver_root_mount / LIBDIR / f"libcuda.so.{VERSION}"
    cuda.write_bytes(b"updated in place")
    world.enforcer.check(replace(found), UUIDS[0])
    assert len(world.trials) == 2


def test_a_failed_test_is_tried_again_and_passes_nothing_on(world: World) -> None:
    answers = [EnforcementError("self-test failed"), None]

    def test(_trial: Trial) -> Verdict:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return Verdict("good")

    enforcer = FrontEnforcer(world.config, test)
    found = driver(world)
    with pytest.raises(EnforcementError, match="self-test failed"):
        enforcer.check(found, UUIDS[0])
    enforcer.check(found, UUIDS[0])
    enforcer.check(found, UUIDS[0])
    assert answers == []


def test_a_ledger_begins_with_what_a_context_took_on_that_gpu(world: World) -> None:
    world.context_mib = 518
    world.enforcer.check(driver(world), UUIDS[0])
    for number, uuid in enumerate(UUIDS[:2]):
        share = replace(SHARE, key=ShareKey(f"uid-{number}-0"), uuid=uuid)
        assert world.enforcer.prepare(share)
        ledger = (world.config.driver_shares_dir / share.key / "ledger").read_bytes()
        assert layout.HEADER.unpack_from(ledger)[-1] == (518 if number == 0 else 0)


def test_the_test_can_be_switched_off_and_the_libraries_are_installed_all_the_same(
    world: World,
) -> None:
    enforcer = FrontEnforcer(replace(world.config, self_test="off"), world.self_test)
    enforcer.check(driver(world), UUIDS[0])
    assert world.trials == []
    assert (world.config.plugin_dir / "lib" / enforcer.build / "libcuda.so.1").exists()


def test_a_driver_that_vanishes_meanwhile_is_an_error(world: World) -> None:
    found = driver(world)
    (world.config.driver_root_mount / LIBDIR / f"libcuda.so.{VERSION}").unlink()
    with pytest.raises(EnforcementError, match="vanished"):
        world.enforcer.check(found, UUIDS[0])


def test_shares_are_made_kept_and_removed(world: World) -> None:
    enforcer = world.enforcer
    assert enforcer.prepare(SHARE)
    assert not enforcer.prepare(SHARE)
    assert enforcer.share_keys() == (SHARE.key,)
    assert [item.key for item in enforcer.allowances()] == [SHARE.key]
    assert enforcer.usage(SHARE.key).total == 0
    assert not enforcer.in_use(SHARE.key)
    enforcer.remove(SHARE.key)
    assert enforcer.share_keys() == ()


def test_sweep_says_what_it_removed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (world.config.plugin_dir / "lib/old").mkdir(parents=True)
    world.enforcer.sweep(frozenset())
    assert not (world.config.plugin_dir / "lib/old").exists()
    assert [record.message for record in caplog.records] == [
        "removed front libraries that no share uses"
    ]
