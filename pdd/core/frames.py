"""What an engine sends back: frames with absolute offsets, so that any may be repeated.

A reader that keeps the count of tokens and characters it has shown can drop what it has
seen already; therefore no token is lost or doubled when a sequence changes engines.
"""

from enum import StrEnum

from pdd.core.identity import RequestId
from pdd.core.values import frozen


class FinishReason(StrEnum):
    """Why a sequence ended, as OpenAI's API names it, plus what is pdd's own."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"  # cancelled by the client or the scheduler; never sent with text missing
    HANDOVER = "handover"  # between nodes only: prompt computed, another node goes on


@frozen
class Logprob:
    """One candidate token. ``rank`` is 1 for the most likely; ``text`` is it decoded alone."""

    token_id: int
    logprob: float
    rank: int
    text: str
    token_bytes: bytes


@frozen
class TokenLogprobs:
    """The chosen token and the ``Sampling.logprobs`` most likely ones, most likely first."""

    chosen: Logprob
    top: tuple[Logprob, ...]


@frozen
class EngineFacts:
    """What one node's engine and receiver counted for one request. Measured, never planned.

    ``cached_tokens`` prompt tokens found in this node's own prefix cache;
    ``computed_prompt_tokens`` prompt positions this engine computed itself;
    ``forked_prompt_tokens`` of these, the ones that a further choice of the request computed
    though the node held them, because the engine cannot share them;
    ``transferred_bytes`` bytes the receiver verified;
    ``pulled_tokens`` prompt tokens that a prefill node had from the decode node instead of
    computing them, ``pulled_bytes`` what came over for it, ``pull_s`` how long that took, whether
    it succeeded or not;
    the times are this node's own, in seconds.
    """

    cached_tokens: int = 0
    computed_prompt_tokens: int = 0
    forked_prompt_tokens: int = 0
    transferred_bytes: int = 0
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    pull_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0


@frozen
class Finish:
    """The end of a sequence on one node. ``stop_reason``: the stop string or token id, if any."""

    reason: FinishReason
    stop_reason: int | str | None = None
    facts: EngineFacts = EngineFacts()


@frozen
class Frame:
    """Tokens of one choice of a request from one engine step.

    ``choice_index``: which of the request's choices; offsets count within it.
    ``first_token_index``: 0-based index among the choice's output tokens.
    ``text``: what these tokens add to the output; it begins at character ``text_offset``. Text
    that could yet turn out to be the beginning of a stop string is held back, so ``text``
    may be empty although there are tokens.
    ``logprobs``: one per token when they were asked for, else empty.
    """

    request_id: RequestId
    first_token_index: int
    token_ids: tuple[int, ...]
    text_offset: int
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    choice_index: int = 0


def token_frame(
    request_id: RequestId,
    index: int,
    token_id: int,
    text_offset: int,
    text: str,
    choice_index: int = 0,
) -> Frame:
    """The frame of what ``Sink.token`` is told."""
    return Frame(
        request_id=request_id,
        first_token_index=index,
        token_ids=(token_id,),
        text_offset=text_offset,
        text=text,
        choice_index=choice_index,
    )
