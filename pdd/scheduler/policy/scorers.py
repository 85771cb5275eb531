"""Scorers: how good each candidate is in one respect, from 0 to 1, 1 being the best.

Each is one idea, over all candidates at once: it writes ``out``, ``(candidate count,)``; a profile
weighs and adds them.
"""

from collections.abc import Callable, Mapping

import numpy as np

from pdd.scheduler.policy.candidate import Candidates, Question
from pdd.scheduler.pools import SEQUENCES_MAX, USABLE, Column
from pdd.scheduler.settings import PolicySettings

Scorer = Callable[[Candidates, Question, PolicySettings, Column], object]

_FLOOR_S = 0.001
"""Times below a millisecond are as good as equal."""


def completion(candidates: Candidates, question: Question, _: PolicySettings, out: Column) -> None:
    """Predicted completion of the prompt: the quickest has 1, one that takes twice as long 1/2."""
    np.maximum(candidates.completion_s, _FLOOR_S, out=out)
    _quickest_over(out)


def affinity(
    candidates: Candidates, question: Question, settings: PolicySettings, out: Column
) -> None:
    """1 for the node that this prefix, conversation or caller's key prefers, while it has room."""
    out.fill(0.0)
    at = candidates.preferred_at
    if at >= 0 and candidates.load[at] <= settings.spill_above_fraction:
        out[at] = 1.0


def prefix(candidates: Candidates, question: Question, _: PolicySettings, out: Column) -> None:
    """The part of the prompt that the node holds already."""
    np.divide(candidates.cached_tokens, max(question.token_count, 1), out=out)


def free_kv(candidates: Candidates, question: Question, _: PolicySettings, out: Column) -> None:
    """The part of the node's blocks that would be left once this request has grown as expected."""
    np.subtract(candidates.unpromised_blocks, candidates.blocks, out=out)
    np.divide(out, candidates.table[USABLE], out=out)
    np.maximum(out, 0.0, out=out)


def running(candidates: Candidates, question: Question, _: PolicySettings, out: Column) -> None:
    """The part of the node's sequences that are free."""
    np.divide(candidates.sequences, candidates.table[SEQUENCES_MAX], out=out)
    np.subtract(1.0, out, out=out)
    np.maximum(out, 0.0, out=out)


def link(candidates: Candidates, question: Question, _: PolicySettings, out: Column) -> None:
    """Predicted time of the transfer, with what is on its way already: the quickest has 1."""
    np.add(candidates.transfer_s, candidates.inbound_s, out=out)
    np.maximum(out, _FLOOR_S, out=out)
    _quickest_over(out)


def _quickest_over(times_s: Column) -> None:
    np.divide(times_s[times_s.argmin()], times_s, out=times_s)


SCORERS: Mapping[str, Scorer] = {
    "completion": completion,
    "affinity": affinity,
    "prefix": prefix,
    "free_kv": free_kv,
    "running": running,
    "link": link,
}
