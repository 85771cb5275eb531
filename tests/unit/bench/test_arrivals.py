"""When requests arrive."""

import itertools
import random
import statistics

import pytest

from pdd.bench.arrivals import ArrivalKind, Arrivals, arrival_times_s
from pdd.core.errors import ConfigError


def times(kind, rate, *, duration_s=100.0, seed=1, count=None, burst=1):
    return arrival_times_s(
        Arrivals(kind=kind, rate_per_s=rate, burst_size=burst),
        duration_s=duration_s,
        request_count=count,
        rng=random.Random(seed),
    )


@pytest.mark.parametrize("kind", list(ArrivalKind))
def test_the_same_seed_gives_the_same_times_in_order_within_the_duration(kind):
    one = times(kind, 20, burst=4)
    assert one == times(kind, 20, burst=4)
    assert one == sorted(one)
    assert one[0] >= 0
    assert one[-1] < 100


def test_poisson_has_the_rate_and_the_spread_of_its_name():
    found = times(ArrivalKind.POISSON, 50, duration_s=200)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.05)  # as large as its mean
    assert found != times(ArrivalKind.POISSON, 50, duration_s=200, seed=2)


def test_bursts_come_together_at_the_same_mean_rate():
    found = times(ArrivalKind.BURSTS, 50, duration_s=400, burst=10)
    assert len(found) % 10 == 0
    assert all(len(set(found[at : at + 10])) == 1 for at in range(0, len(found), 10))
    assert len(found) / 400 == pytest.approx(50, rel=0.1)


def test_constant_arrivals_are_evenly_spaced():
    assert times(ArrivalKind.CONSTANT, 4, duration_s=1) == [0, 0.25, 0.5, 0.75]


def test_a_number_of_requests_cuts_a_burst():
    assert len(times(ArrivalKind.BURSTS, 50, burst=16, count=20)) == 20


def test_more_requests_than_fit_are_refused_before_any_is_made():
    with pytest.raises(ConfigError, match=r"100,000,000 requests; a run holds at most 5,000,000"):
        times(ArrivalKind.POISSON, 1e6)
