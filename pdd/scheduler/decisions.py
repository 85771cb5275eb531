"""One record per decision: who could have had the request, what it rested on, and why it went so.

Kept for an hour, and no more than a bound; ``pdd why REQUEST`` reads them. A record holds the best
candidates with their inputs and scores, and counts the others by what dropped them.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import DEFAULT_TENANT, Path
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

    ``considered``: what it rests on; ``choices`` makes it readable. ``repeated_count``: how often
    it was decided alike before, for a request that waits.
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

    @property
    def candidate_count(self) -> int:
        """Candidates of both roles; what a record weighs."""
        return sum(
            len(choice.candidates)
            for choice in (self.considered.prefill, self.considered.decode)
            if choice is not None
        )

    def choices(self) -> tuple[ChoiceRecord | None, ChoiceRecord | None]:
        """``(prefill, decode)``; None where there was nothing to choose."""
        return _record(self.considered.prefill), _record(self.considered.decode)


class DecisionLog:
    """The decisions of the last hour, by request. Candidates are kept as they were measured, and
    made readable when somebody asks: most are never asked for."""

    def __init__(self, *, memory_s: float, count_max: int, candidate_count_max: int) -> None:
        """``count_max``: requests, ``candidate_count_max``: nodes in all their decisions; beyond
        either the oldest requests are forgotten."""
        self._memory_s = memory_s
        self._count_max = count_max
        self._candidate_count_max = candidate_count_max
        self._candidate_count = 0
        self._kept: OrderedDict[RequestId, list[Decision]] = OrderedDict()

    def keep(self, decision: Decision) -> None:
        """Add one. A request that waits for the same attempt as before only counts up."""
        kept = self._kept.pop(decision.request_id, [])
        last = kept[-1] if kept else None
        self._kept[decision.request_id] = kept
        self._candidate_count += decision.candidate_count
        if (
            last is not None
            and last.outcome is decision.outcome is Outcome.WAITS
            and last.generation == decision.generation
        ):
            decision = replace(decision, repeated_count=last.repeated_count + 1)
            self._candidate_count -= kept.pop().candidate_count
        elif len(kept) >= _RECORD_COUNT_PER_REQUEST_MAX:
            self._candidate_count -= kept.pop(1).candidate_count  # the first says how it began
        kept.append(decision)
        while (
            len(self._kept) > self._count_max or self._candidate_count > self._candidate_count_max
        ):
            self._drop_oldest()
        self._forget(decision.decided_s)

    def of(self, request_id: RequestId, *, now_s: float) -> tuple[Decision, ...]:
        """The decisions about one request, oldest first; empty if none is remembered."""
        self._forget(now_s)
        return tuple(self._kept.get(request_id, ()))

    def __len__(self) -> int:
        return len(self._kept)

    def _forget(self, now_s: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if now_s - oldest[-1].decided_s <= self._memory_s:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, decisions = self._kept.popitem(last=False)
        self._candidate_count -= sum(decision.candidate_count for decision in decisions)


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
        name = candidate.name
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
                    "unpromised_blocks": candidate.unpromised_blocks,
                    "sequences": candidate.sequence_count,
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
