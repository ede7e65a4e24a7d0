"""How long to wait before something is tried again, or done at all."""

from __future__ import annotations

import random
from collections.abc import Callable

_EPSILON = 1e-6


class Backoff:
    """Seconds to wait before the next try: doubling, bounded, less up to half at random."""

    def __init__(
        self,
        first_s: float = 0.5,
        most_s: float = 30.0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._first, self._most, self._chance = first_s, most_s, chance
        self._next = first_s

    def next(self) -> float:
        """Return how long to wait now."""
        wait = self._next * (1 - self._chance() / 2)
        self._next = min(self._next * 2, self._most)
        return wait

    def reset(self) -> None:
        """Start small again, after a success."""
        self._next = self._first


class Bucket:
    """A bound on a rate: `burst` at once, and one more each `refill_s` seconds."""

    def __init__(self, burst: int, refill_s: float, clock: Callable[[], float]) -> None:
        self._burst, self._refill, self._clock = burst, refill_s, clock
        self._tokens, self._at = float(burst), clock()

    def take(self) -> float:
        """Take a token; return the seconds until there is one, 0 if there was."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) / self._refill)
        self._at = now
        # Not quite: a wait that rounding makes too short to pass would never end.
        if self._tokens < 1 - _EPSILON:
            return (1 - self._tokens) * self._refill
        self._tokens -= 1
        return 0.0
