"""What is said of many measured times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of all are at or below (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def p50_ms(seconds: Sequence[float]) -> float:
    """Return the median of `seconds` in milliseconds."""
    return round(statistics.median(seconds) * 1000, 2)


def p99_ms(seconds: Sequence[float]) -> float:
    """Return the 99th percentile of `seconds` in milliseconds."""
    return round(percentile(seconds, 99) * 1000, 2)
