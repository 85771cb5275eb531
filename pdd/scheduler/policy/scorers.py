"""Scorers: how good each candidate is in one respect, from 0 to 1, 1 being the best.

Each is one idea, over all candidates at once: ``(candidate count,)``, or one number for all; a
profile weighs and adds them.
"""

from collections.abc import Callable, Mapping

import numpy as np

from pdd.scheduler.policy.candidate import Candidates, Question
from pdd.scheduler.pools import SEQUENCES_MAX, USABLE, Column
from pdd.scheduler.settings import PolicySettings

Scorer = Callable[[Candidates, Question, PolicySettings], Column | float]

_FLOOR_S = 0.001
"""Times below a millisecond are as good as equal."""


def completion(candidates: Candidates, question: Question, _: PolicySettings) -> Column | float:
    """Predicted completion of the prompt: the quickest has 1, one that takes twice as long 1/2."""
    return _quickest_over(candidates.completion_s)


def affinity(
    candidates: Candidates, question: Question, settings: PolicySettings
) -> Column | float:
    """1 for the node that this prefix, conversation or caller's key prefers, while it has room."""
    at = candidates.preferred_at
    if at < 0 or candidates.load[at] > settings.spill_above_fraction:
        return 0.0
    scores = np.zeros(len(candidates))
    scores[at] = 1.0
    return scores


def prefix(candidates: Candidates, question: Question, _: PolicySettings) -> Column | float:
    """The part of the prompt that the node holds already."""
    tokens = max(question.token_count, 1)
    held: Column = candidates.cached_tokens / tokens
    return held


def free_kv(candidates: Candidates, question: Question, _: PolicySettings) -> Column | float:
    """The part of the node's blocks that would be left once this request has grown as expected."""
    left: Column = (candidates.unpromised_blocks - candidates.blocks) / candidates.state[USABLE]
    np.maximum(left, 0.0, out=left)
    return left


def running(candidates: Candidates, question: Question, _: PolicySettings) -> Column | float:
    """The part of the node's sequences that are free."""
    free: Column = 1.0 - candidates.sequences / candidates.state[SEQUENCES_MAX]
    np.maximum(free, 0.0, out=free)
    return free


def link(candidates: Candidates, question: Question, _: PolicySettings) -> Column | float:
    """Predicted time of the transfer, with what is on its way already: the quickest has 1."""
    return _quickest_over(candidates.transfer_s + candidates.inbound_s)


def _quickest_over(times_s: Column) -> Column:
    floored = np.maximum(times_s, _FLOOR_S)
    scores: Column = floored[floored.argmin()] / floored
    return scores


SCORERS: Mapping[str, Scorer] = {
    "completion": completion,
    "affinity": affinity,
    "prefix": prefix,
    "free_kv": free_kv,
    "running": running,
    "link": link,
}
