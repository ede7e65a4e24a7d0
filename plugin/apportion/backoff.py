"""How long to wait before something is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable


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
