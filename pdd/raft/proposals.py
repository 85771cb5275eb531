"""What became of a proposal: ok, rejected or unknown. The driver keeps one tracker per replica.

 ok        the entry at its index was applied with its own term
 rejected  another entry was applied at its index: this one never will be
 unknown   the leadership ended, or a snapshot covered the index: it may still take effect

Unknown is never reported as failure; the caller repeats the command in its session (`sessions`).
Bound: entries in flight are bounded by config.max_uncommitted_bytes, and so is the tracker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from pdd.raft.core import Proposed
from pdd.raft.machine import Applied

Token = TypeVar("Token")


class OutcomeKind(StrEnum):
    OK = "ok"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[Token]):
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

    def on_applied(self, applied: Applied) -> Outcome[Token] | None:
        waiting = self._waiting.pop(applied.index, None)
        if waiting is None:
            return None
        term, token = waiting
        if term != applied.term:
            return Outcome(token=token, kind=OutcomeKind.REJECTED)
        return Outcome(token=token, kind=OutcomeKind.OK, result=applied.result)

    def on_leadership_lost(self) -> list[Outcome[Token]]:
        outcomes = [
            Outcome(token=token, kind=OutcomeKind.UNKNOWN) for _, token in self._waiting.values()
        ]
        self._waiting.clear()
        return outcomes
