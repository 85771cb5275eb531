"""Of many candidates, those that a record tells of: against sorting them all."""

from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pdd.scheduler.shown import show

_ROOM = 16


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, None]), min_size=_ROOM + 1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_the_best_are_shown_with_the_chosen_one_and_then_some_that_were_dropped(
    sums: Sequence[float | None], rng: Random
) -> None:
    """None: it was dropped."""
    told = np.zeros((3, len(sums)))
    told[0] = range(len(sums))
    told[1] = [-np.inf if one is None else one for one in sums]
    told[2] = [2.0 if one is None else -1.0 for one in sums]
    left = [at for at, one in enumerate(sums) if one is not None]
    dropped = [at for at, one in enumerate(sums) if one is None]
    chosen_at = rng.choice(left) if left else -1
    expected = sorted(left, key=lambda at: -told[1, at])[:_ROOM]
    if left and chosen_at not in expected:
        expected[-1] = chosen_at

    shown, columns = np.empty(_ROOM, dtype=np.int64), np.empty((3, _ROOM), dtype=np.float32)
    best_count = show(told, chosen_at, shown, columns)

    assert best_count == len(expected)
    assert shown.tolist() == (expected + dropped)[:_ROOM]
    assert columns.tolist() == told[:, shown].tolist()
