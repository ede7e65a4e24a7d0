"""Shares whose cores MPS divides: what they get, where they may be, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from apportion.container import Mount
from apportion.enforce import layout
from apportion.enforce.front import FrontEnforcer
from apportion.errors import EnforcementError
from apportion.model import Capacity, CoresMode, GpuUuid, Share, ShareKey

from tests.node.prepare.world import UUIDS, World, result
from tests.unit.enforce.test_front import SHARE, driver


class Daemons:
    """Stands for the supervisor."""

    def __init__(self) -> None:
        self.trouble = ""
        self.serving: set[GpuUuid] = set()

    def require(self, uuid: GpuUuid) -> None:
        if self.trouble:
            raise EnforcementError(f"{uuid}: {self.trouble}")

    def mount(self, uuid: GpuUuid) -> Mount:
        return Mount(f"/host/{uuid}", f"/run/apportion/mps/{uuid}")

    def may_serve(self, uuid: GpuUuid) -> bool:
        return uuid in self.serving


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def daemons() -> Daemons:
    return Daemons()


def enforcer(
    world: World, daemons: Daemons | None, mode: str = "mps", modes: str = ""
) -> FrontEnforcer:
    config = replace(world.config, cores_mode=mode, cores_modes=modes)
    return FrontEnforcer(config, world.self_test, daemons)


def share(n: int, cores: int = 30, gpu: int = 0) -> Share:
    capacity = Capacity(cores=cores, memory=SHARE.capacity.memory)
    return replace(SHARE, key=ShareKey(f"uid-{n}-0"), uuid=UUIDS[gpu], capacity=capacity)


def mounted(front: FrontEnforcer, one: Share) -> bool:
    return any("/mps/" in mount.container_path for mount in front.share_edits(one).mounts)


def limits(world: World, one: Share) -> str:
    return (world.config.driver_shares_dir / one.key / "limits").read_text()


def test_a_part_gets_the_pipes_and_the_word_in_its_limits(world: World, daemons: Daemons) -> None:
    front = enforcer(world, daemons)
    assert mounted(front, share(1))
    assert front.prepare(share(1))
    assert "cores-mode mps\n" in limits(world, share(1))
    assert not (world.config.driver_shares_dir / share(1).key / "schedule").exists()
    assert front.allowances()[0].mode is CoresMode.MPS


def test_a_context_is_expected_to_take_the_shares_part(world: World, daemons: Daemons) -> None:
    world.context_mib = 518
    front = enforcer(world, daemons)
    front.check(driver(world), UUIDS[0])
    assert front.prepare(share(1))
    ledger = (world.config.driver_shares_dir / share(1).key / "ledger").read_bytes()
    assert layout.HEADER.unpack_from(ledger)[-1] == 155


def test_a_share_of_all_cores_needs_no_daemon(world: World, daemons: Daemons) -> None:
    front = enforcer(world, daemons)
    daemons.trouble = "none"
    assert not mounted(front, share(1, cores=100))
    assert front.prepare(share(1, cores=100))


def test_without_a_daemon_that_works_nothing_is_made(world: World, daemons: Daemons) -> None:
    front = enforcer(world, daemons)
    daemons.trouble = "the driver has no nvidia-cuda-mps-control"
    with pytest.raises(EnforcementError, match="has no nvidia-cuda-mps-control"):
        front.prepare(share(1))
    with pytest.raises(EnforcementError, match="nothing keeps an MPS daemon"):
        enforcer(world, None).prepare(share(1))
    assert front.share_keys() == ()


def test_the_mode_is_one_of_a_gpu(world: World, daemons: Daemons) -> None:
    front = enforcer(world, daemons, "timeslice", f"{UUIDS[1]}=mps")
    front.prepare(share(1, gpu=0))
    front.prepare(share(2, gpu=1))
    assert "cores-mode timeslice\n" in limits(world, share(1))
    assert "cores-mode mps\n" in limits(world, share(2))
    assert [mounted(front, share(n, gpu=n - 1)) for n in (1, 2)] == [False, True]


def test_a_share_keeps_its_mode_and_none_of_the_other_comes_beside_it(
    world: World, daemons: Daemons
) -> None:
    enforcer(world, daemons, "timeslice").prepare(share(1))
    front = enforcer(world, daemons)
    assert not front.prepare(share(1))
    assert not mounted(front, share(1))
    with pytest.raises(EnforcementError, match="held by timeslice, and this one's would be by mps"):
        front.prepare(share(2))
    front.prepare(share(3, gpu=1))
    front.remove(share(1).key)
    front.prepare(share(2))
    # And back.
    daemons.serving = {UUIDS[0]}
    with pytest.raises(EnforcementError, match="held by mps, and this one's would be by timeslice"):
        enforcer(world, daemons, "timeslice").prepare(share(4))


def test_a_claim_with_another_gpu_beside_one_of_mps_is_refused(
    world: World, daemons: Daemons
) -> None:
    front = enforcer(world, daemons, "timeslice", f"{UUIDS[1]}=mps")
    front.agree((share(1, gpu=0), share(2, gpu=0)))
    front.agree((share(1, gpu=1), share(2, gpu=1)))
    front.agree((share(1, gpu=0), share(2, cores=100, gpu=1)))
    with pytest.raises(EnforcementError, match="can use no other GPU, but the claim has 2"):
        front.agree((share(1, gpu=0), share(2, gpu=1)))


def test_prepare_asks_for_that(world: World, daemons: Daemons) -> None:
    outcome = world.preparer(enforcer=enforcer(world, daemons)).prepare(
        world.add("c", result(0), result(1))
    )
    assert "can use no other GPU" in outcome.error
    assert world.enforcer.share_keys() == ()


def test_prepare_mounts_the_pipes(world: World, daemons: Daemons) -> None:
    outcome = world.preparer(enforcer=enforcer(world, daemons)).prepare(world.add("c"))
    assert outcome.error == ""
    (device,) = world.spec("c")["devices"]
    paths = {Path(mount["containerPath"]) for mount in device["containerEdits"]["mounts"]}
    assert Path(f"/run/apportion/mps/{UUIDS[0]}") in paths
