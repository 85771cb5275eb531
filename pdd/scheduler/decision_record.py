"""One decision: who could have had the request, what it rested on, and why it went so. Pure.

It is kept packed: as objects one with three candidates weighs 2.3 kB, packed 0.3, and most are
never asked for. A record has the best candidates with their inputs and scores, and counts the
others by what dropped them. Times are kept to a millisecond, other fractions to seven digits.

Packed is the moment (8 bytes, milliseconds), then a msgpack array; read by nobody but the same
process.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

import msgpack

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import DEFAULT_TENANT, Path
from pdd.scheduler.policy.candidate import Candidate
from pdd.scheduler.policy.decider import PathInputs
from pdd.scheduler.policy.place import Considered
from pdd.scheduler.policy.profile import Choice

_CANDIDATE_COUNT_MAX = 16
_PATH_INPUTS = tuple(field.name for field in fields(PathInputs))
_path_values = attrgetter(*_PATH_INPUTS)
_MOMENT_MS = struct.Struct("<q")
_INPUTS = (
    *("cached_tokens", "remainder_tokens", "completion_s", "blocks", "claim_blocks"),
    *("unpromised_blocks", "sequences", "load", "transfer_s", "inbound_s", "is_preferred"),
)


class Outcome(StrEnum):
    """What was decided."""

    PLACED = "placed"
    WAITS = "waits"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision about one attempt. Times on the driver's clock.

    ``repeated_count``: how often it was decided alike before, for a request that waits.
    """

    request_id: RequestId
    generation: int
    decided_s: float
    outcome: Outcome
    path: Path | None
    reason: str
    considered: Considered
    tenant: str = DEFAULT_TENANT
    waited_s: float = 0.0
    repeated_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """One node as it was at the moment. ``scores``: unweighted, in [0, 1]; empty if dropped."""

    node: NodeName
    is_chosen: bool
    dropped_by: str
    dropped_why: str
    inputs: Mapping[str, float]
    scores: Mapping[str, float]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRecord:
    """The candidates of one role, best first. ``other_count``: those left out here, by what dropped
    them; "" for those that were only worse."""

    candidates: tuple[CandidateRecord, ...]
    other_count: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as it is told. ``prefill``, ``decode``: None where there was nothing to choose;
    ``path_inputs``: by name, empty where the path was not chosen."""

    request_id: RequestId
    generation: int
    decided_s: float
    outcome: Outcome
    path: Path | None
    reason: str
    tenant: str
    waited_s: float
    repeated_count: int
    prefill: ChoiceRecord | None
    decode: ChoiceRecord | None
    path_inputs: Mapping[str, float]

    def choices(self) -> tuple[ChoiceRecord | None, ChoiceRecord | None]:
        """``(prefill, decode)``."""
        return self.prefill, self.decode


def pack(decision: Decision, *, repeated_count: int = 0) -> bytes:
    """The candidates as they are now: their nodes go on changing."""
    considered = decision.considered
    inputs = considered.path_inputs
    packed: bytes = _packer.pack(
        (
            decision.generation,
            decision.outcome,
            decision.path,
            decision.reason,
            None if decision.tenant == DEFAULT_TENANT else decision.tenant,
            round(decision.waited_s * 1e3),
            repeated_count,
            _pack_choice(considered.prefill),
            _pack_choice(considered.decode),
            None if inputs is None else _path_values(inputs),
        )
    )
    return _MOMENT_MS.pack(round(decision.decided_s * 1e3)) + packed


def decided_s(packed: bytes) -> float:
    """When it was made, without unpacking the rest."""
    moment_ms: int = _MOMENT_MS.unpack_from(packed)[0]
    return moment_ms / 1e3


def unpack(request_id: RequestId, packed: bytes) -> DecisionRecord:
    """What ``pack`` made."""
    parts = msgpack.unpackb(memoryview(packed)[_MOMENT_MS.size :])
    generation, outcome, path, reason, tenant = parts[:5]
    waited_ms, repeated_count, prefill, decode, path_inputs = parts[5:]
    return DecisionRecord(
        request_id=request_id,
        generation=generation,
        decided_s=decided_s(packed),
        outcome=Outcome(outcome),
        path=None if path is None else Path(path),
        reason=reason,
        tenant=DEFAULT_TENANT if tenant is None else tenant,
        waited_s=waited_ms / 1e3,
        repeated_count=repeated_count,
        prefill=_unpack_choice(prefill),
        decode=_unpack_choice(decode),
        path_inputs=(
            {}
            if path_inputs is None
            else dict(zip(_PATH_INPUTS, map(float, path_inputs), strict=True))
        ),
    )


# Kept: it owns a buffer. A packer is not to be used in several threads; cores are not either.
_packer = msgpack.Packer(use_single_float=True)


def _pack_choice(choice: Choice | None) -> tuple[Any, ...] | None:
    """``(scorers, others, row, row ...)``."""
    if choice is None:
        return None
    totals, dropped = choice.totals, choice.dropped
    candidates = choice.candidates
    others: dict[str, int] | None = None
    if len(candidates) > 1:
        candidates = tuple(
            sorted(
                candidates,
                key=lambda one: (one is not choice.chosen, -totals.get(one.name, -1.0), one.name),
            )
        )
        if len(candidates) > _CANDIDATE_COUNT_MAX:
            left_out = candidates[_CANDIDATE_COUNT_MAX:]
            others = dict(Counter(dropped.get(one.name, ("", ""))[0] for one in left_out))
            candidates = candidates[:_CANDIDATE_COUNT_MAX]
    scorers: tuple[str, ...] = ()
    if choice.chosen is not None:
        scorers = tuple(choice.scores[choice.chosen.name])
    return scorers, others, *(_pack_candidate(choice, one) for one in candidates)


def _pack_candidate(choice: Choice, candidate: Candidate) -> tuple[Any, ...]:
    """``(name, is chosen, dropped by, why, total, *inputs, *scores)``. A zero takes one byte as an
    integer and five as a fraction."""
    name = candidate.name
    dropped_by, dropped_why = choice.dropped.get(name, (None, None))
    return (
        name,
        candidate is choice.chosen,
        dropped_by,
        dropped_why,
        choice.totals.get(name, 0.0) or 0,
        candidate.cached_tokens,
        candidate.remainder_tokens,
        candidate.completion_s,
        candidate.blocks,
        candidate.claim,
        candidate.unpromised_blocks,
        candidate.sequence_count,
        candidate.load or 0,
        candidate.transfer_s or 0,
        candidate.inbound_s or 0,
        candidate.preferred_blocks >= 0,
        *(value or 0 for value in choice.scores.get(name, {}).values()),
    )


def _unpack_choice(packed: Any) -> ChoiceRecord | None:
    if packed is None:
        return None
    scorers, others, *rows = packed
    return ChoiceRecord(
        candidates=tuple(_unpack_candidate(scorers, row) for row in rows), other_count=others or {}
    )


def _unpack_candidate(scorers: list[str], row: list[Any]) -> CandidateRecord:
    name, is_chosen, dropped_by, dropped_why, total, *values = row
    inputs, scores = values[: len(_INPUTS)], values[len(_INPUTS) :]
    return CandidateRecord(
        node=name,
        is_chosen=is_chosen,
        dropped_by=dropped_by or "",
        dropped_why=dropped_why or "",
        inputs={key: float(value) for key, value in zip(_INPUTS, inputs, strict=True)},
        # A dropped one has no scores; the others have all of them, in one order.
        scores=dict(zip(scorers, scores, strict=True)) if scores else {},
        total=total,
    )
