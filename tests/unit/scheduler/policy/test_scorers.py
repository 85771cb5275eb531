"""One table per scorer; the arithmetic stands beside each row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.scheduler.policy import parts
from pdd.scheduler.policy.profile import limits_of
from pdd.scheduler.policy.scorers import SCORERS
from pdd.scheduler.settings import PolicySettings
from tests.unit.scheduler.policy.parts import make_candidates, make_node

SETTINGS = PolicySettings()
NODE = make_node()


def score(name: str, *fields: dict[str, Any]) -> list[float]:
    candidates = make_candidates(*({"node": NODE, **one} for one in fields))
    table, asked = candidates.table, candidates.asked
    parts.survey(table, 0, np.full(len(fields), -1.0), asked)
    limits = limits_of(SETTINGS)
    return [parts.score(SCORERS[name], table, at, asked, limits) for at in range(len(fields))]


@pytest.mark.parametrize(
    ("times", "scores"),
    [
        ([1.0, 2.0, 4.0], [1.0, 0.5, 0.25]),
        ([3.0], [1.0]),
        ([0.0, 0.0005, 0.002], [1.0, 1.0, 0.5]),  # below a millisecond all is equal
    ],
)
def test_completion_is_the_quickest_time_over_its_own(
    times: list[float], scores: list[float]
) -> None:
    assert score("completion", *({"COMPLETION_S": time} for time in times)) == scores


@pytest.mark.parametrize(
    ("preferred_at", "load", "expected"),
    [
        (None, 0.0, [0.0, 0.0]),
        (0, 0.85, [1.0, 0.0]),
        (0, 0.86, [0.0, 0.0]),
        (1, 0.86, [0.0, 1.0]),
    ],
)
def test_affinity_is_for_the_preferred_node_while_it_has_room(
    preferred_at: int | None, load: float, expected: list[float]
) -> None:
    fields = [{"LOAD": load, "PREFERRED": preferred_at == 0}, {"PREFERRED": preferred_at == 1}]
    assert score("affinity", *fields) == expected


@pytest.mark.parametrize(("cached", "expected"), [(0, 0.0), (16, 0.5), (31, 31 / 32)])
def test_prefix_is_the_part_of_the_prompt_that_is_there(cached: int, expected: float) -> None:
    assert score("prefix", {"CACHED": cached}) == [expected]


@pytest.mark.parametrize(
    ("unpromised", "blocks", "expected"), [(100, 3, 0.97), (50, 10, 0.4), (5, 10, 0.0)]
)
def test_free_kv_is_what_is_left_after_expected_growth(
    unpromised: int, blocks: int, expected: float
) -> None:
    fields = {"UNPROMISED": unpromised, "BLOCKS": blocks}
    assert score("free_kv", fields) == [pytest.approx(expected)]


@pytest.mark.parametrize(("count", "expected"), [(0, 1.0), (4, 0.75), (16, 0.0), (20, 0.0)])
def test_running_is_the_part_of_its_sequences_that_are_free(count: int, expected: float) -> None:
    assert score("running", {"SEQUENCES": count}) == [expected]


def test_link_counts_what_is_on_its_way_already() -> None:
    own, behind = {"TRANSFER_S": 0.1}, {"TRANSFER_S": 0.1, "INBOUND_S": 0.3}
    assert score("link", own, behind) == [1.0, 0.25]


@given(
    name=st.sampled_from(sorted(SCORERS)),
    fields=st.lists(
        st.fixed_dictionaries(
            {
                "COMPLETION_S": st.floats(0, 1e6),
                "TRANSFER_S": st.floats(0, 1e6),
                "INBOUND_S": st.floats(0, 1e6),
                "LOAD": st.floats(0, 10),
                "CACHED": st.integers(0, 31),
                "UNPROMISED": st.integers(0, 100),
                "BLOCKS": st.integers(1, 200),
                "SEQUENCES": st.integers(0, 40),
                "PREFERRED": st.integers(0, 1),
            }
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_every_score_is_between_0_and_1(name: str, fields: list[dict[str, Any]]) -> None:
    assert all(0.0 <= value <= 1.0 for value in score(name, *fields))
