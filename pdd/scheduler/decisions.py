"""One record per decision: who could have had the request, what it rested on, and why it went so.

Kept for an hour, and no more than a bound; ``pdd why REQUEST`` reads them. A record holds the best
candidates with their inputs and scores, and counts the others by what dropped them.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Path
from pdd.scheduler.policy.decider import PathInputs
from pdd.scheduler.policy.place import Considered
from pdd.scheduler.policy.profile import Choice

_CANDIDATE_COUNT_MAX = 16
_RECORD_COUNT_PER_REQUEST_MAX = 16


class Outcome(StrEnum):
    """What was decided."""

    PLACED = "placed"
    WAITS = "waits"
    REFUSED = "refused"


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
    prefill: ChoiceRecord | None = None
    decode: ChoiceRecord | None = None
    path_inputs: PathInputs | None = None
    waited_s: float = 0.0
    repeated_count: int = 0


@dataclass(slots=True)
class _Kept:
    """What was considered, as it was; made into a record when somebody asks."""

    decisions: list[Decision]
    kept_s: float


class DecisionLog:
    """The decisions of the last hour, by request."""

    def __init__(self, *, memory_s: float, count_max: int) -> None:
        """``count_max``: requests with decisions; beyond it the oldest are forgotten."""
        self._memory_s = memory_s
        self._count_max = count_max
        self._kept: OrderedDict[RequestId, _Kept] = OrderedDict()

    def keep(self, decision: Decision) -> None:
        """Add one. A request that waits for the same reason as before only counts up."""
        self._forget(decision.decided_s)
        if self._count_max == 0:
            return
        kept = self._kept.pop(decision.request_id, None)
        if kept is None:
            kept = _Kept(decisions=[], kept_s=decision.decided_s)
            if len(self._kept) >= self._count_max:
                self._kept.popitem(last=False)
        self._kept[decision.request_id] = kept
        kept.kept_s = decision.decided_s
        last = kept.decisions[-1] if kept.decisions else None
        if (
            last is not None
            and last.outcome is decision.outcome is Outcome.WAITS
            and last.generation == decision.generation
        ):
            decision = replace(decision, repeated_count=last.repeated_count + 1)
            kept.decisions[-1] = decision
            return
        if len(kept.decisions) >= _RECORD_COUNT_PER_REQUEST_MAX:
            del kept.decisions[1]  # the first one says how it began
        kept.decisions.append(decision)

    def of(self, request_id: RequestId, *, now_s: float) -> tuple[Decision, ...]:
        """The decisions about one request, oldest first; empty if none is remembered."""
        self._forget(now_s)
        kept = self._kept.get(request_id)
        return tuple(kept.decisions) if kept is not None else ()

    def __len__(self) -> int:
        return len(self._kept)

    def _forget(self, now_s: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if now_s - oldest.kept_s <= self._memory_s:
                return
            self._kept.popitem(last=False)


def records(considered: Considered) -> tuple[ChoiceRecord | None, ChoiceRecord | None]:
    """``(prefill, decode)`` as they are at this moment: candidates point at nodes that change."""
    return _record(considered.prefill), _record(considered.decode)


def _record(choice: Choice | None) -> ChoiceRecord | None:
    if choice is None:
        return None
    totals = choice.totals
    candidates = choice.candidates
    if len(candidates) > 1:
        candidates = tuple(
            sorted(
                candidates,
                key=lambda one: (one is not choice.chosen, -totals.get(one.name, -1.0), one.name),
            )
        )
    shown = []
    for candidate in candidates[:_CANDIDATE_COUNT_MAX]:
        name, node = candidate.name, candidate.node
        dropped_by, dropped_why = choice.dropped.get(name, ("", ""))
        shown.append(
            CandidateRecord(
                node=name,
                is_chosen=candidate is choice.chosen,
                dropped_by=dropped_by,
                dropped_why=dropped_why,
                inputs={
                    "cached_tokens": candidate.cached_tokens,
                    "remainder_tokens": candidate.remainder_tokens,
                    "completion_s": candidate.completion_s,
                    "blocks": candidate.blocks,
                    "claim_blocks": candidate.claim,
                    "unpromised_blocks": node.unleased_block_count(),
                    "sequences": len(node.leases),
                    "load": candidate.load,
                    "transfer_s": candidate.transfer_s,
                    "inbound_s": candidate.inbound_s,
                    "is_preferred": float(candidate.is_preferred),
                },
                scores=choice.scores.get(name, {}),
                total=totals.get(name, 0.0),
            )
        )
    others = Counter(
        choice.dropped.get(candidate.name, ("", ""))[0]
        for candidate in candidates[_CANDIDATE_COUNT_MAX:]
    )
    return ChoiceRecord(candidates=tuple(shown), other_count=dict(others))
