"""Does a prefill node have the prefix that it lacks from the decode node, or compute it?

In a conversation the decode node holds what the prefill node does not: the answers of earlier
turns. They can go over before the prompt's rest is computed. The package's first page draws the
way of the blocks, and tells what is done when they do not come.
"""

from pdd.core.requests import PlannedPull
from pdd.core.values import frozen
from pdd.scheduler.policy.candidate import Candidate
from pdd.scheduler.settings import PullMode

_WAIT_FACTOR = 2.0
_WAIT_S_MIN, _WAIT_S_MAX = 0.5, 10.0
"""A pull that takes longer than this many times what computing takes is given up; the lower bound
leaves a busy machine its time for the round trips, the upper one the client its patience."""


@frozen
class PullInputs:
    """``end_tokens``: the prompt's first tokens that the decode node holds, whole blocks.
    ``tokens``: of these, what the prefill node lacks; 0 where it cannot have them from there.
    Seconds until they would have come, or have been computed."""

    end_tokens: int
    tokens: int
    pull_s: float
    compute_s: float


NO_PULL = PullInputs(end_tokens=0, tokens=0, pull_s=0.0, compute_s=0.0)


def missing_tokens(source: Candidate, target: Candidate) -> tuple[int, int]:
    """``(end_tokens, tokens)`` of ``PullInputs`` for a prefill node and a decode node."""
    block_size = target.node.block_size
    can = source.node.pulls and target.node.pulls and source.node.block_size == block_size
    end_tokens = target.cached_tokens // block_size * block_size
    tokens = end_tokens - source.cached_tokens
    return (end_tokens, tokens) if can and tokens >= block_size else (0, 0)


def decide_pull(inputs: PullInputs, mode: PullMode) -> PlannedPull | None:
    """What is to be pulled; None: nothing is, or it is computed sooner."""
    is_wanted = mode is PullMode.ALWAYS or (
        mode is PullMode.AUTO and inputs.pull_s < inputs.compute_s
    )
    if not inputs.tokens or not is_wanted:
        return None
    wait_s = min(max(_WAIT_FACTOR * inputs.compute_s, _WAIT_S_MIN), _WAIT_S_MAX)
    return PlannedPull(token_count=inputs.end_tokens, wait_s=wait_s)


def pull_reason(inputs: PullInputs, *, holder: str) -> str:
    """In words for an operator."""
    return (
        f"{inputs.tokens} tokens come from {holder} in {inputs.pull_s * 1e3:.3g} ms, computing them"
        f" takes {inputs.compute_s * 1e3:.3g} ms"
    )
