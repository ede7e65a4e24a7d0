from __future__ import annotations

from apportion.backoff import Backoff


def test_backoff_doubles_to_a_bound_and_starts_again() -> None:
    backoff = Backoff(1, 8, chance=lambda: 0.0)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    backoff.reset()
    assert backoff.next() == 1


def test_backoff_takes_off_up_to_half_at_random() -> None:
    assert Backoff(1, 8, chance=lambda: 1.0).next() == 0.5
