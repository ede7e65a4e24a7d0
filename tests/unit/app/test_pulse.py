from __future__ import annotations

import pytest
from apportion.app.pulse import Pulse


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_good_scan_stays_fresh_for_three_intervals_and_a_minute() -> None:
    clock = Clock()
    pulse = Pulse(10, clock)
    assert (pulse.fresh, pulse.good, pulse.begun) == (True, False, False)
    clock.now += 90
    assert pulse.fresh
    clock.now += 1
    assert not pulse.fresh
    pulse.beat(lambda: False)
    assert (pulse.fresh, pulse.good, pulse.begun) == (False, False, True)
    pulse.beat(lambda: True)
    assert (pulse.fresh, pulse.good) == (True, True)
    assert pulse.looked.is_set()


def test_a_scan_that_hangs_is_one_warning_and_its_end_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    pulse = Pulse(1, clock)

    def scan() -> bool:
        for later in (60, 16, 100):
            clock.now += later
            pulse.check()
        assert pulse.hangs
        return True

    pulse.check()
    pulse.beat(scan)
    assert not pulse.hangs
    pulse.check()
    pulse.check()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "NVML does not answer for more than 75 s" in caplog.text


def test_a_scan_that_breaks_hangs_no_more() -> None:
    clock = Clock()
    pulse = Pulse(1, clock)

    def scan() -> bool:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        pulse.beat(scan)
    clock.now += 1000
    assert not pulse.hangs
    assert not pulse.good
