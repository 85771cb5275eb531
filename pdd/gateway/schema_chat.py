"""The body of ``POST /v1/chat/completions``."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pdd.core.errors import InvalidRequest
from pdd.gateway.json_text import shorten
from pdd.gateway.sampling_fields import INT32_MAX, MAX_LOGPROBS, SharedFields

MAX_MESSAGES = 4096
"""A longer conversation is refused before its template is rendered."""

_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
# What a chat template is called with anyway; a client's kwargs must not replace it.
_RESERVED_KWARGS = frozenset(
    {
        "conversation",
        "conversations",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)


def _only_empty(value: object) -> object:
    """Clients send a whole earlier answer back, with the fields it did not use as null."""
    if value not in (None, [], {}):
        raise ValueError("not available; leave it out or null")
    return value


_Empty = Annotated[Any, AfterValidator(_only_empty)]


class Message(BaseModel):
    """One turn. Content is a string, or a list of text parts, which are joined by line breaks."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None  # checked by template_messages: a union here would blur the message
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    tool_calls: _Empty = None
    function_call: _Empty = None
    audio: _Empty = None
    annotations: _Empty = None
    reasoning: _Empty = None
    reasoning_content: _Empty = None


class ChatFields(SharedFields):
    """Fields that only this endpoint has."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=INT32_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: Literal[False] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wanted_max_tokens(self) -> int | None:
        """The newer name wins over the deprecated one, as in vLLM."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def max_tokens_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wants_generation_prompt(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


def check_chat(fields: ChatFields) -> None:
    """Relations between fields.

    Raises:
        InvalidRequest: fields that contradict each other.
    """
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest(
            f"top_logprobs: {fields.top_logprobs} needs logprobs to be true", field="top_logprobs"
        )
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: cannot be true together with add_generation_prompt",
            field="continue_final_message",
        )
    reserved = sorted(_RESERVED_KWARGS & set(fields.chat_template_kwargs or {}))
    if reserved:
        raise InvalidRequest(
            f"chat_template_kwargs.{reserved[0]}: is set by the server; leave it out",
            field=f"chat_template_kwargs.{reserved[0]}",
        )


def template_messages(fields: ChatFields) -> list[dict[str, object]]:
    """The conversation as chat templates expect it: role and text, and a name where there is one.

    Raises:
        InvalidRequest: no content, or content that is not text.
    """
    return [_template_message(message, index) for index, message in enumerate(fields.messages)]


def _template_message(message: Message, index: int) -> dict[str, object]:
    field = f"messages.{index}.content"
    rendered: dict[str, object] = {"role": message.role}
    if isinstance(message.content, list) and message.content:
        rendered["content"] = "\n".join(
            _part_text(part, field=f"{field}.{part_index}")
            for part_index, part in enumerate(message.content)
        )
    elif message.content is None:
        if message.refusal is None:
            raise InvalidRequest(
                f"{field}: is required; send a string or a list of text parts",
                field=field,
                code="missing_required_parameter",
            )
        rendered["content"] = message.refusal
    elif isinstance(message.content, str):
        rendered["content"] = message.content
    else:
        raise InvalidRequest(
            f"{field}: must be a string or a non-empty list of text parts, "
            f"not {shorten(message.content)}",
            field=field,
        )
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            rendered[name] = value
    return rendered


def _part_text(part: object, *, field: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{field}: must be an object, not {shorten(part)}", field=field)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise InvalidRequest(
            f"{field}.type: only text parts are available, not {shorten(kind)}",
            field=f"{field}.type",
            code="unsupported_value",
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(
            f"{field}.{key}: must be a string, not {shorten(text)}", field=f"{field}.{key}"
        )
    return text
