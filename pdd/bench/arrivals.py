"""When requests arrive. Pure: a generator of random numbers comes in, seconds come out.

All times are offsets from the start of the load, ascending, fixed before anything is sent: a slow
server cannot make the load lighter (open loop).
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from pdd.core.errors import ConfigError

REQUEST_COUNT_MAX = 5_000_000
"""Requests of one run. More would need gigabytes for their samples: refused, not cut."""


class ArrivalKind(StrEnum):
    """How arrivals follow one another."""

    POISSON = "poisson"
    BURSTS = "bursts"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An open loop's rhythm.

    ``rate_per_s``: requests per second on average. ``burst_size``: requests that arrive at the same
    moment, with ``BURSTS``; the moments are a Poisson process.
    """

    kind: ArrivalKind
    rate_per_s: float
    burst_size: int = 1


def arrival_times_s(
    arrivals: Arrivals, *, duration_s: float, request_count: int | None, rng: random.Random
) -> list[float]:
    """Offsets in [0, ``duration_s``), at most ``request_count`` of them.

    Raises:
        ConfigError: there would be more than ``REQUEST_COUNT_MAX``.
    """
    expected = arrivals.rate_per_s * duration_s
    if request_count is not None:
        expected = min(expected, request_count)
    if expected > REQUEST_COUNT_MAX:
        raise ConfigError(
            f"{arrivals.rate_per_s:g} requests/s for {duration_s:g} s are {expected:,.0f} "
            f"requests; a run holds at most {REQUEST_COUNT_MAX:,}: shorten it"
        )
    limit = REQUEST_COUNT_MAX if request_count is None else request_count
    burst = arrivals.burst_size if arrivals.kind is ArrivalKind.BURSTS else 1
    moment_rate = arrivals.rate_per_s / burst
    times: list[float] = []
    moment_s, index = 0.0, 0
    while len(times) < limit:
        if arrivals.kind is ArrivalKind.CONSTANT:
            moment_s = index / moment_rate
            index += 1
        else:
            moment_s += rng.expovariate(moment_rate)
        if moment_s >= duration_s:
            break
        times.extend([moment_s] * min(burst, limit - len(times)))
    return times
