"""Queues, ticks, handshakes and the like: each bound, and what happens there."""

from __future__ import annotations

from typing import cast

import pytest

from pdd.cli.raft import raft
from pdd.core.errors import NodeUnavailable
from pdd.raft.config import RaftConfig
from pdd.raft.messages import HeartbeatResponse
from pdd.raft.values import Entry, EntryKind, NodeId
from pdd.replication.client import GroupClient, Session
from pdd.replication.driver import fitting_count
from pdd.replication.errors import REPLACE_ADVICE
from pdd.replication.hello import HelloRefusedError, check_hello, make_hello
from pdd.replication.inbox import SUBMISSIONS_MAX, Inbox
from pdd.replication.leader_finder import SILENCE_S, LeaderFinder
from pdd.replication.peer_queue import BATCH_BYTES, PeerQueue
from pdd.replication.percentiles import percentile
from pdd.replication.snapshot_stream import (
    CHUNK_BYTES,
    Assembly,
    SnapshotBrokenError,
    SnapshotTooLongError,
    cut,
)
from pdd.replication.submissions import Answer, QuerySubmission
from pdd.replication.ticks import Ticks
from pdd.rpc.v1.raft_pb2 import ReplicaHello, Submission

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def config(node: NodeId = A, *, cluster_id: str = "one", voters: tuple[NodeId, ...] = (A, B, C)):
    return RaftConfig(node=node, voters=voters, cluster_id=cluster_id)


class Nobody:
    def answer(self, answer: Answer) -> None:
        raise AssertionError(f"nobody asked: {answer}")


# Ticks


def test_ticks_come_at_their_rate() -> None:
    ticks = Ticks(tick_s=0.1, now_s=0.0)
    assert [ticks.take_due(n * 0.05 + 0.001) for n in range(7)] == [
        False, False, True, False, True, False, True,
    ]  # fmt: skip


def test_a_long_pause_makes_one_tick_and_forgets_the_rest() -> None:
    ticks = Ticks(tick_s=0.1, now_s=0.0)
    assert ticks.take_due(10.0)
    assert not ticks.take_due(10.0)
    assert not ticks.take_due(10.09)
    assert ticks.take_due(10.11)


# Queues


def test_a_full_peer_queue_drops_the_newest_and_counts_it() -> None:
    queue = PeerQueue(messages_max=2)
    assert [queue.put(m) for m in (b"1", b"2", b"3")] == [True, True, False]
    assert (queue.take(), queue.dropped_count) == ([b"1", b"2"], 1)


def test_a_peer_queue_is_bounded_in_bytes_but_takes_one_message_of_any_size() -> None:
    queue = PeerQueue(bytes_max=10)
    assert queue.put(b"x" * 50)
    assert not queue.put(b"y")
    assert queue.take() == [b"x" * 50]
    assert queue.put(b"y" * 10)


def test_a_batch_ends_before_its_bound_and_keeps_the_order() -> None:
    queue = PeerQueue()
    messages = [bytes([n]) * (BATCH_BYTES // 2) for n in range(5)]
    for message in messages:
        queue.put(message)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [
        messages[:2],
        messages[2:4],
        messages[4:],
        [],
    ]


def test_what_waits_for_a_broken_stream_is_dropped_and_counted() -> None:
    queue = PeerQueue()
    queue.put(b"1")
    queue.put(b"2")
    queue.clear()
    assert (queue.take(), queue.dropped_count) == ([], 2)
    assert queue.put(b"x" * BATCH_BYTES)


def test_the_inbox_refuses_submissions_beyond_its_bound_but_still_takes_peers_messages() -> None:
    inbox = Inbox()
    query = QuerySubmission(asker=Nobody(), query=b"")
    assert all(inbox.put_submission(query) for _ in range(SUBMISSIONS_MAX))
    assert not inbox.put_submission(query)
    message = HeartbeatResponse(source=B, target=A, term=1)
    assert inbox.put_message(message, size_bytes=10)
    assert len(inbox.take_submissions()) == SUBMISSIONS_MAX
    assert inbox.put_submission(query)
    assert inbox.take_messages() == [message]


def test_the_inbox_drops_messages_beyond_its_bytes_but_takes_one_of_any_size() -> None:
    inbox = Inbox()
    message = HeartbeatResponse(source=B, target=A, term=1)
    assert inbox.put_message(message, size_bytes=1 << 40)
    assert not inbox.put_message(message, size_bytes=1)
    assert inbox.dropped_count == 1
    assert inbox.take_messages() == [message]
    assert inbox.put_message(message, size_bytes=1)


# Hellos


def test_peers_that_agree_are_admitted() -> None:
    check_hello(make_hello(config(B)), config(A))


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (make_hello(config(B, cluster_id="two")), "of cluster 'two'"),
        (make_hello(config(B, voters=(B,))), "disagree about who votes"),
        (make_hello(config(A)), "none of the peers of 'a'"),
        (ReplicaHello(replica="z", cluster_id="one"), "none of the peers of 'a'"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused_by_name(hello: ReplicaHello, reason: str) -> None:
    with pytest.raises(HelloRefusedError, match=reason):
        check_hello(hello, config(A))


def test_a_peer_without_a_common_version_is_told_to_upgrade() -> None:
    hello = make_hello(config(B))
    hello.oldest_version, hello.newest_version = 7, 9
    with pytest.raises(HelloRefusedError, match=r"versions 7 to 9.*one release at a time"):
        check_hello(hello, config(A))


# Finding the leader


def test_a_hint_is_followed_and_an_answer_remembered() -> None:
    finder = LeaderFinder(["x", "y", "z"])
    assert finder.pick(0.0) == "x"
    assert finder.on_refusal("x", leader_address="z", now_s=0.0)
    assert finder.pick(0.0) == "z"
    finder.on_answer("z")
    assert finder.pick(5.0) == "z"


def test_hints_at_a_silent_leader_are_ignored_for_a_while() -> None:
    finder = LeaderFinder(["x", "y"])
    finder.on_answer("x")
    finder.on_silence("x", now_s=0.0)
    assert finder.pick(0.1) == "y"
    assert not finder.on_refusal("y", leader_address="x", now_s=0.1)
    assert finder.pick(0.2) == "y"
    assert finder.on_refusal("y", leader_address="x", now_s=SILENCE_S + 0.1)
    assert finder.pick(SILENCE_S + 0.1) == "x"


def test_when_all_are_silent_each_is_asked_in_turn() -> None:
    finder = LeaderFinder(["x", "y", "z"])
    for address in ("x", "y", "z"):
        finder.on_silence(address, now_s=0.0)
    assert {finder.pick(0.1) for _ in range(3)} == {"x", "y", "z"}


def test_a_hint_at_a_stranger_is_not_followed() -> None:
    finder = LeaderFinder(["x", "y"])
    assert not finder.on_refusal("x", leader_address="evil:1", now_s=0.0)
    assert {finder.pick(0.0), finder.pick(0.0)} == {"x", "y"}


# Snapshots on the wire


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_snapshot_arrives_as_it_was_cut(size: int) -> None:
    data = bytes(n % 251 for n in range(size))
    first, *rest = cut(data, hello=make_hello(config()), message=b"m")
    assembly = Assembly(first.header)
    for request in rest:
        assert len(request.chunk) <= CHUNK_BYTES
        assembly.add(request.chunk)
    assert assembly.finish() == data


def test_a_snapshot_that_lost_gained_or_changed_bytes_is_refused() -> None:
    first, chunk = cut(b"0123456789", hello=make_hello(config()), message=b"m")
    short = Assembly(first.header)
    short.add(chunk.chunk[:-1])
    with pytest.raises(SnapshotBrokenError, match="9 of 10 bytes"):
        short.finish()
    with pytest.raises(SnapshotBrokenError, match="more than the 10"):
        Assembly(first.header).add(chunk.chunk + b"x")
    changed = Assembly(first.header)
    changed.add(b"0123456780")
    with pytest.raises(SnapshotBrokenError, match="checksum"):
        changed.finish()


def test_a_snapshot_that_is_too_long_is_refused_by_its_header() -> None:
    first, _ = cut(b"0123456789", hello=make_hello(config()), message=b"m")
    with pytest.raises(SnapshotTooLongError, match="10 bytes; this replica takes up to 9"):
        Assembly(first.header, bytes_max=9)


# Percentiles


def test_percentiles_by_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 50) == 7.0
    assert percentile([], 99) == 0.0


def test_what_is_kept_behind_a_snapshot_is_bounded_in_entries_and_bytes() -> None:
    entries = [
        Entry(index=index, term=1, kind=EntryKind.COMMAND, data=b"x" * 76) for index in range(1, 11)
    ]  # 100 bytes each
    assert fitting_count(entries, entries_max=4, bytes_max=10_000) == 4
    assert fitting_count(entries, entries_max=99, bytes_max=10_000) == 10
    assert fitting_count(entries, entries_max=99, bytes_max=350) == 3
    assert fitting_count(entries, entries_max=99, bytes_max=99) == 0
    assert fitting_count(entries, entries_max=0, bytes_max=10_000) == 0
    assert fitting_count([], entries_max=9, bytes_max=10_000) == 0


# What operators are told


class SilentGroup:
    async def ask(self, submission: Submission, *, timeout_s: float) -> bytes | None:
        return None


async def test_a_change_that_found_no_leader_says_that_nothing_was_changed_and_where_to_look() -> (
    None
):
    session = Session(cast(GroupClient, SilentGroup()), session_id="s")
    with pytest.raises(NodeUnavailable) as caught:
        await session.open(timeout_s=4.0)
    assert str(caught.value) == (
        "no leader of the log answered for 4.0 s, and nothing was changed; 'pdd raft status' tells "
        "which replicas answer"
    )


def test_the_advice_about_a_damaged_log_names_a_command_that_there_is() -> None:
    assert "'pdd raft replace --help' tells how" in REPLACE_ADVICE
    assert "replace" in raft.commands
