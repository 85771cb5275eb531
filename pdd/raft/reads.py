"""ReadIndex: linearizable reads without writing to the log (thesis section 6.4).

A read may be answered from the leader's applied state once
 (1) the leader has committed an entry of its own term, so its commit index is not stale;
 (2) a majority has answered a heartbeat sent *after* the read arrived, so nobody newer led then;
 (3) the state machine has applied the commit index noted in (1).

Rounds carry a sequence number that is never reused within a term and dies with the leadership.
A heartbeat answer echoes the sequence it was asked with: one that was on its way before the read
arrived carries a smaller number and confirms nothing, however late it comes.

    read_index -> waiting --open_round--> rounds --majority--> confirmed (core waits for apply)

Bound: config.max_pending_reads over all three; beyond it `read_index` refuses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRound:
    sequence: int
    index: int
    contexts: list[object]


class ReadRounds:
    __slots__ = ("rounds", "sequence", "waiting")

    def __init__(self) -> None:
        self.sequence = 0
        self.waiting: list[object] = []
        self.rounds: deque[ReadRound] = deque()

    @property
    def pending_count(self) -> int:
        return len(self.waiting) + sum(len(round_.contexts) for round_ in self.rounds)

    def open_round(self, commit_index: int) -> None:
        """Everything waiting joins one new round. The caller sends heartbeats with `sequence`."""
        self.sequence += 1
        self.rounds.append(
            ReadRound(sequence=self.sequence, index=commit_index, contexts=self.waiting)
        )
        self.waiting = []

    def confirm(self, majority_sequence: int) -> list[tuple[int, object]]:
        """Close the rounds a majority has answered; ``(index, context)`` of their reads."""
        confirmed: list[tuple[int, object]] = []
        while self.rounds and self.rounds[0].sequence <= majority_sequence:
            closed = self.rounds.popleft()
            confirmed += [(closed.index, context) for context in closed.contexts]
        return confirmed

    def drain(self) -> list[object]:
        """Leadership is over: every unanswered read, to be refused."""
        contexts = [context for round_ in self.rounds for context in round_.contexts]
        contexts += self.waiting
        self.waiting = []
        self.rounds.clear()
        return contexts
