"""Rates read at once are those read one by one."""

import random

import pytest

from pdd.scheduler.rates import Rate, Rates

KEYS = tuple(f"node-{index}" for index in range(6))


@pytest.mark.parametrize("seed", range(20))
def test_a_column_is_what_each_key_says_after_any_history(seed: int) -> None:
    rng = random.Random(seed)
    any_rate = Rate(start_per_s=1000.0, half_life_s=15.0)
    rates: Rates[str] = Rates(any_rate)
    now_s = 0.0
    for _ in range(200):
        now_s += rng.choice([0.0, 0.1, 5.0])
        key = rng.choice((*KEYS[: rng.choice([1, 3, 6])], "a stranger"))
        if rng.random() < 0.03:
            rates.forget(key)
            continue
        amount, seconds = rng.choice([0.0, 10.0, 2000.0]), rng.choice([0.0, 1e-9, 0.1, 2.0])
        rates.observe(key, amount, seconds, now_s=now_s)
        any_rate.observe(amount, seconds, now_s=now_s)
        if rng.random() < 0.7:
            told = rates.per_s(KEYS).tolist()
            assert told == pytest.approx([rates.of(one).per_s for one in KEYS], rel=1e-12)
