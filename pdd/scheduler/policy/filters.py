"""Filters by name: which candidates cannot or should not have the request, and why.

Each is one idea in two functions: whether it drops a node (``parts``, over numbers), and why it
did, in words, for those that somebody reads of. ``ALWAYS`` are in force whatever the configuration
says: without them a decision could be wrong. ``FILTERS`` are put together by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdd.core.identity import Forking
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import parts
from pdd.scheduler.policy.candidate import Candidate, Question
from pdd.scheduler.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class Filter:
    """``number``: of the part that drops."""

    number: int
    why: Callable[[Candidate, Question, PolicySettings], str]


def _why_rested(_: Candidate, question: Question, __: PolicySettings) -> str:
    return "its engine has just failed this request"


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


def _why_fits(candidate: Candidate, question: Question, _: PolicySettings) -> str:
    if candidate.unpromised_blocks < candidate.blocks:
        return f"{candidate.blocks} blocks wanted, {candidate.unpromised_blocks} unpromised"
    if candidate.sequence_count >= candidate.node.max_num_seqs:
        return f"it runs {candidate.sequence_count} sequences, its most"
    return (
        f"{question.choice_count} sequences wanted, it runs {candidate.sequence_count} of "
        f"{candidate.node.max_num_seqs}"
    )


def _why_unheld(_: Candidate, question: Question, __: PolicySettings) -> str:
    return "its room is kept for a request that waits longer"


def _why_headroom(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    growth = candidate.growth_blocks + candidate.claim - candidate.blocks
    reserve = min(growth, round(settings.headroom_fraction * candidate.node.usable_block_count))
    left = candidate.unpromised_blocks - candidate.blocks
    return f"it would have {max(left, 0)} blocks left, {reserve} are kept"


def _why_large_share(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    blocks = candidate.long_blocks + candidate.blocks
    blocks_max = int(settings.large_share_fraction * candidate.node.usable_block_count)
    if blocks > blocks_max:
        return f"large ones would hold {blocks} blocks, over {blocks_max}"
    return f"it runs {candidate.long_count} long sequences, their most"


def _why_inbound(candidate: Candidate, _: Question, __: PolicySettings) -> str:
    return f"its link is {candidate.inbound_s:.1f} s behind what is computed for it"


def _why_spill(candidate: Candidate, _: Question, settings: PolicySettings) -> str:
    limit = settings.spill_above_fraction
    return f"preferred, but its load is {candidate.load:.0%}, over {limit:.0%}"


def is_large(candidate: Candidate, settings: PolicySettings) -> bool:
    """Whether its lease is a large part of the node."""
    return candidate.blocks > settings.large_fraction * candidate.node.usable_block_count


ALWAYS: Mapping[str, Filter] = {
    "rested": Filter(parts.RESTED, _why_rested),
    "holds_longest": Filter(parts.HOLDS_LONGEST, _why_holds_longest),
    "fits": Filter(parts.FITS, _why_fits),
    "unheld": Filter(parts.UNHELD, _why_unheld),
}
FILTERS: Mapping[str, Filter] = {
    "headroom": Filter(parts.HEADROOM, _why_headroom),
    "large_share": Filter(parts.LARGE_SHARE, _why_large_share),
    "inbound": Filter(parts.INBOUND, _why_inbound),
    "spill": Filter(parts.SPILL, _why_spill),
}
NAMES: Mapping[int, str] = {part.number: name for name, part in {**ALWAYS, **FILTERS}.items()}
