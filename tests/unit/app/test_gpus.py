from __future__ import annotations

import pytest
from apportion import slices
from apportion.app.gpus import Care, Gpus
from apportion.errors import (
    ApportionError,
    EnforcementError,
    NvmlUnavailableError,
    StoppingError,
    StorageError,
)
from apportion.model import Excluded, GpuUuid, Inventory, Taint

from tests.fakes import samples

_AWAY = NvmlUnavailableError("no library below /", 12)
_TWO = Inventory((samples.gpu(0), samples.gpu(1)))


class Node:
    def __init__(self) -> None:
        self.inventory = _TWO
        self.error: ApportionError | None = None
        self.unproven: ApportionError | None = None
        self.proven: list[GpuUuid] = []
        self.changes = 0
        self.told: list[tuple[str, str]] = []
        self.others = False
        self.taints: dict[GpuUuid, tuple[Taint, ...]] = {}
        self.kept: Inventory | None = None
        self.held: dict[GpuUuid, int] = {}
        policy = slices.Policy(driver=samples.DRIVER, node=samples.NODE)
        self.gpus = Gpus(
            read=self._read,
            prove=self._prove,
            policy=policy,
            others=lambda: self.others,
            held=lambda uuid: self.held.get(uuid, 0),
            on_change=self._changed,
            health=Care(
                settle=lambda found: self.kept or found,
                is_bad=lambda uuid: uuid in self.taints,
                taints=lambda: self.taints,
            ),
            on_trouble=lambda reason, text: self.told.append((reason, text)),
        )

    def _read(self) -> Inventory:
        if self.error:
            raise self.error
        return self.inventory

    def _prove(self, uuid: GpuUuid) -> None:
        if self.unproven:
            raise self.unproven
        self.proven.append(uuid)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def node() -> Node:
    return Node()


def test_shares_are_proven_where_there_is_most_room(node: Node) -> None:
    node.held = {samples.gpu(0).uuid: 1 << 50, samples.gpu(1).uuid: 1 << 30}
    assert node.gpus.scan()
    assert node.proven == [samples.gpu(1).uuid]


def test_before_the_first_scan_nothing_is_known(node: Node) -> None:
    assert node.gpus.bodies(1) is None
    assert node.gpus.devices() == {}
    assert not node.gpus.usable


def test_a_good_scan_offers_the_gpus(node: Node) -> None:
    assert node.gpus.scan()
    assert node.gpus.devices() == samples.devices(2)
    (body,) = node.gpus.bodies(3) or [{}]
    assert body["spec"]["pool"]["generation"] == 3
    assert node.proven == [samples.gpu(0).uuid]
    assert (node.changes, node.gpus.usable) == (1, True)


def test_a_scan_without_news_wakes_nobody(node: Node) -> None:
    node.gpus.scan()
    node.gpus.scan()
    assert node.changes == 1


def test_a_gpu_that_goes_is_withdrawn_at_once(node: Node) -> None:
    node.gpus.scan()
    node.inventory = Inventory((samples.gpu(1),), (Excluded("GPU-0", "the GPU is lost"),))
    node.gpus.scan()
    assert list(node.gpus.devices()) == [samples.device(1).name]
    assert node.changes == 2


def test_a_gpu_that_does_not_answer_once_stays_and_wakes_nobody(node: Node) -> None:
    node.gpus.scan()
    missed = Excluded("GPU 0", "no answer in time", samples.gpu(0).uuid)
    node.inventory = Inventory((samples.gpu(1),), (missed,))
    node.gpus.scan()
    assert node.gpus.devices() == samples.devices(2)
    # Shares are proven on a GPU that answers.
    assert node.proven[-1] == samples.gpu(1).uuid
    assert node.changes == 1
    for _ in range(2):
        node.gpus.scan()
    assert list(node.gpus.devices()) == [samples.device(1).name]


def test_why_a_gpu_is_not_offered_is_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.inventory = Inventory((samples.gpu(0),), (Excluded("GPU-9", "MIG is on"),))
    node.gpus.scan()
    node.inventory = Inventory((samples.gpu(1),), (Excluded("GPU-9", "MIG is on"),))
    node.gpus.scan()
    (record,) = (r for r in caplog.records if r.getMessage() == "a GPU is not offered")
    assert vars(record)["reason"] == "MIG is on"


def test_no_gpu_is_said_and_publishes_nothing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.inventory = Inventory(())
    assert node.gpus.scan()
    assert node.gpus.bodies(1) == []
    assert node.gpus.usable
    assert "no GPU to offer on this node" in caplog.text
    assert node.proven == []


@pytest.mark.parametrize(
    "error", [_AWAY, StorageError("disk full"), EnforcementError("self-test failed")]
)
def test_what_is_offered_stays_for_two_bad_scans_and_goes_with_the_third(
    node: Node, error: ApportionError, caplog: pytest.LogCaptureFixture
) -> None:
    node.gpus.scan()
    node.error = error
    for _ in range(2):
        assert not node.gpus.scan()
    assert node.gpus.devices() == samples.devices(2)
    assert node.gpus.usable
    node.gpus.scan()
    assert node.gpus.bodies(1) == []
    assert not node.gpus.usable
    said = f"no GPU of this node is offered until this is mended: {error}; running shares stay"
    assert [r.getMessage() for r in caplog.records if "offered until" in r.getMessage()] == [said]
    node.error = None
    assert node.gpus.scan()
    assert node.gpus.devices() == samples.devices(2)
    assert node.gpus.usable


def test_failures_withdraw_nothing_while_another_plugin_serves(node: Node) -> None:
    node.others = True
    node.error = _AWAY
    for _ in range(6):
        assert not node.gpus.scan()
    assert node.gpus.bodies(1) is None
    assert (node.changes, node.gpus.usable) == (0, False)
    # From when it is alone, the others' GPUs stay for as long as ever.
    node.others = False
    for _ in range(2):
        node.gpus.scan()
    assert node.gpus.bodies(1) is None
    node.gpus.scan()
    assert node.gpus.bodies(1) == []


def test_what_another_plugin_publishes_is_not_withdrawn_by_one_in_trouble(node: Node) -> None:
    node.error = _AWAY
    for _ in range(3):
        node.gpus.scan()
    assert node.gpus.bodies(1) == []
    node.others = True
    assert node.gpus.bodies(1) is None


def test_without_enforcement_nothing_is_offered(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.unproven = EnforcementError("the front library is missing")
    assert not node.gpus.scan()
    assert node.gpus.bodies(1) is None
    assert node.gpus.devices() == {}
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert errors == ["GPUs cannot be shared: the front library is missing"]


def test_a_lasting_trouble_is_said_once_and_so_is_its_end(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.error = _AWAY
    for _ in range(6):
        node.gpus.scan()
    node.error = None
    node.gpus.scan()
    said = [r.getMessage() for r in caplog.records]
    assert said.count("GPUs cannot be shared: no library below /") == 1
    assert said.count("GPUs cannot be shared: all is well again") == 1
    assert len([text for text in said if "no GPU of this node is offered" in text]) == 1


def test_a_scan_that_the_stop_breaks_off_withdraws_nothing() -> None:
    node = Node()
    assert node.gpus.scan()
    node.unproven = StoppingError("the plugin ends")
    for _ in range(9):
        assert not node.gpus.scan()
    assert len(node.gpus.devices()) == 2


def test_each_scan_that_finds_nothing_to_share_is_told(node: Node) -> None:
    node.gpus.scan()
    assert node.told == []
    node.unproven = EnforcementError("an allocation over the limit was granted")
    node.gpus.scan()
    node.gpus.scan()
    node.unproven = None
    node.inventory = Inventory((), (Excluded("GPU-1", "MIG is on"),))
    node.gpus.scan()
    assert node.told == [
        ("GpusCannotBeShared", "GPUs cannot be shared: an allocation over the limit was granted"),
        ("GpusCannotBeShared", "GPUs cannot be shared: an allocation over the limit was granted"),
        ("NoGpuToShare", "no GPU to offer on this node; GPU-1 is not shared: MIG is on"),
    ]


def test_a_bad_gpu_is_tainted_and_proves_nothing_of_the_others(node: Node) -> None:
    node.taints = {samples.gpu(0).uuid: (Taint("apportion.gpu/xid", "79", "NoSchedule", "now"),)}
    node.gpus.scan()
    assert node.proven == [samples.gpu(1).uuid]
    (body,) = node.gpus.bodies(1) or [{}]
    bad, good = body["spec"]["devices"]
    assert ("taints" in bad, "taints" in good) == (True, False)


def test_a_gpu_that_is_bad_is_better_than_none_to_prove_it_on(node: Node) -> None:
    node.taints = {samples.gpu(n).uuid: () for n in range(2)}
    node.gpus.scan()
    assert node.proven == [samples.gpu(0).uuid]


def test_a_lost_gpu_stays_offered(node: Node) -> None:
    node.gpus.scan()
    node.kept = _TWO
    node.inventory = Inventory((samples.gpu(1),))
    node.gpus.scan()
    assert node.gpus.devices() == samples.devices(2)
    assert node.changes == 1
