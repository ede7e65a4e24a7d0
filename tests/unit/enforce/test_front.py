from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from apportion.container import DriverFiles, Edits, Mount
from apportion.enforce import layout, registry
from apportion.enforce.front import FrontEnforcer
from apportion.enforce.library import FILES
from apportion.enforce.proof import Trial, Verdict
from apportion.errors import EnforcementError
from apportion.model import Access, Capacity, Share, ShareKey

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
    fronts = {m.container_path: m.host_path for m in world.enforcer.front_edits(found).mounts}
    cuda = [f"/{LIBDIR}/{name}" for name in ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}")]
    nvml = [f"/{LIBDIR}/{name}" for name in ("libnvidia-ml.so.1", f"libnvidia-ml.so.{VERSION}")]
    assert fronts == {
        **dict.fromkeys(cuda, f"{folder}/libcuda.so.1"),
        **dict.fromkeys(nvml, f"{folder}/libnvidia-ml.so.1"),
    }
    assert world.enforcer.front_edits(found) == Edits(
        mounts=world.enforcer.front_edits(found).mounts
    )
    edits = world.enforcer.common_edits(found)
    assert {mount.container_path: mount.host_path for mount in edits.mounts} == {
        "/run/apportion/driver/libcuda.so.1": found.cuda,
        "/run/apportion/driver/libnvidia-ml.so.1": found.nvml,
    }
    assert not [mount for mount in edits.mounts if mount.writable]
    (hook,) = edits.hooks
    assert hook.path == f"{folder}/apportion-ldcache"
    assert hook.args[:4] == ("--ldconfig", f"{folder}/ldconfig", "--folder", f"/{LIBDIR}")
    assert set(hook.args[4::2]) == {"--link"}
    assert list(hook.args[5::2]) == [
        *(f"{name}:/run/apportion/driver/libcuda.so.1" for name in cuda),
        *(f"{name}:/run/apportion/driver/libnvidia-ml.so.1" for name in nvml),
    ]


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


FULL = Verdict("refused by cuMemCreate", 0, "it has no room for a context")
UNTOLD = Verdict("", 0, "cuInit gave CUDA error 2")


@pytest.mark.parametrize("verdict", [FULL, UNTOLD])
def test_on_a_full_gpu_what_runs_goes_on_and_what_is_new_waits(
    world: World, verdict: Verdict, caplog: pytest.LogCaptureFixture
) -> None:
    found, now = driver(world), [0.0]
    whole = replace(SHARE, key=ShareKey("uid-w-0"), access=Access.WHOLE)
    new = replace(SHARE, key=ShareKey("uid-b-0"))
    FrontEnforcer(world.config, world.self_test).prepare(SHARE)
    verdicts, tried = [verdict, Verdict("good", 518)], []

    def test(trial: Trial) -> Verdict:
        tried.append(trial.uuid)
        return verdicts.pop(0)

    enforcer = FrontEnforcer(world.config, test, clock=lambda: now[0])
    for _ in range(2):
        enforcer.check(found, UUIDS[0])
    assert not enforcer.prepare(SHARE)
    assert enforcer.prepare(whole), "it has no front"
    with pytest.raises(EnforcementError, match=rf"{UUIDS[0]} is in use: {verdict.doubt}; .* until"):
        enforcer.prepare(new)
    assert not (world.config.driver_shares_dir / new.key).exists()
    assert caplog.text.count("new shares are refused") == 1
    now[0] += 60
    enforcer.check(found, UUIDS[1])
    assert tried == [UUIDS[0], UUIDS[1]]
    assert enforcer.prepare(new)
    enforcer.check(found, UUIDS[1])


def test_a_doubt_that_ends_badly_is_a_failure_until_it_passes(world: World) -> None:
    found, now = driver(world), [0.0]
    outcomes: list[Verdict | EnforcementError] = [
        FULL, EnforcementError("granted"), EnforcementError("granted"), Verdict("good"),
    ]  # fmt: skip

    def test(_trial: Trial) -> Verdict:
        outcome = outcomes.pop(0)
        if isinstance(outcome, EnforcementError):
            raise outcome
        return outcome

    enforcer = FrontEnforcer(world.config, test, clock=lambda: now[0])
    enforcer.check(found, UUIDS[0])
    now[0] += 60
    for _ in range(2):
        with pytest.raises(EnforcementError, match="granted"):
            enforcer.check(found, UUIDS[0])
    enforcer.check(found, UUIDS[0])
    assert enforcer.prepare(SHARE)


def test_a_gpu_is_taken_to_work_when_something_was_refused_there(world: World) -> None:
    verdicts = [FULL, UNTOLD]
    enforcer = FrontEnforcer(world.config, lambda _trial: verdicts.pop(0))
    enforcer.probe(driver(world), UUIDS[0])
    with pytest.raises(EnforcementError, match="cannot be tried: cuInit gave CUDA error 2"):
        enforcer.probe(driver(world), UUIDS[0])


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
