"""Whatever requests do, a tenant never has more tokens than its quota allows for."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pdd.scheduler.quotas import TokenBucket


@dataclass(frozen=True)
class Step:
    after_s: float
    expected: int
    real: int


STEPS = st.lists(
    st.builds(
        Step,
        after_s=st.floats(min_value=0.0, max_value=90.0),
        expected=st.integers(1, 400),
        real=st.integers(0, 900),
    ),
    max_size=60,
)


@given(per_minute=st.integers(1, 500), steps=STEPS, held=st.integers(0, 5))
def test_what_is_let_in_is_bounded_by_the_limit_a_minutes_worth_and_what_was_misjudged(
    per_minute: int, steps: list[Step], held: int
) -> None:
    """``held``: so many run at a time; their real use is known when they end."""
    now_s = 0.0
    bucket = TokenBucket(per_minute, now_s=now_s)
    running: list[Step] = []
    used = 0
    for step in steps:
        now_s += step.after_s
        while len(running) > held:
            ended = running.pop(0)
            bucket.take(ended.real - ended.expected, now_s)
            used += ended.real
        wait_s = bucket.wait_s(step.expected, now_s)
        if wait_s > 0:
            assert bucket.wait_s(step.expected, now_s + wait_s) == 0, "it was told the truth"
            now_s += wait_s
        bucket.take(step.expected, now_s)
        running.append(step)
        assert bucket.left(now_s) <= per_minute
    for ended in running:
        bucket.take(ended.real - ended.expected, now_s)
        used += ended.real
    # Each was let in when what it was expected to need was there, or nothing of a minute was used.
    largest = max((max(step.expected, step.real) for step in steps), default=0)
    allowed = per_minute * (1 + now_s / 60)
    assert used <= allowed + (held + 2) * largest + 1e-3


@given(per_minute=st.integers(1, 500), times=st.lists(st.floats(0, 1000), max_size=30))
def test_looking_changes_nothing(per_minute: int, times: list[float]) -> None:
    looked_at, left_alone = (TokenBucket(per_minute, now_s=0.0) for _ in range(2))
    looked_at.take(per_minute * 5, 0.0)
    left_alone.take(per_minute * 5, 0.0)
    for now_s in sorted(times):
        looked_at.left(now_s)
    end_s = max(times, default=0.0)
    assert abs(looked_at.left(end_s) - left_alone.left(end_s)) < 1e-6 * per_minute
