"""One decision: who could have had the request, what it rested on, and why it went so. Pure.

It is kept as it was decided, its numbers as the columns that they were decided by: most records are
never asked for, and what is not told need not be put in words. A record has the best candidates
with their inputs and scores, and counts the others by what dropped them. Of what is a column, seven
digits are kept.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import DEFAULT_TENANT, Path
from pdd.core.values import frozen
from pdd.scheduler.policy.decider import PathInputs
from pdd.scheduler.policy.filters import NAMES
from pdd.scheduler.policy.parts import INPUT_COUNT
from pdd.scheduler.policy.place import Considered
from pdd.scheduler.policy.profile import Choice
from pdd.scheduler.shown import show

_CANDIDATE_COUNT_MAX = 16
_FLOAT = np.dtype(np.float32)
_INPUTS = (
    *("cached_tokens", "remainder_tokens", "blocks", "claim_blocks", "completion_s", "transfer_s"),
    *("inbound_s", "is_preferred", "load", "unpromised_blocks", "sequences"),
)
"""What the first rows of ``policy.parts`` are called here."""
_NONE_OTHER: Mapping[str, int] = MappingProxyType({})
_HEAD_BYTES, _CHOICE_BYTES, _DROPPED_BYTES, _NAMES_BYTES = 430, 70, 220, 430
"""What the objects of a kept decision take besides its columns (CPython 3.11, 64 bits)."""


class Outcome(StrEnum):
    """What was decided."""

    PLACED = "placed"
    WAITS = "waits"
    REFUSED = "refused"


@frozen
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


class _Choice(NamedTuple):
    """A choice as it is kept. ``columns``: ``told`` of a ``Choice`` in float32. ``dropped``:
    position among ``names``, and why. ``other_count``: as in ``ChoiceRecord``."""

    names: tuple[NodeName, ...]
    chosen_at: int
    dropped: tuple[tuple[int, str], ...]
    other_count: Mapping[str, int]
    scorers: tuple[str, ...]
    columns: bytes


class _Head(NamedTuple):
    """What comes before the choices."""

    size_bytes: int
    decided_s: float
    generation: int
    outcome: Outcome
    path: Path | None
    reason: str
    tenant: str
    waited_s: float
    repeated_count: int
    path_inputs: bytes


Packed: TypeAlias = tuple[Any, ...]
"""The fields of a ``_Head``, then those of a ``_Choice`` for prefill and for decode, flat: as one
object each they would be what Python's collector looks at most often."""
_HEAD_COUNT, _CHOICE_COUNT = len(_Head._fields), len(_Choice._fields)
_NO_CHOICE: Packed = (None,) * _CHOICE_COUNT
_PATH_INPUTS = struct.Struct(f"<{len(PathInputs._fields)}d")


def pack(decision: Decision, *, repeated_count: int = 0) -> Packed:
    """The candidates as they are now: their nodes go on changing."""
    considered = decision.considered
    prefill, decode = _pack_choice(considered.prefill), _pack_choice(considered.decode)
    inputs = considered.path_inputs
    path_inputs = b"" if inputs is None else _PATH_INPUTS.pack(*inputs)
    own_bytes = _HEAD_BYTES + len(decision.reason) + len(path_inputs)
    return (
        own_bytes + _size_bytes(prefill) + _size_bytes(decode),
        decision.decided_s,
        decision.generation,
        decision.outcome,
        decision.path,
        decision.reason,
        decision.tenant,
        decision.waited_s,
        repeated_count,
        path_inputs,
        *prefill,
        *decode,
    )


def head(packed: Packed) -> _Head:
    """All but the choices."""
    return _Head._make(packed[:_HEAD_COUNT])


def size_bytes(packed: Packed) -> int:
    """What keeping it takes, about."""
    size: int = packed[0]
    return size


def decided_s(packed: Packed) -> float:
    """When it was made."""
    moment_s: float = packed[1]
    return moment_s


def unpack(request_id: RequestId, packed: Packed) -> DecisionRecord:
    """In words what ``pack`` made."""
    told, choices = head(packed), packed[_HEAD_COUNT:]
    values = _PATH_INPUTS.unpack(told.path_inputs) if told.path_inputs else ()
    return DecisionRecord(
        request_id=request_id,
        generation=told.generation,
        decided_s=told.decided_s,
        outcome=told.outcome,
        path=told.path,
        reason=told.reason,
        tenant=told.tenant,
        waited_s=told.waited_s,
        repeated_count=told.repeated_count,
        prefill=_unpack_choice(choices[:_CHOICE_COUNT]),
        decode=_unpack_choice(choices[_CHOICE_COUNT:]),
        path_inputs=dict(zip(PathInputs._fields, values, strict=False)),
    )


def _size_bytes(choice: Packed) -> int:
    if choice is _NO_CHOICE:
        return 0
    _, _, dropped, others, _, columns = choice
    taken_bytes = _CHOICE_BYTES + len(columns) + _DROPPED_BYTES * len(dropped)
    return taken_bytes + _NAMES_BYTES if others else taken_bytes


def _pack_choice(choice: Choice | None) -> Packed:
    if choice is None:
        return _NO_CHOICE
    names = choice.candidates.names
    if len(names) > _CANDIDATE_COUNT_MAX:
        return _pack_best(choice)
    return (
        names,
        choice.chosen_at,
        tuple([(at, choice.why_dropped(at)) for at in choice.dropped])
        if choice.left_count < len(names)
        else (),
        _NONE_OTHER,
        choice.profile.scorer_names,
        choice.told.astype(_FLOAT).tobytes(),
    )


def _pack_best(choice: Choice) -> Packed:
    """The chosen one, then by score, then those that were dropped."""
    names, told = choice.candidates.names, choice.told
    positions = np.empty(_CANDIDATE_COUNT_MAX, dtype=np.int64)
    columns = np.empty((len(told), _CANDIDATE_COUNT_MAX), dtype=_FLOAT)
    best_count = show(told, choice.chosen_at, positions, columns)
    shown: list[int] = positions.tolist()
    dropped = choice.dropped
    others = Counter(dropped.values())
    others.subtract([dropped[at] for at in shown[best_count:]])
    others[""] = choice.left_count - best_count
    return (
        itemgetter(*shown)(names),
        shown.index(choice.chosen_at) if choice.chosen_at >= 0 else -1,
        tuple([(at, choice.why_dropped(shown[at])) for at in range(best_count, len(shown))]),
        +others,
        choice.profile.scorer_names,
        columns.tobytes(),
    )


def _unpack_choice(fields: Packed) -> ChoiceRecord | None:
    """The chosen one, then by score and name."""
    if fields == _NO_CHOICE:
        return None
    packed = _Choice._make(fields)
    row_count = INPUT_COUNT + len(packed.scorers) + 2
    columns = np.frombuffer(packed.columns, dtype=_FLOAT).reshape(row_count, -1)
    whys = dict(packed.dropped)
    records = []
    for at, (name, values) in enumerate(zip(packed.names, columns.T.tolist(), strict=True)):
        inputs, (*scores, total, dropped_by) = values[:INPUT_COUNT], values[INPUT_COUNT:]
        is_left = dropped_by < 0
        records.append(
            CandidateRecord(
                node=name,
                is_chosen=at == packed.chosen_at,
                dropped_by="" if is_left else NAMES[int(dropped_by)],
                dropped_why=whys.get(at, ""),
                inputs=dict(zip(_INPUTS, inputs, strict=True)),
                scores=dict(zip(packed.scorers, scores, strict=True)) if is_left else {},
                total=total if is_left else 0.0,
            )
        )
    records.sort(key=lambda one: (not one.is_chosen, one.dropped_by != "", -one.total, one.node))
    return ChoiceRecord(candidates=tuple(records), other_count=packed.other_count)
