"""What clients ask of a replica, and how the answer finds its way back. Values only.

Tuples, as there is one of each for every entry (see `pdd.raft.values`).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pdd.raft.proposals import OutcomeKind

INBOX_FULL = "inbox_full"
SUPERSEDED = "superseded"
NOT_LEADER = "not_leader"


class Answer(NamedTuple):
    kind: OutcomeKind
    result: bytes = b""
    reason: str = ""
    """Of a rejection: a `pdd.raft.core.Refusal`, INBOX_FULL or SUPERSEDED."""
    leader_address: str = ""
    """Where to ask instead, as far as this replica knows."""


class Asker(Protocol):
    """Whoever waits for one answer. Called once, in the loop; must not block or raise."""

    def answer(self, answer: Answer) -> None: ...


class CommandSubmission(NamedTuple):
    """To be applied exactly once; see `pdd.raft.sessions`."""

    asker: Asker
    session_id: str
    sequence: int
    body: bytes


class QuerySubmission(NamedTuple):
    """A linearizable read."""

    asker: Asker
    query: bytes


Submission = CommandSubmission | QuerySubmission
