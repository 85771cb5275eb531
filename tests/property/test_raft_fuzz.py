"""Anything from a peer: bytes into the decoder, messages into `step`. Nothing crashes."""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.raft.codec import DecodeError, Identity, decode_message, encode_message
from pdd.raft.config import RaftConfig
from pdd.raft.core import RaftCore
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    fault_in,
)
from pdd.raft.values import Entry, EntryKind, HardState, NodeId, SnapshotMeta

VOTERS = tuple(NodeId(f"s{number}") for number in range(3))
CONFIG = RaftConfig(node=VOTERS[0], voters=VOTERS, cluster_id="c", max_message_bytes=200)
IDENTITY = Identity.of(CONFIG)
SETTINGS = settings(deadline=None, derandomize=True, max_examples=250)

small = st.integers(0, 12)
peers = st.sampled_from(VOTERS[1:])
anybody = st.sampled_from([*VOTERS, NodeId("stranger")])
entries = st.lists(
    st.builds(
        Entry, index=small, term=small, kind=st.sampled_from(EntryKind), data=st.binary(max_size=4)
    ),
    max_size=4,
)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, object]:
    """prev and entries that continue it: what a leader could send."""
    prev_index = draw(small)
    prev_term = draw(st.integers(1, 6)) if prev_index else 0
    term, rows = prev_term, []
    for offset in range(draw(st.integers(0, 4))):
        term = max(1, term + draw(st.integers(0, 1)))
        rows.append(
            Entry(
                index=prev_index + 1 + offset,
                term=term,
                kind=EntryKind.COMMAND,
                data=b"%d" % term,
            )
        )
    return {"prev_index": prev_index, "prev_term": prev_term, "entries": rows}


def messages(
    source: st.SearchStrategy[NodeId], target: st.SearchStrategy[NodeId]
) -> st.SearchStrategy[Message]:
    common = {"source": source, "target": target, "term": small}
    flag = st.booleans()
    return st.one_of(
        st.builds(VoteRequest, **common, last_index=small, last_term=small, is_transfer=flag),
        st.builds(VoteResponse, **common, granted=flag),
        st.builds(PreVoteRequest, **common, last_index=small, last_term=small),
        st.builds(PreVoteResponse, **common, granted=flag),
        st.builds(
            AppendRequest,
            **common,
            prev_index=small,
            prev_term=small,
            commit_index=small,
            entries=entries,
        ),
        st.builds(
            lambda run, **fields: AppendRequest(**fields, **run),
            **common,
            run=runs(),
            commit_index=small,
        ),
        st.builds(
            AppendResponse,
            **common,
            match_index=small,
            rejected=flag,
            hint_index=small,
            hint_term=small,
        ),
        st.builds(
            HeartbeatRequest,
            **common,
            commit_index=small,
            read_sequence=small,
            hash_index=small,
            state_hash=st.binary(max_size=2),
        ),
        st.builds(HeartbeatResponse, **common, read_sequence=small),
        st.builds(
            InstallSnapshot,
            **common,
            meta=st.builds(SnapshotMeta, index=small, term=small),
            data=st.binary(max_size=4),
        ),
        st.builds(TimeoutNow, **common),
    )


@SETTINGS
@given(messages(anybody, anybody))
def test_every_message_comes_back_equal(message: Message) -> None:
    assert decode_message(encode_message(message, IDENTITY), IDENTITY) == message


@SETTINGS
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_or_decoded_never_more(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode_message(data, IDENTITY)


@SETTINGS
@given(messages(peers, st.just(VOTERS[0])), st.data())
def test_changed_bytes_are_refused_or_decoded_never_more(
    message: Message, data: st.DataObject
) -> None:
    changed = bytearray(encode_message(message, IDENTITY))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    with contextlib.suppress(DecodeError):
        decode_message(bytes(changed[: cut or None]), IDENTITY)


def core_with(terms: list[int], term: int) -> RaftCore:
    return RaftCore(
        CONFIG,
        rng=random.Random(1),
        hard_state=HardState(term=max([term, *terms]), vote=None, commit_index=0),
        entries=[
            Entry(index=index, term=t, kind=EntryKind.COMMAND, data=b"%d" % t)
            for index, t in enumerate(terms, start=1)
        ],
    )


def fingerprint(core: RaftCore) -> object:
    state, log = core.state, core.state.log
    return (
        state.term,
        state.vote,
        state.role,
        state.leader,
        state.election_elapsed_ticks,
        log.commit_index,
        log.last_index,
        list(log.entries),
        len(state.outbox),
    )


@SETTINGS
@given(
    st.lists(st.integers(1, 6), max_size=6).map(sorted),
    small,
    st.lists(
        st.one_of(
            messages(peers, st.just(VOTERS[0])),
            messages(anybody, anybody),
            st.sampled_from(["tick", "propose", "read", "transfer", "settle", "begin", "finish"]),
        ),
        max_size=60,
    ),
)
def test_no_sequence_of_messages_crashes_a_replica_or_moves_it_back(
    terms: list[int], term: int, inputs: list[Message | str]
) -> None:
    core = core_with(terms, term)
    outstanding = None
    for one in inputs:
        log = core.state.log
        before = (core.term, log.commit_index)
        match one:
            case "tick":
                for _ in range(5):
                    core.tick()
            case "propose":
                core.propose(b"x")
            case "read":
                core.read_index("r")
            case "transfer":
                core.transfer(VOTERS[1])
            case "settle" | "begin" | "finish":
                if outstanding is not None:
                    core.advance(outstanding)
                    outstanding = None
                while one != "finish" and core.has_ready() and core.state.divergence is None:
                    outstanding = core.ready()
                    if one == "begin":
                        break
                    core.advance(outstanding)
                    outstanding = None
            case Message():
                fault = fault_in(one, CONFIG)
                state_before = fingerprint(core)
                core.step(one)
                if fault is not None:
                    assert fingerprint(core) == state_before, fault
        assert (core.term, log.commit_index) >= (before[0], 0)
        assert log.commit_index >= before[1]
        assert log.offset_index <= log.commit_index <= log.last_index
        assert log.durable_index <= log.handed_index <= log.last_index
