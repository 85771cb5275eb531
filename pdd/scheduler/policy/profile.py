"""A profile runs its parts over the candidates of one role, and keeps what each of them said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd.core.identity import NodeName
from pdd.scheduler.policy.candidate import Candidate, Question
from pdd.scheduler.policy.filters import ALWAYS, FILTERS, Filter
from pdd.scheduler.policy.picker import pick
from pdd.scheduler.policy.scorers import SCORERS, Scorer
from pdd.scheduler.settings import PolicySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``chosen`` is None if a filter dropped the last candidate; ``emptied_by`` names it then.

    ``dropped``: node to (filter, why). ``scores``: node to scorer to value in [0, 1], unweighted;
    of those that were left. ``totals``: node to weighted sum.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    emptied_by: str = ""
    dropped: Mapping[NodeName, tuple[str, str]]
    scores: Mapping[NodeName, Mapping[str, float]]
    totals: Mapping[NodeName, float]


class Profile:
    """Filters, scorers with their weights, and the picker."""

    def __init__(
        self,
        *,
        filters: Sequence[str],
        scorers: Mapping[str, float],
        settings: PolicySettings,
    ) -> None:
        """Raises KeyError for a name that no part has; ``pdd.config`` refuses those at start."""
        self._filters: list[tuple[str, Filter]] = [
            *ALWAYS.items(),
            *((name, FILTERS[name]) for name in filters),
        ]
        self._scorers: list[tuple[str, Scorer, float]] = [
            (name, SCORERS[name], weight) for name, weight in scorers.items() if weight > 0.0
        ]
        self._settings = settings

    def choose(self, candidates: Sequence[Candidate], question: Question, *, key: bytes) -> Choice:
        """Pure. ``key``: what the picker keeps together among equals."""
        dropped: dict[NodeName, tuple[str, str]] = {}
        left = list(candidates)
        emptied_by = ""
        for name, part in self._filters:
            if not left:
                break
            if not (out := part(left, question, self._settings)):
                continue
            dropped |= {node: (name, why) for node, why in out.items()}
            left = [candidate for candidate in left if candidate.name not in out]
            emptied_by = "" if left else name
        if not left:
            return Choice(
                candidates=tuple(candidates),
                chosen=None,
                emptied_by=emptied_by,
                dropped=dropped,
                scores={},
                totals={},
            )
        scores: dict[NodeName, dict[str, float]] = {candidate.name: {} for candidate in left}
        totals = [0.0] * len(left)
        for name, scorer, weight in self._scorers:
            for index, value in enumerate(scorer(left, question, self._settings)):
                assert 0.0 <= value <= 1.0, f"scorer {name} gave {value} for {left[index].name}"
                scores[left[index].name][name] = value
                totals[index] += weight * value
        names = [candidate.name for candidate in left]
        chosen = left[pick(names, totals, key=key)]
        return Choice(
            candidates=tuple(candidates),
            chosen=chosen,
            dropped=dropped,
            scores=scores,
            totals=dict(zip(names, totals, strict=True)),
        )
