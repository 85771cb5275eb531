"""The body of ``POST /v1/completions``."""

from typing import Any

from pydantic import Field

from pdd.core.errors import InvalidRequest
from pdd.core.values import frozen
from pdd.gateway.json_text import shorten
from pdd.gateway.sampling_fields import MAX_LOGPROBS, SharedFields

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""


class CompletionFields(SharedFields):
    """Fields that only this endpoint has. ``prompt`` is checked by ``parse_prompt``."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


@frozen
class Prompt:
    """Exactly one of the two is set. ``field`` is its path, for later error messages."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    field: str = "prompt"


def parse_prompt(value: object) -> Prompt:
    """A string, a list of token ids, or a list that holds exactly one of these.

    Raises:
        InvalidRequest: empty, of another type, or more than one prompt.
    """
    if not isinstance(value, list) or _is_id(value[0] if value else None):
        return _one_prompt(value, field="prompt")
    if len(value) > 1:
        raise InvalidRequest(
            f"prompt: {len(value)} prompts in one request are not available yet; "
            "at most 1 is taken, send one request per prompt",
            field="prompt",
            code="unsupported_value",
        )
    return _one_prompt(value[0], field="prompt.0") if value else _one_prompt(value, field="prompt")


def _one_prompt(value: object, *, field: str) -> Prompt:
    if value is None:
        raise InvalidRequest(
            f"{field}: is required; send a string or a list of token ids",
            field=field,
            code="missing_required_parameter",
        )
    if not isinstance(value, (str, list)):
        raise InvalidRequest(
            f"{field}: must be a string or a list of token ids, not {shorten(value)}", field=field
        )
    if not value:
        raise InvalidRequest(f"{field}: is empty; at least 1 token is needed", field=field)
    if isinstance(value, str):
        return Prompt(text=value, field=field)
    if set(map(type, value)) != {int}:  # at the speed of C: a prompt may have 100,000 ids
        index, item = next((at, item) for at, item in enumerate(value) if not _is_id(item))
        raise InvalidRequest(
            f"{field}.{index}: must be a token id, not {shorten(item)}",
            field=f"{field}.{index}",
        )
    return Prompt(token_ids=tuple(value), field=field)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
