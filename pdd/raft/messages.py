"""What replicas say to each other, and which messages are refused at the door.

The network may lose, repeat, delay and reorder any of them. Every message carries the sender's
term; a response therefore always teaches a stale peer the newer term (paper section 5.1).
`PreVoteRequest.term` and a granted `PreVoteResponse.term` are the exception: they carry the term
the candidate *would* use, and nobody adopts it.

`source` is checked by the transport against the peer's certificate before `step` sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.raft.config import RaftConfig
from pdd.raft.values import Entry, NodeId, SnapshotMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    source: NodeId
    target: NodeId
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(Message):
    last_index: int
    last_term: int
    is_transfer: bool = False
    """Sent at the leader's own wish (TimeoutNow), so followers do not defend that leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest(Message):
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteResponse(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(Message):
    prev_index: int
    prev_term: int
    commit_index: int
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse(Message):
    """``match_index``: the sender's log equals the leader's up to here, and is durable up to here.

    When ``rejected``, ``match_index`` is the refused ``prev_index``, and the hint names the last
    place where the logs may still agree. Also answers an `InstallSnapshot`, and any message of a
    stale leader (rejected, with the newer term).
    """

    match_index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest(Message):
    commit_index: int
    """Never beyond what this follower has acknowledged in this term."""
    read_sequence: int = 0
    """The newest read round of this term; see `reads`."""
    hash_index: int = 0
    state_hash: bytes = b""
    """State hash of the leader at ``hash_index``; index 0 means none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse(Message):
    read_sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot(Message):
    """The core leaves ``data`` empty; the driver attaches the file, of this or a newer index."""

    meta: SnapshotMeta
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """The leader asks ``target`` to campaign at once (thesis section 3.10)."""


LEADER_MESSAGES = (AppendRequest, HeartbeatRequest, InstallSnapshot, TimeoutNow)
"""Sent by the leader of ``term`` only."""


def fault_in(message: Message, config: RaftConfig) -> str | None:
    """Why a well-decoded message must be ignored, or None. Peers' faults are never exceptions."""
    if message.target != config.node:
        return "wrong_target"
    if message.source == config.node or message.source not in config.voters:
        return "unknown_source"
    if message.term < 1:
        return "term_below_one"
    match message:
        case AppendRequest():
            return _append_fault(message)
        case VoteRequest() | PreVoteRequest():
            # A candidate's log is older than the term it asks for.
            return "vote_log_from_the_future" if message.last_term >= message.term else None
        case InstallSnapshot():
            known = message.meta.index >= 1 and 1 <= message.meta.term <= message.term
            return None if known else "snapshot_meta"
        case _:
            return None


def _append_fault(message: AppendRequest) -> str | None:
    """Entries continue ``prev`` without a gap, in terms that never fall or pass the sender's."""
    if (message.prev_index == 0) != (message.prev_term == 0):
        return "append_prev"
    index, term = message.prev_index, message.prev_term
    for entry in message.entries:
        if entry.index != index + 1:
            return "append_gap"
        if entry.term < term or entry.term < 1:
            return "append_term_falls"
        index, term = entry.index, entry.term
    return "append_term_from_the_future" if term > message.term else None
