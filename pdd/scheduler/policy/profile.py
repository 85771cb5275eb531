"""A profile runs its parts over the candidates of one role, and keeps what each of them said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdd.scheduler.policy import parts
from pdd.scheduler.policy.candidate import Candidate, Candidates, Question
from pdd.scheduler.policy.filters import ALWAYS, FILTERS, NAMES, Filter
from pdd.scheduler.policy.parts import Column, Table
from pdd.scheduler.policy.picker import pick
from pdd.scheduler.policy.scorers import SCORERS
from pdd.scheduler.settings import PolicySettings


@dataclass(slots=True, kw_only=True)
class Choice:
    """What was chosen from ``candidates`` and why. Positions are those of ``candidates``.

    ``told``: of each, what the decision rests on and what every part said, as ``parts.choose``
    writes it. ``chosen_at`` is -1 and ``chosen`` None if a filter dropped the last candidate;
    ``emptied_by`` names it then. ``left_count``: candidates that no filter dropped.
    """

    profile: "Profile"
    question: Question
    candidates: Candidates
    told: Table
    chosen_at: int
    chosen: Candidate | None
    left_count: int
    emptied_by: str

    @property
    def scores(self) -> Table:
        """``(scorer, candidate)``, unweighted, in [0, 1]; 0 for one that was dropped."""
        return self.told[parts.INPUT_COUNT : -2]

    @property
    def totals(self) -> Column:
        """``(candidate,)``, the weighted sum of its scores; -inf for one that was dropped."""
        totals: Column = self.told[-2]
        return totals

    @property
    def dropped(self) -> dict[int, str]:
        """Position to filter, of those that were dropped."""
        if self.left_count == len(self.candidates):
            return {}
        numbers = enumerate(self.told[-1].tolist())
        return {position: NAMES[number] for position, number in numbers if number >= 0}

    def why_dropped(self, position: int) -> str:
        """In words, for those that were dropped."""
        name = NAMES[int(self.told[-1, position])]
        return self.profile.why_dropped(name, self.candidates.at(position), self.question)


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
        self._filters: dict[str, Filter] = {**ALWAYS, **{name: FILTERS[name] for name in filters}}
        weights = {name: weight for name, weight in scorers.items() if weight > 0.0}
        numbers = [part.number for part in self._filters.values()]
        self._filter_numbers = np.array(numbers, dtype=np.int64)
        self._scorer_numbers = np.array([SCORERS[name] for name in weights], dtype=np.int64)
        self._weights = np.array(list(weights.values()), dtype=np.float64)
        self._row_count = parts.INPUT_COUNT + len(weights) + 2
        self._settings = settings
        self.limits = limits_of(settings)
        self.scorer_names = tuple(weights)

    def choose(self, candidates: Candidates, question: Question, *, key: bytes) -> Choice:
        """``key``: what the picker keeps together among equals. Of ``candidates``, it changes in
        ``asked`` what concerns all that are left."""
        told = np.empty((self._row_count, len(candidates.pool.names)))
        at, equal_count, left_count, last, faulty = parts.choose(
            candidates.table,
            candidates.pool.first,
            candidates.asked,
            self.limits,
            self._filter_numbers,
            self._scorer_numbers,
            self._weights,
            told,
        )
        assert faulty < 0, f"{self.scorer_names[faulty]} gave no score: {told}"
        if equal_count > 1:
            at = pick(candidates.pool.names, told[-2], key=key)
        return Choice(
            profile=self,
            question=question,
            candidates=candidates,
            told=told,
            chosen_at=at,
            chosen=candidates.at(at) if at >= 0 else None,
            left_count=left_count,
            emptied_by="" if left_count or last < 0 else NAMES[last],
        )

    def why_dropped(self, name: str, candidate: Candidate, question: Question) -> str:
        """What a filter says of a candidate that it dropped."""
        return self._filters[name].why(candidate, question, self._settings)


def limits_of(settings: PolicySettings) -> Column:
    """As ``parts`` reads them."""
    return np.array(
        (
            settings.spill_above_fraction,
            settings.headroom_fraction,
            settings.large_fraction,
            settings.large_share_fraction,
            settings.inbound_full_s,
        ),
        dtype=np.float64,
    )
