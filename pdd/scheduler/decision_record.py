"""One decision: who could have had the request, what it rested on, and why it went so. Pure.

It is kept packed, its numbers as the columns that they were decided by: most records are never
asked for, and what is not told need not be put in words. A record has the best candidates with
their inputs and scores, and counts the others by what dropped them. Times are kept to a
millisecond, other numbers to seven digits.

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
import numpy as np

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import DEFAULT_TENANT, Path
from pdd.scheduler.policy.candidate import Table
from pdd.scheduler.policy.decider import PathInputs
from pdd.scheduler.policy.place import Considered
from pdd.scheduler.policy.profile import Choice
from pdd.scheduler.pools import Column

_CANDIDATE_COUNT_MAX = 16
_PATH_INPUTS = tuple(field.name for field in fields(PathInputs))
_path_values = attrgetter(*_PATH_INPUTS)
_MOMENT_MS = struct.Struct("<q")
_FLOAT = np.dtype(np.float32)
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
    """``(names, chosen, positions left, dropped, others, scorers, inputs, scores, totals)``.

    The last three are float32 columns of all names, and of those left. Positions are among the
    names; None for all. ``dropped``: ``(position, filter, why)`` of each.
    """
    if choice is None:
        return None
    candidates = choice.candidates
    if len(candidates) > _CANDIDATE_COUNT_MAX:
        return _pack_best(choice)
    return (
        candidates.names,
        choice.chosen_at,
        None if choice.left is None else choice.left.tolist(),
        [(at, name, choice.why_dropped(at)) for at, name in choice.dropped.items()],
        None,
        *_pack_columns(choice, candidates.inputs, choice.scores, choice.totals),
    )


def _pack_best(choice: Choice) -> tuple[Any, ...]:
    """The chosen one, then by score, then those that were dropped."""
    left = np.arange(len(choice.candidates)) if choice.left is None else choice.left
    ranks = np.arange(0)  # among those left
    if choice.totals is not None:
        ranks = np.argsort(-choice.totals, kind="stable")[:_CANDIDATE_COUNT_MAX]
        chosen_rank = int(np.searchsorted(left, choice.chosen_at))
        if chosen_rank not in ranks:
            ranks[-1] = chosen_rank
    room = _CANDIDATE_COUNT_MAX - len(ranks)
    dropped = list(choice.dropped)[:room]
    shown = [*left[ranks].tolist(), *dropped]
    others = Counter(list(choice.dropped.values())[room:])
    if len(left) > len(ranks):
        others[""] = len(left) - len(ranks)
    scores, totals = choice.scores, choice.totals
    return (
        [choice.candidates.names[at] for at in shown],
        shown.index(choice.chosen_at) if choice.chosen_at >= 0 else -1,
        list(range(len(ranks))),
        [
            (len(ranks) + place, choice.dropped[at], choice.why_dropped(at))
            for place, at in enumerate(dropped)
        ],
        dict(others),
        *_pack_columns(
            choice,
            choice.candidates.inputs[:, shown],
            None if scores is None else scores[:, ranks],
            None if totals is None else totals[ranks],
        ),
    )


def _pack_columns(
    choice: Choice, inputs: Table, scores: Table | None, totals: Column | None
) -> tuple[Any, ...]:
    """``(preferred, scorers, inputs, scores, totals)``."""
    preferred = choice.candidates.preferred_at
    return (
        choice.candidates.names[preferred] if preferred >= 0 else None,
        choice.profile.scorer_names if scores is not None else (),
        inputs.astype(_FLOAT).tobytes(),
        b"" if scores is None else scores.astype(_FLOAT).tobytes(),
        b"" if totals is None else totals.astype(_FLOAT).tobytes(),
    )


def _unpack_choice(packed: Any) -> ChoiceRecord | None:
    """The chosen one, then by score and name."""
    if packed is None:
        return None
    names, chosen, left, dropped, others, preferred, scorers, *columns = packed
    inputs_of, scores_of, totals = (np.frombuffer(column, dtype=_FLOAT) for column in columns)
    inputs: list[list[float]] = inputs_of.reshape(len(_INPUTS) - 1, -1).T.tolist()
    scores: list[list[float]] = scores_of.reshape(len(scorers) or 1, -1).T.tolist()
    ranks = {at: rank for rank, at in enumerate(range(len(names)) if left is None else left)}
    whys = {at: (name, why) for at, name, why in dropped}
    records = []
    for at, name in enumerate(names):
        dropped_by, dropped_why = whys.get(at, ("", ""))
        rank = ranks.get(at) if len(totals) else None
        values = [*inputs[at], float(name == preferred)]
        records.append(
            CandidateRecord(
                node=name,
                is_chosen=at == chosen,
                dropped_by=dropped_by,
                dropped_why=dropped_why,
                inputs=dict(zip(_INPUTS, values, strict=True)),
                scores={} if rank is None else dict(zip(scorers, scores[rank], strict=True)),
                total=0.0 if rank is None else float(totals[rank]),
            )
        )
    records.sort(key=lambda one: (not one.is_chosen, one.dropped_by != "", -one.total, one.node))
    return ChoiceRecord(candidates=tuple(records), other_count=others or {})
