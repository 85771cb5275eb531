"""Percentiles of a sample, by nearest rank. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Smallest value that ``percent`` of the sample does not exceed; 0.0 of an empty sample."""
    if not values:
        return 0.0
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]
