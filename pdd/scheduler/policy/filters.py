"""Filters: which candidates cannot or should not have the request, and why.

``ALWAYS`` are in force whatever the configuration says: without them a decision could be wrong.
``FILTERS`` are put together by name.
"""

from collections.abc import Callable, Mapping, Sequence

from pdd.core.identity import Forking, NodeName
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.candidate import Candidate, Question
from pdd.scheduler.settings import PolicySettings

Dropped = dict[NodeName, str]
Filter = Callable[[Sequence[Candidate], Question, PolicySettings], Dropped]


def rested(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> Dropped:
    """An engine that has just failed this request gets a pause from it."""
    if not question.avoid:
        return {}
    return {
        candidate.name: "its engine has just failed this request"
        for candidate in candidates
        if candidate.node.identity in question.avoid
    }


def fits(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> Dropped:
    """Blocks and sequences that are promised to others are not there."""
    dropped: Dropped = {}
    for candidate in candidates:
        if candidate.unpromised_blocks < candidate.blocks:
            dropped[candidate.name] = (
                f"{candidate.blocks} blocks wanted, {candidate.unpromised_blocks} unpromised"
            )
        elif candidate.sequence_count >= candidate.node.max_num_seqs:
            dropped[candidate.name] = f"it runs {candidate.sequence_count} sequences, its most"
        elif candidate.sequence_count + question.choice_count > candidate.node.max_num_seqs:
            dropped[candidate.name] = (
                f"{question.choice_count} sequences wanted, it runs {candidate.sequence_count} of "
                f"{candidate.node.max_num_seqs}"
            )
    return dropped


def holds_longest(
    candidates: Sequence[Candidate], question: Question, _: PolicySettings
) -> Dropped:
    """A sequence must be able to reach its end where it runs."""
    dropped: Dropped = {}
    for candidate in candidates:
        node = candidate.node
        if candidate.token_count_max > node.token_count_max():
            dropped[candidate.name] = (
                f"{candidate.token_count_max} tokens wanted, it holds {node.token_count_max()}"
            )
        elif not candidate.holds_choices:
            dropped[candidate.name] = why_not_choices(node, question)
    return dropped


def why_not_choices(node: Node, question: Question) -> str:
    """Why a node could not run all choices of a request, were it empty."""
    if node.forking is Forking.NONE:
        return "it runs one choice per request"
    blocks = question.blocks_on(node, output_token_count=question.request.sampling.max_tokens)
    return (
        f"{question.choice_count} choices want {question.choice_count} sequences and {blocks} "
        f"blocks, it holds {node.max_num_seqs} and {node.usable_block_count}"
    )


def unheld(candidates: Sequence[Candidate], question: Question, _: PolicySettings) -> Dropped:
    """Room that is kept for one who waits is not given to others."""
    if not question.held:
        return {}
    return {
        candidate.name: "its room is kept for a request that waits longer"
        for candidate in candidates
        if question.held.get(candidate.name, candidate.blocks) < candidate.blocks
    }


def headroom(
    candidates: Sequence[Candidate], question: Question, settings: PolicySettings
) -> Dropped:
    """Leave room for those that run to grow into, as far as they can grow at all."""
    dropped: Dropped = {}
    for candidate in candidates:
        node = candidate.node
        if candidate.sequence_count == 0:
            continue
        growth = node.growth_block_count() + candidate.claim - candidate.blocks
        reserve = min(growth, round(settings.headroom_fraction * node.usable_block_count))
        left = candidate.unpromised_blocks - candidate.blocks
        if left < reserve:
            dropped[candidate.name] = (
                f"it would have {max(left, 0)} blocks left, {reserve} are kept"
            )
    return dropped


def large_share(
    candidates: Sequence[Candidate], question: Question, settings: PolicySettings
) -> Dropped:
    """Large and long requests may not take a whole node between them.

    One alone may have what it needs: it could never run otherwise.
    """
    dropped: Dropped = {}
    for candidate in candidates:
        node = candidate.node
        if not node.long or not (question.is_long or is_large(candidate, settings)):
            continue
        blocks = node.long_block_count() + candidate.blocks
        blocks_max = int(settings.large_share_fraction * node.usable_block_count)
        count_max = max(int(settings.large_share_fraction * node.max_num_seqs), 1)
        if blocks > blocks_max:
            dropped[candidate.name] = f"large ones would hold {blocks} blocks, over {blocks_max}"
        elif len(node.long) >= count_max:
            dropped[candidate.name] = f"it runs {len(node.long)} long sequences, their most"
    return dropped


def inbound(
    candidates: Sequence[Candidate], question: Question, settings: PolicySettings
) -> Dropped:
    """Many prefill nodes must not send to one decode node more than its link carries meanwhile."""
    return {
        candidate.name: f"its link is {candidate.inbound_s:.1f} s behind what is computed for it"
        for candidate in candidates
        if candidate.inbound_s > settings.inbound_full_s
    }


def spill(candidates: Sequence[Candidate], question: Question, settings: PolicySettings) -> Dropped:
    """A key whose node is too full goes elsewhere, and comes back when it has room again.

    Only this key: what has no preference for the node is left to the scorers.
    """
    limit = settings.spill_above_fraction
    if not any(candidate.load <= limit for candidate in candidates):
        return {}
    return {
        candidate.name: f"preferred, but its load is {candidate.load:.0%}, over {limit:.0%}"
        for candidate in candidates
        if candidate.is_preferred and candidate.load > limit
    }


def is_large(candidate: Candidate, settings: PolicySettings) -> bool:
    """Whether its lease is a large part of the node."""
    return candidate.blocks > settings.large_fraction * candidate.node.usable_block_count


ALWAYS: Mapping[str, Filter] = {
    "rested": rested,
    "holds_longest": holds_longest,
    "fits": fits,
    "unheld": unheld,
}
FILTERS: Mapping[str, Filter] = {
    "headroom": headroom,
    "large_share": large_share,
    "inbound": inbound,
    "spill": spill,
}
