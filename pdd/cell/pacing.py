"""Which entry a scheduler proposes next. Pure: time is an argument.

    hard operations ──┐                       one hard entry and one soft entry at most are
                      ├──► next_entry() ──►   on their way at any time
    soft operations ──┘

A hard entry goes at once, with everything hard that waits. A soft entry goes when its batch is old
enough (`batch_s`) or full, and not while a hard one waits or is on its way, unless it has waited
`soft_wait_max_s`: then once, so that a stream of hard entries does not starve it. What a hard entry
can meet before it in the log is therefore one soft entry of `soft_entry_bytes_max`.

A hard entry takes what waits up to `hard_entry_bytes_max`, in order; the rest goes with the next.
Raft refuses an entry above 1 MiB however often it is sent.

Bounds: HARD_WAITING_MAX hard operations and `hard_waiting_bytes_max` of them, beyond which
`put_hard` says no; `soft_waiting_bytes_max` of soft ones, beyond which they are dropped and counted
(a node's next delta shows the gap, and its snapshot heals it; a sequence that is not in the table
runs all the same).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pdd.cell.codec import OPERATIONS_MAX

HARD_WAITING_MAX = OPERATIONS_MAX

Token = TypeVar("Token")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingSettings:
    """Seconds and bytes."""

    batch_s: float = 0.02
    soft_wait_max_s: float = 0.25
    hard_entry_bytes_max: int = 256 * 1024
    hard_waiting_bytes_max: int = 8 * 1024 * 1024
    soft_entry_bytes_max: int = 64 * 1024
    soft_waiting_bytes_max: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HardBatch(Generic[Token]):
    """One hard entry: operations, and who waits for each."""

    operations: tuple[Any, ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftBatch:
    """One soft entry."""

    operations: tuple[Any, ...]
    size_bytes: int


class Pacing(Generic[Token]):
    """Of one scheduler."""

    def __init__(self, settings: PacingSettings | None = None) -> None:
        self._settings = settings or PacingSettings()
        self._hard: deque[tuple[Any, int, Token]] = deque()
        """(operation, bytes, who waits)."""
        self._hard_bytes = 0
        self._soft: deque[tuple[Any, int, float]] = deque()
        """(operation, bytes, when it came)."""
        self._soft_bytes = 0
        self._is_hard_out = False
        self._is_soft_out = False
        self.dropped_count = 0
        """Soft operations that found no room."""

    def put_hard(self, operation: Any, token: Token, *, size_bytes: int) -> bool:
        """False: too many wait; say so to whoever asked."""
        is_full = len(self._hard) >= HARD_WAITING_MAX
        if is_full or self._hard_bytes + size_bytes > self._settings.hard_waiting_bytes_max:
            return False
        self._hard.append((operation, size_bytes, token))
        self._hard_bytes += size_bytes
        return True

    def put_soft(self, operation: Any, *, size_bytes: int, now_s: float) -> bool:
        """False: dropped."""
        if self._soft_bytes + size_bytes > self._settings.soft_waiting_bytes_max:
            self.dropped_count += 1
            return False
        self._soft.append((operation, size_bytes, now_s))
        self._soft_bytes += size_bytes
        return True

    def next_hard(self) -> HardBatch[Token] | None:
        """To be proposed now; then tell `hard_answered`."""
        if self._is_hard_out or not self._hard:
            return None
        operations: list[Any] = []
        tokens: list[Token] = []
        size_bytes = 0
        while self._hard:
            operation, operation_bytes, token = self._hard[0]
            if operations and size_bytes + operation_bytes > self._settings.hard_entry_bytes_max:
                break
            self._hard.popleft()
            operations.append(operation)
            tokens.append(token)
            size_bytes += operation_bytes
        self._hard_bytes -= size_bytes
        self._is_hard_out = True
        return HardBatch(operations=tuple(operations), tokens=tuple(tokens))

    def next_soft(self, *, now_s: float) -> SoftBatch | None:
        """To be proposed now; then tell `soft_answered`. Ask for the hard one first."""
        due_s = self.soft_due_s()
        if due_s is None or now_s < due_s:
            return None
        operations: list[Any] = []
        size_bytes = 0
        while self._soft:
            operation, operation_bytes, _ = self._soft[0]
            if operations and size_bytes + operation_bytes > self._settings.soft_entry_bytes_max:
                break
            self._soft.popleft()
            operations.append(operation)
            size_bytes += operation_bytes
        self._soft_bytes -= size_bytes
        self._is_soft_out = True
        return SoftBatch(operations=tuple(operations), size_bytes=size_bytes)

    def soft_due_s(self) -> float | None:
        """When the next soft entry may go as things stand; None: not before something happens."""
        if self._is_soft_out or not self._soft:
            return None
        oldest_s = self._soft[0][2]
        if self._hard or self._is_hard_out:
            return oldest_s + self._settings.soft_wait_max_s
        if self._soft_bytes >= self._settings.soft_entry_bytes_max:
            return oldest_s
        return oldest_s + self._settings.batch_s

    def hard_answered(self) -> None:
        """The hard entry is committed, refused or of unknown outcome."""
        self._is_hard_out = False

    def soft_answered(self) -> None:
        """The soft entry is. If it is lost, a gap shows it."""
        self._is_soft_out = False

    def take_waiting(self) -> list[Token]:
        """Whoever waits for a hard operation that was not proposed; for the end of the process."""
        waiting = [token for _, _, token in self._hard]
        self._hard.clear()
        self._hard_bytes = 0
        return waiting
