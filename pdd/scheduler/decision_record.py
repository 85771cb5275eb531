"""One decision: who could have had the request, what it rested on, and why it went so. Pure.

It is kept as it was decided, its numbers as the columns that they were decided by: most records are
never asked for, and what is not told need not be put in words. A record has the best candidates
with their inputs and scores, and counts the others by what dropped them. Of what is a column, seven
digits are kept.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import DEFAULT_TENANT, Path
from pdd.scheduler.policy.decider import PathInputs
from pdd.scheduler.policy.place import Considered
from pdd.scheduler.policy.profile import Choice
from pdd.scheduler.pools import INPUT_COUNT, Table

_CANDIDATE_COUNT_MAX = 16
_FLOAT = np.dtype(np.float32)
_INPUTS = (
    *("cached_tokens", "remainder_tokens", "completion_s", "blocks", "claim_blocks"),
    *("transfer_s", "inbound_s", "unpromised_blocks", "sequences", "load", "is_preferred"),
)
_NONE_OTHER: Mapping[str, int] = MappingProxyType({})
_DECISION_BYTES, _PATH_INPUTS_BYTES = 280, 360
_CHOICE_BYTES, _DROPPED_BYTES, _NAMES_BYTES = 190, 220, 430
"""What the objects of a kept decision take besides its columns (CPython 3.11, 64 bits)."""


class Outcome(StrEnum):
    """What was decided."""

    PLACED = "placed"
    WAITS = "waits"
    REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class Decision:
    """One decision about one attempt. Times on the driver's clock."""

    request_id: RequestId
    generation: int
    decided_s: float
    outcome: Outcome
    path: Path | None
    reason: str
    considered: Considered
    tenant: str = DEFAULT_TENANT
    waited_s: float = 0.0


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
    """A decision as it is told. ``repeated_count``: how often it was decided alike before, for a
    request that waits. ``prefill``, ``decode``: None where there was nothing to choose.
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


class PackedChoice(NamedTuple):
    """Columns are float32: ``inputs`` ``(INPUT_COUNT, names)``, ``marks`` as in ``Choice``, of the
    names that were not dropped. ``dropped``: position among ``names``, filter, why.
    ``other_count``: as in ``ChoiceRecord``."""

    names: tuple[NodeName, ...]
    chosen_at: int
    preferred: NodeName | None
    dropped: tuple[tuple[int, str, str], ...]
    other_count: Mapping[str, int]
    scorers: tuple[str, ...]
    inputs: bytes
    marks: bytes


class PackedDecision(NamedTuple):
    """``size_bytes``: what keeping it takes, about."""

    size_bytes: int
    decided_s: float
    generation: int
    outcome: Outcome
    path: Path | None
    reason: str
    tenant: str
    waited_s: float
    repeated_count: int
    prefill: PackedChoice | None
    decode: PackedChoice | None
    path_inputs: PathInputs | None


def pack(decision: Decision, *, repeated_count: int = 0) -> PackedDecision:
    """The candidates as they are now: their nodes go on changing."""
    considered = decision.considered
    prefill, decode = _pack_choice(considered.prefill), _pack_choice(considered.decode)
    size_bytes = _DECISION_BYTES + len(decision.reason)
    if considered.path_inputs is not None:
        size_bytes += _PATH_INPUTS_BYTES
    return PackedDecision(
        size_bytes + _size_bytes(prefill) + _size_bytes(decode),
        decision.decided_s,
        decision.generation,
        decision.outcome,
        decision.path,
        decision.reason,
        decision.tenant,
        decision.waited_s,
        repeated_count,
        prefill,
        decode,
        considered.path_inputs,
    )


def unpack(request_id: RequestId, packed: PackedDecision) -> DecisionRecord:
    """In words what ``pack`` made."""
    inputs = packed.path_inputs
    return DecisionRecord(
        request_id=request_id,
        generation=packed.generation,
        decided_s=packed.decided_s,
        outcome=packed.outcome,
        path=packed.path,
        reason=packed.reason,
        tenant=packed.tenant,
        waited_s=packed.waited_s,
        repeated_count=packed.repeated_count,
        prefill=_unpack_choice(packed.prefill),
        decode=_unpack_choice(packed.decode),
        path_inputs=(
            {} if inputs is None else {name: float(one) for name, one in inputs._asdict().items()}
        ),
    )


def _size_bytes(choice: PackedChoice | None) -> int:
    if choice is None:
        return 0
    size_bytes = _CHOICE_BYTES + len(choice.inputs) + len(choice.marks)
    if choice.other_count:
        size_bytes += _NAMES_BYTES
    return size_bytes + _DROPPED_BYTES * len(choice.dropped)


def _pack_choice(choice: Choice | None) -> PackedChoice | None:
    if choice is None:
        return None
    candidates, marks = choice.candidates, choice.marks
    if len(candidates) > _CANDIDATE_COUNT_MAX:
        return _pack_best(choice)
    return PackedChoice(
        candidates.names,
        choice.chosen_at,
        _preferred(choice),
        tuple((at, name, choice.why_dropped(at)) for at, name in choice.dropped.items())
        if choice.dropped
        else (),
        _NONE_OTHER,
        choice.profile.scorer_names,
        _packed(candidates.table[:INPUT_COUNT]),
        b"" if marks is None else _packed(marks),
    )


def _pack_best(choice: Choice) -> PackedChoice:
    """The chosen one, then by score, then those that were dropped."""
    candidates, marks, left = choice.candidates, choice.marks, choice.left
    ranks = np.arange(0)  # among those left
    if marks is not None:
        ranks = np.argsort(-marks[-1], kind="stable")[:_CANDIDATE_COUNT_MAX]
    best = (ranks if left is None else left[ranks]).tolist()
    if marks is not None and choice.chosen_at not in best:
        best[-1] = choice.chosen_at
        ranks[-1] = best[-1] if left is None else np.searchsorted(left, best[-1])
    room = _CANDIDATE_COUNT_MAX - len(best)
    dropped = list(choice.dropped)[:room]
    shown = [*best, *dropped]
    others = Counter(list(choice.dropped.values())[room:])
    left_count = len(candidates) - len(choice.dropped)
    if left_count > len(best):
        others[""] = left_count - len(best)
    return PackedChoice(
        itemgetter(*shown)(candidates.names),
        shown.index(choice.chosen_at) if choice.chosen_at >= 0 else -1,
        _preferred(choice),
        tuple(
            (place, choice.dropped[at], choice.why_dropped(at))
            for place, at in enumerate(dropped, start=len(best))
        ),
        others,
        choice.profile.scorer_names,
        _packed(candidates.table[:INPUT_COUNT, shown]),
        b"" if marks is None else _packed(marks[:, ranks]),
    )


def _preferred(choice: Choice) -> NodeName | None:
    at = choice.candidates.preferred_at
    return choice.candidates.names[at] if at >= 0 else None


def _packed(table: Table) -> bytes:
    return table.astype(_FLOAT).tobytes()


def _unpack_choice(packed: PackedChoice | None) -> ChoiceRecord | None:
    """The chosen one, then by score and name."""
    if packed is None:
        return None
    inputs = np.frombuffer(packed.inputs, dtype=_FLOAT).reshape(INPUT_COUNT, -1).T.tolist()
    marks = np.frombuffer(packed.marks, dtype=_FLOAT).reshape(len(packed.scorers) + 1, -1).T
    rows = iter(marks.tolist())
    whys = {at: (name, why) for at, name, why in packed.dropped}
    records = []
    for at, name in enumerate(packed.names):
        dropped_by, dropped_why = whys.get(at, ("", ""))
        scores = [] if dropped_by else next(rows, [])
        values = [*inputs[at], float(name == packed.preferred)]
        records.append(
            CandidateRecord(
                node=name,
                is_chosen=at == packed.chosen_at,
                dropped_by=dropped_by,
                dropped_why=dropped_why,
                inputs=dict(zip(_INPUTS, values, strict=True)),
                scores=dict(zip(packed.scorers, scores, strict=False)),
                total=scores[-1] if scores else 0.0,
            )
        )
    records.sort(key=lambda one: (not one.is_chosen, one.dropped_by != "", -one.total, one.node))
    return ChoiceRecord(candidates=tuple(records), other_count=packed.other_count)
