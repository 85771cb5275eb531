"""Fields that both endpoints share, with their types and bounds, and how they become ``Sampling``.

Names, defaults and meanings are OpenAI's, and vLLM's for its extensions
(vllm/entrypoints/openai/*/protocol.py, 0.32). Types are strict: a boolean is no integer and
"1" is no number, because a guess here would be a silently different answer.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pdd.core.errors import InvalidRequest
from pdd.core.sampling import Sampling
from pdd.gateway.grammar import grammar_from
from pdd.gateway.json_text import shorten
from pdd.gateway.served import ServedModel

INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_CHOICES = 128
"""As OpenAI's. A cluster whose decode nodes run fewer sequences at once refuses earlier."""

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_LOGIT_BIASES = 1024
MAX_CACHE_SALT_CHARS = 128
MAX_KEY_CHARS = 1024

_StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _one_or_many(value: object) -> object:
    """``stop`` may be one string; everything behind the schema sees a list."""
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    """What a stream tells besides its tokens. Without ``stream`` it has no effect."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    # OpenAI pads events against traffic analysis; asking for none of it is always granted.
    include_obfuscation: bool | None = None


class SharedFields(BaseModel):
    """Everything that means the same on ``/v1/completions`` and ``/v1/chat/completions``."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, le=INT32_MAX)
    min_tokens: int | None = Field(None, ge=0, le=INT32_MAX)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT32_MAX)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: Annotated[list[_StopString] | None, BeforeValidator(_one_or_many)] = Field(
        None, max_length=MAX_STOP_STRINGS
    )
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[_StopString] | None = Field(None, max_length=MAX_BAD_WORDS)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=MAX_LOGIT_BIASES
    )
    allowed_token_ids: list[int] | None = Field(None, min_length=1)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    user: str | None = Field(None, max_length=MAX_KEY_CHARS)
    prompt_cache_key: str | None = Field(None, max_length=MAX_KEY_CHARS)
    priority: int | None = Field(None, ge=-INT32_MAX - 1, le=INT32_MAX)

    @property
    def wants_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """As in vLLM, running counts come only to those who want the final ones too."""
        return self.wants_usage_chunk and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


def to_sampling(
    fields: SharedFields,
    *,
    model: ServedModel,
    max_tokens: int,
    logprobs: int | None,
    random_seed: int,
) -> Sampling:
    """Sampling parameters of a checked request.

    Args:
        max_tokens: already resolved against the room that the prompt leaves.
        logprobs: ``Sampling.logprobs``; the endpoints ask for it in different ways.
        random_seed: used when the request names none.

    Raises:
        InvalidRequest: a token id outside the vocabulary, or fields that contradict each other.
    """
    min_tokens = fields.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens: {min_tokens} is more than max_tokens, which is {max_tokens}",
            field="min_tokens",
        )
    stop_token_ids = tuple(fields.stop_token_ids or ())
    allowed_token_ids = tuple(fields.allowed_token_ids or ())
    check_token_ids(stop_token_ids, field="stop_token_ids", vocab_size=model.vocab_size)
    check_token_ids(allowed_token_ids, field="allowed_token_ids", vocab_size=model.vocab_size)
    top_k = fields.top_k or 0
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(fields.temperature, 1.0),
        top_p=_or(fields.top_p, 1.0),
        top_k=max(0, top_k),  # vLLM's users write "no limit" as -1 or as 0
        min_p=_or(fields.min_p, 0.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        seed=random_seed if fields.seed is None else fields.seed,
        stop=tuple(fields.stop or ()),
        stop_token_ids=stop_token_ids,
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        skip_special_tokens=fields.skip_special_tokens is not False,
        bad_words=tuple(fields.bad_words or ()),
        logit_bias=_logit_bias(fields.logit_bias or {}, vocab_size=model.vocab_size),
        allowed_token_ids=allowed_token_ids,
        logprobs=logprobs,
        grammar=grammar_from(
            response_format=fields.response_format, structured_outputs=fields.structured_outputs
        ),
    )


def check_token_ids(token_ids: tuple[int, ...], *, field: str, vocab_size: int) -> None:
    """Raise InvalidRequest, naming the first id that is not in the vocabulary.

    min and max run in C: a prompt of 100,000 ids costs about a millisecond.
    """
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        index, token_id = next(
            (index, token_id)
            for index, token_id in enumerate(token_ids)
            if not 0 <= token_id < vocab_size
        )
        raise InvalidRequest(
            f"{field}.{index}: {shorten(token_id)} is not in the vocabulary; "
            f"ids go from 0 to {vocab_size - 1}",
            field=f"{field}.{index}",
        )


def _logit_bias(biases: Mapping[str, float], *, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """JSON keys are strings; these must be token ids, each at most once, in ascending order."""
    by_token: dict[int, float] = {}
    for key, bias in biases.items():
        field = f"logit_bias.{key if len(key) <= 20 else key[:20]}"
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(
                f"logit_bias: {shorten(key)} is not a token id; ids go from 0 to {vocab_size - 1}",
                field=field,
            )
        token_id = int(key)
        if token_id >= vocab_size:
            raise InvalidRequest(
                f"{field}: is not in the vocabulary; ids go from 0 to {vocab_size - 1}", field=field
            )
        if token_id in by_token:
            raise InvalidRequest(f"{field}: token {token_id} is named twice", field=field)
        by_token[token_id] = bias
    return tuple(sorted(by_token.items()))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
