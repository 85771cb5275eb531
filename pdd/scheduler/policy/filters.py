"""Filters: which candidates cannot or should not have the request, and why.

Each is one idea in two functions: which of the candidates it drops, over all of them at once, and
why it dropped one, in words, for those that somebody reads of. ``ALWAYS`` are in force whatever the
configuration says: without them a decision could be wrong. ``FILTERS`` are put together by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pdd.core.identity import Forking
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.candidate import Candidate, Candidates, Mask, Question
from pdd.scheduler.pools import (
    GROWTH,
    LONG_BLOCKS,
    LONG_COUNT,
    SEQUENCES_MAX,
    TOKENS_MAX,
    USABLE,
)
from pdd.scheduler.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class Filter:
    """``drops``: None where it has nothing to say of anybody."""

    drops: Callable[[Candidates, Question, PolicySettings], Mask | None]
    why: Callable[[Candidate, Question, PolicySettings], str]


def rested(candidates: Candidates, question: Question, _: PolicySettings) -> Mask | None:
    """An engine that has just failed this request gets a pause from it."""
    if not question.avoid:
        return None
    return candidates.which(lambda position: candidates.nodes[position].identity in question.avoid)


def _why_rested(_: Candidate, question: Question, __: PolicySettings) -> str:
    return "its engine has just failed this request"


def holds_longest(candidates: Candidates, question: Question, _: PolicySettings) -> Mask | None:
    """A sequence must be able to reach its end where it runs."""
    is_long = candidates.token_count_max > candidates.bounds.tokens
    if not is_long and candidates.holds_choices is None:
        return None
    dropped: Mask = candidates.table[TOKENS_MAX] < candidates.token_count_max
    if candidates.holds_choices is not None:
        dropped |= ~candidates.holds_choices
    return dropped


def _why_holds_longest(candidate: Candidate, question: Question, _: PolicySettings) -> str:
    node = candidate.node
    wanted = question.token_count + question.longest_output(node.role)
    if wanted > node.token_count_max():
        return f"{wanted} tokens wanted, it holds {node.token_count_max()}"
    return why_not_choices(node, question)


def why_not_choices(node: Node, question: Question) -> str:
    """Why a node could not run all choices of a request, were it empty."""
    if node.forking is Forking.NONE:
        return "it runs one choice per request"
    blocks = question.blocks_on(node, output_token_count=question.request.sampling.max_tokens)
    return (
        f"{question.choice_count} choices want {question.choice_count} sequences and {blocks} "
        f"blocks, it holds {node.max_num_seqs} and {node.usable_block_count}"
    )


def fits(candidates: Candidates, question: Question, _: PolicySettings) -> Mask | None:
    """Blocks and sequences that are promised to others are not there."""
    bounds = candidates.bounds
    if candidates.blocks_max <= bounds.unpromised and question.choice_count <= bounds.sequences:
        return None
    sequences_after = candidates.sequences + question.choice_count
    dropped: Mask = candidates.unpromised_blocks < candidates.blocks
    dropped |= sequences_after > candidates.table[SEQUENCES_MAX]
    return dropped


def _why_fits(candidate: Candidate, question: Question, _: PolicySettings) -> str:
    if candidate.unpromised_blocks < candidate.blocks:
        return f"{candidate.blocks} blocks wanted, {candidate.unpromised_blocks} unpromised"
    if candidate.sequence_count >= candidate.node.max_num_seqs:
        return f"it runs {candidate.sequence_count} sequences, its most"
    return (
        f"{question.choice_count} sequences wanted, it runs {candidate.sequence_count} of "
        f"{candidate.node.max_num_seqs}"
    )


def unheld(candidates: Candidates, question: Question, _: PolicySettings) -> Mask | None:
    """Room that is kept for one who waits is not given to others."""
    held = question.held
    if not held:
        return None
    return candidates.which(
        lambda position: (
            candidates.names[position] in held
            and held[candidates.names[position]] < candidates.blocks[position]
        )
    )


def _why_unheld(_: Candidate, question: Question, __: PolicySettings) -> str:
    return "its room is kept for a request that waits longer"


def headroom(candidates: Candidates, question: Question, settings: PolicySettings) -> Mask | None:
    """Leave room for those that run to grow into, as far as they can grow at all."""
    bounds, fraction = candidates.bounds, settings.headroom_fraction
    if bounds.unpromised - candidates.blocks_max >= round(fraction * bounds.usable):
        return None
    left = candidates.unpromised_blocks - candidates.blocks
    reserve_max = np.rint(fraction * candidates.table[USABLE])
    dropped: Mask = left < reserve_max
    if np.count_nonzero(dropped):
        growth = candidates.table[GROWTH] + candidates.claim - candidates.blocks
        dropped &= (left < growth) & (candidates.sequences > 0)
    return dropped


def _why_headroom(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    growth = candidate.growth_blocks + candidate.claim - candidate.blocks
    reserve = min(growth, round(settings.headroom_fraction * candidate.node.usable_block_count))
    left = candidate.unpromised_blocks - candidate.blocks
    return f"it would have {max(left, 0)} blocks left, {reserve} are kept"


def large_share(
    candidates: Candidates, question: Question, settings: PolicySettings
) -> Mask | None:
    """Large and long requests may not take a whole node between them.

    One alone may have what it needs: it could never run otherwise.
    """
    long_count, usable = candidates.table[LONG_COUNT], candidates.table[USABLE]
    if not np.count_nonzero(long_count):
        return None
    concerned: Mask = long_count > 0
    if not question.is_long:
        concerned &= candidates.blocks > settings.large_fraction * usable
    blocks = candidates.table[LONG_BLOCKS] + candidates.blocks
    share = settings.large_share_fraction
    count_max = np.maximum(np.floor(share * candidates.table[SEQUENCES_MAX]), 1.0)
    concerned &= (blocks > np.floor(share * usable)) | (long_count >= count_max)
    return concerned


def _why_large_share(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    blocks = candidate.long_blocks + candidate.blocks
    blocks_max = int(settings.large_share_fraction * candidate.node.usable_block_count)
    if blocks > blocks_max:
        return f"large ones would hold {blocks} blocks, over {blocks_max}"
    return f"it runs {candidate.long_count} long sequences, their most"


def inbound(candidates: Candidates, question: Question, settings: PolicySettings) -> Mask | None:
    """Many prefill nodes must not send to one decode node more than its link carries meanwhile."""
    if not np.count_nonzero(candidates.inbound_s):
        return None
    behind: Mask = candidates.inbound_s > settings.inbound_full_s
    return behind


def _why_inbound(candidate: Candidate, _: Question, __: PolicySettings) -> str:
    return f"its link is {candidate.inbound_s:.1f} s behind what is computed for it"


def spill(candidates: Candidates, question: Question, settings: PolicySettings) -> Mask | None:
    """A key whose node is too full goes elsewhere, and comes back when it has room again.

    Only this key: what has no preference for the node is left to the scorers.
    """
    at, limit = candidates.preferred_at, settings.spill_above_fraction
    if at < 0 or candidates.load[at] <= limit:
        return None
    if candidates.load[candidates.load.argmin()] > limit:
        return None
    dropped = np.zeros(len(candidates), dtype=np.bool_)
    dropped[at] = True
    return dropped


def _why_spill(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    limit = settings.spill_above_fraction
    return f"preferred, but its load is {candidate.load:.0%}, over {limit:.0%}"


def is_large(candidate: Candidate, settings: PolicySettings) -> bool:
    """Whether its lease is a large part of the node."""
    return candidate.blocks > settings.large_fraction * candidate.node.usable_block_count


ALWAYS: Mapping[str, Filter] = {
    "rested": Filter(rested, _why_rested),
    "holds_longest": Filter(holds_longest, _why_holds_longest),
    "fits": Filter(fits, _why_fits),
    "unheld": Filter(unheld, _why_unheld),
}
FILTERS: Mapping[str, Filter] = {
    "headroom": Filter(headroom, _why_headroom),
    "large_share": Filter(large_share, _why_large_share),
    "inbound": Filter(inbound, _why_inbound),
    "spill": Filter(spill, _why_spill),
}
