from __future__ import annotations

from apportion.backoff import Backoff, Bucket


def test_backoff_doubles_to_a_bound_and_starts_again() -> None:
    backoff = Backoff(1, 8, chance=lambda: 0.0)
    assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    backoff.reset()
    assert backoff.next() == 1


def test_backoff_takes_off_up_to_half_at_random() -> None:
    assert Backoff(1, 8, chance=lambda: 1.0).next() == 0.5


def test_a_bucket_gives_some_at_once_and_then_one_in_a_while() -> None:
    now = [10_000.0]
    bucket = Bucket(3, 0.2, lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [0.0] * 3
    for _ in range(50):
        wait = bucket.take()
        assert 0 < wait < 0.21
        now[0] += wait
        assert bucket.take() == 0.0
    now[0] += 100
    assert [bucket.take() for _ in range(3)] == [0.0] * 3
    assert bucket.take() > 0
