"""Scorers: how good each candidate is in one respect, from 0 to 1, 1 being the best.

Each is one idea; a profile weighs and adds them.
"""

from collections.abc import Callable, Mapping, Sequence

from pdd.scheduler.policy.candidate import Candidate, Question
from pdd.scheduler.settings import PolicySettings

Scorer = Callable[[Sequence[Candidate], Question, PolicySettings], list[float]]

_FLOOR_S = 0.001
"""Times below a millisecond are as good as equal."""


def completion(
    candidates: Sequence[Candidate], question: Question, _: PolicySettings
) -> list[float]:
    """Predicted completion of the prompt: the quickest has 1, one that takes twice as long 1/2."""
    times = [max(candidate.completion_s, _FLOOR_S) for candidate in candidates]
    best = min(times)
    return [best / time for time in times]


def affinity(
    candidates: Sequence[Candidate], question: Question, settings: PolicySettings
) -> list[float]:
    """1 for the node that this prefix, conversation or caller's key prefers, while it has room."""
    return [
        1.0 if candidate.is_preferred and candidate.load <= settings.spill_above_fraction else 0.0
        for candidate in candidates
    ]


def prefix(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> list[float]:
    """The part of the prompt that the node holds already."""
    tokens = question.token_count
    return [candidate.cached_tokens / tokens if tokens else 0.0 for candidate in candidates]


def free_kv(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> list[float]:
    """The part of the node's blocks that would be left once this request has grown as expected."""
    return [
        max(candidate.unpromised_blocks - candidate.blocks, 0) / candidate.node.usable_block_count
        for candidate in candidates
    ]


def running(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> list[float]:
    """The part of the node's sequences that are free."""
    return [
        max(1.0 - candidate.sequence_count / candidate.node.max_num_seqs, 0.0)
        for candidate in candidates
    ]


def link(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> list[float]:
    """Predicted time of the transfer, with what is on its way already: the quickest has 1."""
    times = [max(candidate.transfer_s + candidate.inbound_s, _FLOOR_S) for candidate in candidates]
    best = min(times)
    return [best / time for time in times]


SCORERS: Mapping[str, Scorer] = {
    "completion": completion,
    "affinity": affinity,
    "prefix": prefix,
    "free_kv": free_kv,
    "running": running,
    "link": link,
}
