"""Commands that come at a pace: what is late is sent all the same, and its lateness is told."""

import time
from typing import cast

import pytest

from pdd.replication.bench import Answer, PacedRow, paced_load, paced_row
from pdd.replication.client import Session


class Answering:
    """A session that answers at once."""

    def __init__(self) -> None:
        self.count = 0

    async def execute(self, data: bytes, *, timeout_s: float) -> bytes:
        self.count += 1
        return b""


async def test_all_that_were_due_are_sent_and_told_though_the_time_is_over() -> None:
    session, answers = Answering(), list[Answer]()
    until_s = time.monotonic() - 1.0
    await paced_load(cast(Session, session), 0, until_s - 2.0, 0.5, until_s, answers)
    assert session.count == len(answers) == 4
    assert [round(until_s - answer.due_s, 6) for answer in answers] == [2.0, 1.5, 1.0, 0.5]
    assert all(answer.ended_s > until_s + 1.0 for answer in answers)


def row(*answers: tuple[float, float]) -> PacedRow:
    """Of two seconds before second 10."""
    told = [Answer(due_s=due_s, ended_s=ended_s) for due_s, ended_s in answers]
    return paced_row(told, window=64, seconds=2.0, until_s=10.0)


def test_what_was_answered_too_late_is_not_in_the_throughput_but_in_the_percentiles() -> None:
    told = row((7.9, 8.5), (8.0, 8.001), (9.0, 9.003), (9.5, 12.5), (9.9, 13.9))
    assert told.entries_per_s == 1.0, "two of the four that count"
    assert told.p99_ms == pytest.approx(4000.0)
    assert told.p50_ms > 3.0


def test_a_group_that_stood_still_for_all_of_it_has_no_entries_and_a_long_wait() -> None:
    told = row(*[(8.0 + index / 10, 11.0) for index in range(20)])
    assert told.entries_per_s == 0.0
    assert told.p50_ms > 1500.0
