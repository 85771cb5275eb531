"""What was seen of every request of a run, as columns. Pure.

Times are seconds from the start of the load. A request's clock starts when it was *due* (or when it
was sent, if that was a moment earlier): what a late generator or a full connection table cost is
part of its latency, not hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

STAGES = ("queue", "prefill", "transfer", "decode")


class Outcome(IntEnum):
    """How a request ended. ``REJECTED``: the server said that it has no room (429, 503)."""

    OK = 0
    REJECTED = 1
    FAILED = 2


@dataclass(slots=True, kw_only=True)
class Sample:
    """One request. ``error``: its class, "" when it ended well. Times as in the module."""

    index: int
    due_s: float
    sent_s: float
    end_s: float
    event_times_s: Sequence[float]
    outcome: Outcome
    error: str = ""
    detail: str = ""
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stages_ms: tuple[float, ...] | None = None
    persona: int = -1
    request_id: str = ""
    tokens_lost: int = 0
    tokens_doubled: int = 0


@dataclass(slots=True, kw_only=True)
class Samples:
    """All requests, ordered by index; ``event_times_s`` of request i is
    ``events[event_starts[i] : event_starts[i + 1]]``."""

    index: Ints
    due_s: Floats
    sent_s: Floats
    end_s: Floats
    outcome: Ints
    output_tokens: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    persona: Ints
    tokens_lost: Ints
    tokens_doubled: Ints
    stages_ms: Floats
    """[requests, 4]; NaN where the server tells nothing."""
    event_starts: Ints
    events: Floats
    errors: list[str] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)
    """For each error class, the text of one of them."""
    request_ids: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def start_s(self) -> Floats:
        """When each request's clock starts."""
        return np.minimum(self.due_s, self.sent_s)

    @property
    def event_counts(self) -> Ints:
        return np.diff(self.event_starts)


def columns(samples: Sequence[Sample]) -> Samples:
    """Turn rows into columns, ordered by index."""
    rows = sorted(samples, key=lambda row: row.index)
    nothing = (float("nan"),) * len(STAGES)
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row.event_times_s) for row in rows], out=starts[1:])
    details: dict[str, str] = {}
    for row in rows:
        if row.error:
            details.setdefault(row.error, row.detail)

    def ints(name: str) -> Ints:
        return np.array([getattr(row, name) for row in rows], np.int64)

    def floats(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], np.float64)

    return Samples(
        index=ints("index"),
        due_s=floats("due_s"),
        sent_s=floats("sent_s"),
        end_s=floats("end_s"),
        outcome=ints("outcome"),
        output_tokens=ints("output_tokens"),
        prompt_tokens=ints("prompt_tokens"),
        cached_tokens=ints("cached_tokens"),
        persona=ints("persona"),
        tokens_lost=ints("tokens_lost"),
        tokens_doubled=ints("tokens_doubled"),
        stages_ms=np.array([row.stages_ms or nothing for row in rows], np.float64).reshape(
            len(rows), len(STAGES)
        ),
        event_starts=starts,
        events=np.concatenate([np.asarray(row.event_times_s, np.float64) for row in rows])
        if rows
        else np.zeros(0),
        errors=[row.error for row in rows],
        details=details,
        request_ids=[row.request_id for row in rows],
    )


def merge(parts: Sequence[Samples]) -> Samples:
    """Samples of several processes as one, ordered by index."""
    parts = [part for part in parts if part.count]
    if not parts:
        return columns([])
    order = np.argsort(np.concatenate([part.index for part in parts]), kind="stable")
    counts = np.concatenate([part.event_counts for part in parts])
    pieces = [
        part.events[part.event_starts[i] : part.event_starts[i + 1]]
        for part in parts
        for i in range(part.count)
    ]
    starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts[order], out=starts[1:])
    details: dict[str, str] = {}
    for part in parts:
        details = part.details | details
    errors = [error for part in parts for error in part.errors]
    request_ids = [one for part in parts for one in part.request_ids]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return Samples(
        index=joined("index"),
        due_s=joined("due_s"),
        sent_s=joined("sent_s"),
        end_s=joined("end_s"),
        outcome=joined("outcome"),
        output_tokens=joined("output_tokens"),
        prompt_tokens=joined("prompt_tokens"),
        cached_tokens=joined("cached_tokens"),
        persona=joined("persona"),
        tokens_lost=joined("tokens_lost"),
        tokens_doubled=joined("tokens_doubled"),
        stages_ms=joined("stages_ms"),
        event_starts=starts,
        events=np.concatenate([pieces[at] for at in order]),
        errors=[errors[at] for at in order],
        details=details,
        request_ids=[request_ids[at] for at in order],
    )
