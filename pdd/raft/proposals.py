"""What became of a proposal: ok, rejected or unknown. The driver keeps one tracker per replica.

 ok        the entry at its index was applied with its own term
 rejected  another entry was applied at its index: this one never will be
 unknown   the leadership ended, or a snapshot covered the index: it may still take effect

Unknown is never reported as failure; the caller repeats the command in its session (`sessions`).
Bound: entries in flight are bounded by config.max_uncommitted_bytes, and so is the tracker.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from pdd.raft.core import Proposed
from pdd.raft.values import Entry

Token = TypeVar("Token")


class OutcomeKind(StrEnum):
    OK = "ok"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class Outcome(NamedTuple, Generic[Token]):
    token: Token
    kind: OutcomeKind
    result: bytes = b""


class ProposalTracker(Generic[Token]):
    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, Token]] = {}
        """By index: (term, token)."""

    def __len__(self) -> int:
        return len(self._waiting)

    def track(self, proposed: Proposed, token: Token) -> None:
        assert proposed.index not in self._waiting, "index tracked twice in one leadership"
        self._waiting[proposed.index] = (proposed.term, token)

    def on_applied(self, entry: Entry, result: bytes) -> Outcome[Token] | None:
        waiting = self._waiting.pop(entry.index, None)
        if waiting is None:
            return None
        term, token = waiting
        if term != entry.term:
            return Outcome(token, OutcomeKind.REJECTED)
        return Outcome(token, OutcomeKind.OK, result)

    def on_leadership_lost(self) -> list[Outcome[Token]]:
        outcomes = [Outcome(token, OutcomeKind.UNKNOWN) for _, token in self._waiting.values()]
        self._waiting.clear()
        return outcomes
