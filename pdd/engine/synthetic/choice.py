"""From the digest of a sequence's blocks to its next token.

The digest names ``CANDIDATE_COUNT`` tokens in falling order of likelihood; one digest in
``EOS_ONE_IN`` puts the end of the output in front. Every other token is out of reach unless a
logit bias or a list of allowed tokens names it. On these logits the sampling parameters mean what
they mean in vLLM. The only randomness is one number per output token, from (seed, output index).
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from pdd.core.errors import InvalidRequest
from pdd.core.sampling import Sampling

CANDIDATE_COUNT = 24
EOS_ONE_IN = 128
_SEED_AND_INDEX = struct.Struct("<QQ")
_DIGEST_AND_TOKEN = struct.Struct("<QI")
_UNREACHED_LOGIT = -12.0
_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """``words``: tokens that are said by themselves; a prime number of them, so that walking
    through them in any stride meets each once."""

    words: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    size: int


def vocabulary(words: Sequence[int], *, eos_token_ids: Sequence[int], size: int) -> Vocabulary:
    """Cut ``words`` to the next lower prime. Raises ValueError for fewer than CANDIDATE_COUNT."""
    count = len(words)
    while count > 1 and any(count % divisor == 0 for divisor in range(2, math.isqrt(count) + 1)):
        count -= 1
    if count < CANDIDATE_COUNT:
        raise ValueError(f"{len(words)} tokens to say; at least {CANDIDATE_COUNT + 5} are needed")
    return Vocabulary(words=tuple(words[:count]), eos_token_ids=tuple(eos_token_ids), size=size)


@dataclass(slots=True, kw_only=True)
class Choice:
    """``logprobs``: of every token within reach before parameters, as vLLM reports them; empty
    unless they were asked for. Made per token, and therefore not frozen (see ``Frame``)."""

    token_id: int
    logprobs: Mapping[int, float]


def refuse(sampling: Sampling, words: Vocabulary) -> None:
    """Raise InvalidRequest, naming the field, for what this engine cannot do."""
    if sampling.grammar is not None:
        raise InvalidRequest(
            "response_format: the synthetic engine says random words and follows no grammar; "
            "use the vllm engine",
            field="response_format",
            code="unsupported_value",
        )
    if sampling.bad_words:
        raise InvalidRequest(
            "bad_words: the synthetic engine does not look for words; use logit_bias",
            field="bad_words",
            code="unsupported_value",
        )
    if sampling.logprobs is not None and sampling.logprobs > CANDIDATE_COUNT:
        raise InvalidRequest(
            f"logprobs: {sampling.logprobs} is above the synthetic engine's {CANDIDATE_COUNT}",
            field="logprobs",
        )
    for field, token_ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("logit_bias", tuple(token_id for token_id, _ in sampling.logit_bias)),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < words.size:
                raise InvalidRequest(
                    f"{field}: token id {token_id} is not in 0..{words.size - 1}", field=field
                )


def choose(
    digest: int,
    *,
    words: Vocabulary,
    sampling: Sampling,
    token_ids: Sequence[int],
    prompt_token_count: int,
) -> Choice:
    """The token after ``token_ids``.

    Args:
        digest: 64 bits over the sequence's blocks.
        token_ids: of the prompt, and the output of every engine so far. Not copied for the usual
            requests: they may be long, and this is done for every token.
    """
    output_index = len(token_ids) - prompt_token_count
    masked = _masked(sampling, words, output_index)
    is_plain = _plain(sampling)
    if is_plain and sampling.greedy:
        return Choice(token_id=_first(digest, words, masked), logprobs={})
    reach = _reach(digest, words)
    if is_plain:
        logits = reach
    else:
        for token_id in (*sampling.allowed_token_ids, *(one for one, _ in sampling.logit_bias)):
            reach.setdefault(token_id, _unreached(digest, token_id))
        logits = _adjusted(
            reach, sampling, token_ids[:prompt_token_count], token_ids[prompt_token_count:]
        )
    open_logits = {one: logit for one, logit in logits.items() if one not in masked} or logits
    if sampling.greedy:
        token_id = min(open_logits, key=lambda one: (-open_logits[one], one))
    else:
        token_id = _draw(open_logits, sampling, output_index)
    wanted = sampling.logprobs is not None
    return Choice(token_id=token_id, logprobs=_log_softmax(reach) if wanted else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One token's place; ``rank`` is 1 for the most likely."""

    logprob: float
    rank: int


def ranked(choice: Choice, count: int) -> dict[int, Ranked]:
    """The ``count`` most likely tokens and the chosen one."""
    order = sorted(choice.logprobs, key=lambda one: (-choice.logprobs[one], one))
    return {
        one: Ranked(logprob=choice.logprobs[one], rank=rank)
        for rank, one in enumerate(order, 1)
        if rank <= count or one == choice.token_id
    }


def _reach(digest: int, words: Vocabulary) -> dict[int, float]:
    """Logits of the tokens that the digest names, most likely first."""
    count = len(words.words)
    at = digest % count
    stride = 1 + (digest >> 16) % (count - 1)
    gap = 0.15 + ((digest >> 40) & 0xFF) / 512
    reach: dict[int, float] = {}
    if words.eos_token_ids and (digest >> 48) % EOS_ONE_IN == 0:
        reach[words.eos_token_ids[0]] = gap
    for position in range(CANDIDATE_COUNT):
        reach[words.words[at]] = -gap * position
        at = (at + stride) % count
    return reach


def _first(digest: int, words: Vocabulary, masked: frozenset[int]) -> int:
    """The first key of ``_reach`` that is not masked, or the first one if all are."""
    count = len(words.words)
    at = digest % count
    has_end = bool(words.eos_token_ids) and (digest >> 48) % EOS_ONE_IN == 0
    first = words.eos_token_ids[0] if has_end else words.words[at]
    if first not in masked:
        return first
    stride = 1 + (digest >> 16) % (count - 1)
    for _ in range(CANDIDATE_COUNT):
        if words.words[at] not in masked:
            return words.words[at]
        at = (at + stride) % count
    return first


def _unreached(digest: int, token_id: int) -> float:
    """The logit of any other token: small, and its own."""
    mixed = xxhash.xxh3_64_intdigest(_DIGEST_AND_TOKEN.pack(digest, token_id))
    return _UNREACHED_LOGIT - (mixed & 0xFFFF) / 0xFFFF


def _masked(sampling: Sampling, words: Vocabulary, index: int) -> frozenset[int]:
    """Tokens that would end the output before ``min_tokens``."""
    if index >= sampling.min_tokens:
        return _NOTHING
    ending = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ending.update(words.eos_token_ids)
    return frozenset(ending)


def _plain(sampling: Sampling) -> bool:
    return (
        not sampling.allowed_token_ids
        and not sampling.logit_bias
        and sampling.logprobs is None
        and sampling.presence_penalty == 0.0
        and sampling.frequency_penalty == 0.0
        and sampling.repetition_penalty == 1.0
    )


def _adjusted(
    reach: Mapping[int, float],
    sampling: Sampling,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> dict[int, float]:
    """Allowed tokens, penalties and bias, in this order."""
    allowed = set(sampling.allowed_token_ids)
    logits = {one: logit for one, logit in reach.items() if not allowed or one in allowed}
    if sampling.repetition_penalty != 1.0:
        seen = {*prompt_token_ids, *output_token_ids}
        for one in seen & logits.keys():
            logit, penalty = logits[one], sampling.repetition_penalty
            logits[one] = logit / penalty if logit > 0 else logit * penalty
    if sampling.presence_penalty or sampling.frequency_penalty:
        for one in logits:
            count = output_token_ids.count(one)
            if count:
                logits[one] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for one, bias in sampling.logit_bias:
        if one in logits:
            logits[one] += bias
    return logits


def _draw(logits: Mapping[int, float], sampling: Sampling, index: int) -> int:
    """One of the tokens that temperature, min_p, top_k and top_p leave, by (seed, index)."""
    ranked = sorted(logits, key=lambda one: (-logits[one], one))
    best = logits[ranked[0]]
    weights = [math.exp((logits[one] - best) / sampling.temperature) for one in ranked]
    kept = sum(weight >= sampling.min_p for weight in weights)
    if sampling.top_k > 0:
        kept = min(kept, sampling.top_k)
    weights = weights[: max(kept, 1)]
    total = sum(weights)
    if sampling.top_p < 1.0:
        mass = 0.0
        for position, weight in enumerate(weights):
            mass += weight
            if mass >= sampling.top_p * total:
                weights = weights[: position + 1]
                break
    packed = _SEED_AND_INDEX.pack(sampling.seed % (1 << 64), index)
    left = sum(weights) * (xxhash.xxh3_64_intdigest(packed) / (1 << 64))
    for one, weight in zip(ranked, weights, strict=False):
        left -= weight
        if left < 0:
            return one
    return ranked[len(weights) - 1]  # rounding


def _log_softmax(logits: Mapping[int, float]) -> dict[int, float]:
    best = max(logits.values())
    log_total = best + math.log(sum(math.exp(logit - best) for logit in logits.values()))
    return {one: logit - log_total for one, logit in logits.items()}
