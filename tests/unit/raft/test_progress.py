"""Progress: how far a follower is, and how much may be under way to it."""

from __future__ import annotations

import pytest

from pdd.raft.config import RaftConfig
from pdd.raft.progress import Progress, ProgressState
from pdd.raft.values import NodeId


def progress(next_index: int = 10, **bounds: int) -> Progress:
    config = RaftConfig(node=NodeId("a"), voters=(NodeId("a"),), cluster_id="c", **bounds)
    return Progress(next_index=next_index, config=config)


ENTRY_BYTES = 100


def sent(one: Progress, first: int, count: int) -> None:
    one.sent(first + count - 1, size_bytes=count * ENTRY_BYTES)


def test_a_probe_sends_one_message_and_waits() -> None:
    one = progress()
    assert not one.is_paused
    sent(one, 10, 3)
    assert one.is_paused
    assert one.next_index == 10, "the position is a guess, so it does not move"


def test_replication_runs_ahead_of_the_acks_up_to_the_message_bound() -> None:
    one = progress(max_inflight_messages=2)
    one.acknowledged(9)
    one.become_replicate()
    sent(one, 10, 3)
    assert (one.next_index, one.is_paused) == (13, False)
    sent(one, 13, 1)
    assert one.is_paused
    one.acknowledged(12)
    assert not one.is_paused
    assert one.inflight_bytes == 100


def test_replication_runs_ahead_of_the_acks_up_to_the_byte_bound() -> None:
    one = progress(max_inflight_bytes=200)
    one.acknowledged(9)
    one.become_replicate()
    sent(one, 10, 1)
    assert not one.is_paused
    sent(one, 11, 1)
    assert one.is_paused


def test_empty_appends_take_no_place_in_the_window() -> None:
    one = progress(max_inflight_messages=1)
    one.become_replicate()
    one.sent(one.next_index - 1, size_bytes=0)
    assert not one.is_paused


def test_acks_never_move_anything_back() -> None:
    one = progress()
    assert one.acknowledged(9)
    one.become_replicate()
    sent(one, 10, 5)
    assert not one.acknowledged(7)
    assert (one.match_index, one.next_index) == (9, 15)


def test_a_rejection_while_replicating_starts_probing_after_the_match() -> None:
    one = progress()
    one.acknowledged(9)
    one.become_replicate()
    sent(one, 10, 5)
    assert not one.rejected(rejected_index=9, possible_index=3), "stale: 9 is acknowledged"
    assert one.rejected(rejected_index=14, possible_index=3)
    assert (one.state, one.next_index) == (ProgressState.PROBE, 10)
    assert not one.inflight


@pytest.mark.parametrize(
    ("rejected_index", "possible_index", "moved", "next_index"),
    [(9, 9, True, 9), (9, 4, True, 5), (9, 0, True, 1), (8, 0, False, 10), (12, 0, False, 10)],
)
def test_a_probe_moves_only_for_the_rejection_of_its_own_message(
    rejected_index: int, possible_index: int, moved: bool, next_index: int
) -> None:
    one = progress()
    one.sent(one.next_index - 1, size_bytes=0)
    assert one.rejected(rejected_index=rejected_index, possible_index=possible_index) is moved
    assert one.next_index == next_index
    assert one.probe_sent is not moved


def test_a_probe_never_goes_to_the_match_or_below() -> None:
    one = progress(next_index=4)
    one.acknowledged(3)
    one.rejected(rejected_index=3, possible_index=0)
    assert one.next_index == 4


def test_nothing_is_sent_while_a_snapshot_travels_and_the_log_follows_it() -> None:
    one = progress()
    one.become_snapshot(50)
    assert one.is_paused
    assert not one.rejected(rejected_index=9, possible_index=0)
    one.become_probe()
    assert (one.next_index, one.snapshot_index) == (51, 0)
