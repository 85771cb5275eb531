"""The decider: is a prompt computed on a prefill node, or where it is decoded?

A hand-over costs the client the wait between first and second token, and the link its bytes. A
local prompt costs the streams that run on the decode node a pause, and waits behind other local
prompts. All inputs are predictions from measured speeds (``scheduler.estimates``).
"""

from typing import NamedTuple

from pdd.core.requests import Path
from pdd.core.sampling import Sampling
from pdd.scheduler.settings import PathMode, PathSettings

_IDLE_STALL_FACTOR = 5.0


class PathInputs(NamedTuple):
    """What the choice rests on. Token counts, and seconds.

    ``stall_s``: the decode node computing what it lacks of the prompt; ``local_s``: with what
    stands before it. ``remote_s``: the prefill node, likewise. ``transfer_s``: all blocks that are
    to come over its link; most of it passes while the prompt is computed. ``handover_s``: from
    first token to the moment when the decode node goes on, as measured. ``output_s``: the whole
    output, as long as expected. ``is_probe``: too little is known of the hand-over.
    ``held_up_count``: sequences on the decode node that would wait while it computes.

    ``pull_tokens``: what the prefill node lacks and the decode node holds, 0 where it cannot be had
    from there; ``pull_s``: until it would have come, ``pull_compute_s``: until it would have been
    computed; ``is_pull``: it is to come. ``remote_s`` reckons with that.
    """

    prompt_tokens: int
    cached_tokens: int
    stall_s: float
    local_s: float
    remote_s: float
    transfer_s: float
    handover_s: float
    output_s: float
    is_probe: bool = False
    held_up_count: int = 1
    pull_tokens: int = 0
    pull_s: float = 0.0
    pull_compute_s: float = 0.0
    is_pull: bool = False

    @property
    def remainder_tokens(self) -> int:
        """What the decode node would have to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def is_follow_up(self) -> bool:
        """Whether the decode node holds most of it already."""
        return 2 * self.cached_tokens >= self.prompt_tokens


def decide(inputs: PathInputs, settings: PathSettings) -> tuple[Path, str]:
    """The path where both are possible, and why, in words for an operator."""
    if settings.mode is PathMode.LOCAL:
        return Path.LOCAL, f"scheduler.path.mode is {settings.mode}"
    rest = inputs.remainder_tokens
    here = f"computing {rest} tokens here takes {_ms(inputs.stall_s)}"
    if inputs.is_follow_up and inputs.stall_s <= _stall_limit_s(inputs, settings):
        return (
            Path.LOCAL,
            f"{inputs.cached_tokens} of {inputs.prompt_tokens} tokens are here; {here}",
        )
    if settings.mode is PathMode.DISAGGREGATED:
        return Path.DISAGGREGATED, f"scheduler.path.mode is {settings.mode}"
    if 0 < settings.local_prompt_tokens_max >= rest:
        return Path.LOCAL, (
            f"{rest} tokens to compute, local up to {settings.local_prompt_tokens_max}"
        )
    if inputs.is_probe and inputs.remainder_tokens > 1:
        return Path.DISAGGREGATED, "to measure the hand-over between these nodes"
    if inputs.transfer_s > inputs.stall_s and inputs.local_s <= inputs.remote_s + inputs.transfer_s:
        return Path.LOCAL, f"{here}, moving their blocks {_ms(inputs.transfer_s)}"
    if inputs.stall_s > settings.local_stall_s:
        return Path.DISAGGREGATED, (
            f"{here}, more than running output may be held up ({_ms(settings.local_stall_s)})"
        )
    if inputs.stall_s <= inputs.handover_s:
        return Path.LOCAL, f"{here}, a hand-over {_ms(inputs.handover_s)}"
    if inputs.output_s <= inputs.handover_s:
        return Path.LOCAL, (
            f"its output takes {_ms(inputs.output_s)}, a hand-over {_ms(inputs.handover_s)}"
        )
    return Path.DISAGGREGATED, f"{here}, a hand-over {_ms(inputs.handover_s)}"


def _stall_limit_s(inputs: PathInputs, settings: PathSettings) -> float:
    """For a follow-up turn. Where nobody is held up it is a question of the own client's wait, and
    a hand-over would not be quicker before the remainder is long."""
    return settings.local_stall_s * (1.0 if inputs.held_up_count else _IDLE_STALL_FACTOR)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def looks_back(sampling: Sampling) -> str | None:
    """The parameter that reads earlier output tokens, if there is one; None otherwise.

    A sequence with such a parameter cannot change engines, because the next engine takes emitted
    tokens for prompt (vLLM 0.32, Model Runner V1).
    """
    if sampling.presence_penalty != 0.0:
        return "presence_penalty"
    if sampling.frequency_penalty != 0.0:
        return "frequency_penalty"
    if sampling.bad_words:
        return "bad_words"
    if sampling.grammar is not None:
        return "response_format"
    return None
