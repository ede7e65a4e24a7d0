from __future__ import annotations

import dataclasses

import pytest
from apportion.inventory.patience import Patience
from apportion.model import Excluded, GpuUuid, Inventory

from tests.fakes import samples

_FIRST, _SECOND = samples.gpu(0), samples.gpu(1)
_BOTH = Inventory((_FIRST, _SECOND))


def _without_first(passing: GpuUuid | int | None) -> Inventory:
    return Inventory((_SECOND,), (Excluded("GPU 0", "no answer in time", passing),))


@pytest.fixture
def patience() -> Patience:
    found = Patience(3)
    assert found.settle(_BOTH) == _BOTH
    return found


@pytest.mark.parametrize("passing", [_FIRST.uuid, _FIRST.index], ids=["uuid", "index"])
def test_a_gpu_that_does_not_answer_stays_for_two_scans_and_goes_with_the_third(
    patience: Patience, passing: GpuUuid | int
) -> None:
    missed = _without_first(passing)
    assert [patience.settle(missed) for _ in range(4)] == [_BOTH, _BOTH, missed, missed]
    assert patience.settle(_BOTH) == _BOTH


def test_a_good_reading_starts_the_count_anew(patience: Patience) -> None:
    for _ in range(3):
        for _ in range(2):
            assert patience.settle(_without_first(_FIRST.uuid)) == _BOTH
        assert patience.settle(_BOTH) == _BOTH


def test_a_gpu_that_is_lost_goes_at_once_and_is_not_brought_back(patience: Patience) -> None:
    lost = _without_first(None)
    assert patience.settle(lost) == lost
    # After a reset it is not ready for a while: it was withdrawn, and stays so until it is.
    resetting = _without_first(_FIRST.uuid)
    assert patience.settle(resetting) == resetting


def test_a_gpu_that_is_there_no_more_is_forgotten(patience: Patience) -> None:
    without = Inventory((_SECOND,))
    assert patience.settle(without) == without
    assert patience.settle(_without_first(_FIRST.uuid)) == _without_first(_FIRST.uuid)


def test_a_gpu_that_was_never_read_is_not_made_up() -> None:
    missed = _without_first(_FIRST.uuid)
    assert Patience(3).settle(missed) == missed


def test_no_gpu_is_there_twice_when_the_indices_have_changed(patience: Patience) -> None:
    # The second card is the first now, and who the other one is it does not say.
    moved = dataclasses.replace(_SECOND, index=0)
    unknown = Excluded("GPU 1", "no answer in time", 1)
    found = Inventory((moved,), (unknown,))
    assert patience.settle(found) == found


def test_that_a_reading_is_old_is_said_once(
    patience: Patience, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        patience.settle(_without_first(_FIRST.uuid))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["gpu"] == _FIRST.uuid
    assert vars(record)["reason"] == "no answer in time"
