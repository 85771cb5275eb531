"""A profile runs its parts over the candidates of one role, and keeps what each of them said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pdd.scheduler.policy.candidate import Candidate, Candidates, Positions, Question
from pdd.scheduler.policy.filters import ALWAYS, FILTERS, Filter
from pdd.scheduler.policy.picker import pick
from pdd.scheduler.policy.scorers import SCORERS, Scorer
from pdd.scheduler.pools import Column, Table
from pdd.scheduler.settings import PolicySettings


@dataclass(slots=True, kw_only=True)
class Choice:
    """What was chosen from ``candidates`` and why. Positions are those of ``candidates``.

    ``chosen_at`` is -1 and ``chosen`` None if a filter dropped the last candidate; ``emptied_by``
    names it then. ``dropped``: position to filter. ``left``: positions that no filter dropped; None
    for all of them. ``marks``: ``(scorer + 1, candidate left)``, of each scorer unweighted, in
    [0, 1], and their weighted sums in the last row; None if nobody was left.
    """

    profile: "Profile"
    question: Question
    candidates: Candidates
    chosen_at: int = -1
    chosen: Candidate | None = None
    emptied_by: str = ""
    dropped: dict[int, str] = field(default_factory=dict)
    left: Positions | None = None
    marks: Table | None = None

    @property
    def scores(self) -> Table | None:
        """``(scorer, candidate left)``."""
        return None if self.marks is None else self.marks[:-1]

    @property
    def totals(self) -> Column | None:
        """``(candidate left,)``."""
        return None if self.marks is None else self.marks[-1]

    def why_dropped(self, position: int) -> str:
        """In words, for those that were dropped."""
        return self.profile.why_dropped(
            self.dropped[position], self.candidates.at(position), self.question
        )


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
        self._drops = [(name, part.drops) for name, part in self._filters.items()]
        weights = {name: weight for name, weight in scorers.items() if weight > 0.0}
        self._scorers: list[Scorer] = [SCORERS[name] for name in weights]
        self._weights = np.array(list(weights.values()))
        self._settings = settings
        self.scorer_names = tuple(weights)

    def choose(self, candidates: Candidates, question: Question, *, key: bytes) -> Choice:
        """Pure. ``key``: what the picker keeps together among equals."""
        choice = Choice(profile=self, question=question, candidates=candidates)
        remaining, settings = candidates, self._settings
        for name, drops in self._drops:
            if not len(remaining):
                break
            mask = drops(remaining, question, settings)
            if mask is None or not np.count_nonzero(mask):
                continue
            away, kept = mask.nonzero()[0], (~mask).nonzero()[0]
            remaining = remaining.only(kept)
            if choice.left is None:
                choice.left = kept
            else:
                away, choice.left = choice.left[away], choice.left[kept]
            choice.dropped.update(dict.fromkeys(away.tolist(), name))
            choice.emptied_by = "" if len(remaining) else name
        if not len(remaining):
            return choice
        choice.marks = marks = np.empty((len(self._scorers) + 1, len(remaining)))
        for scorer, row in zip(self._scorers, marks, strict=False):
            scorer(remaining, question, settings, row)
        np.dot(self._weights, marks[:-1], out=marks[-1])
        at = pick(remaining.names, marks[-1], key=key)
        # Of the chosen one: a score above the range, or none at all, would be what is chosen.
        for name, score in zip(self.scorer_names, marks[:, at].tolist(), strict=False):
            assert 0.0 <= score <= 1.0, f"scorer {name} gave {score}"
        choice.chosen_at = at if choice.left is None else int(choice.left[at])
        choice.chosen = remaining.at(at)
        return choice

    def why_dropped(self, name: str, candidate: Candidate, question: Question) -> str:
        """What a filter says of a candidate that it dropped."""
        return self._filters[name].why(candidate, question, self._settings)
