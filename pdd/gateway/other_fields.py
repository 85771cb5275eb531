"""Fields of OpenAI's and vLLM's APIs that change nothing here, and those that are not there yet.

An unknown field is refused, because ignoring it could mean a silently different answer. A known
one is accepted where its value asks for what happens anyway, and refused by name otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdd.core.errors import InvalidRequest
from pdd.gateway.json_text import shorten

Test = Callable[[object], bool]


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _equals(*allowed: object) -> Test:
    """Equal in value and in type, so that 1 is not true."""

    def test(value: object) -> bool:
        return any(type(value) is type(item) and value == item for item in allowed)

    return test


# Fields without any effect on the answer: only their type is checked. None is always fine.
_NO_EFFECT: Mapping[str, tuple[str, Test]] = {
    "metadata": ("an object", _is_object),
    "store": ("a boolean", _is_boolean),
    "service_tier": ("a string", _is_string),
    "prompt_cache_retention": ("a string", _is_string),
    "safety_identifier": ("a string", _is_string),
    "prompt_cache_options": ("an object", _is_object),
    "session_id": ("a string", _is_string),
    "mm_payload": ("a string", _is_string),  # of vLLM's rendering endpoints, as are the next two
    "return_mm_kwargs": ("a boolean", _is_boolean),
    "return_token_offsets": ("a boolean", _is_boolean),
    "parallel_tool_calls": ("a boolean", _is_boolean),  # there are no tools to call
    "include_reasoning": ("a boolean", _is_boolean),  # nothing is parsed out of the text
    "reasoning_effort": ("a string", _is_string),
    "verbosity": ("a string", _is_string),
}


_never = _equals()


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A feature that is not there. ``neutral`` values ask for what happens anyway."""

    what: str
    neutral: Test = _never


_LATER: Mapping[str, Unavailable] = {
    "best_of": Unavailable("choosing among more outputs than are shown (n)", _equals(1)),
    "use_beam_search": Unavailable("beam search", _equals(False)),
    "length_penalty": Unavailable("beam search", _equals(1, 1.0)),
    "suffix": Unavailable("text insertion", _equals("")),
    "tools": Unavailable("tool calling", _equals([])),
    "tool_choice": Unavailable("tool calling", _equals("none", "auto")),
    "functions": Unavailable("tool calling", _equals([])),
    "function_call": Unavailable("tool calling", _equals("none", "auto")),
    "modalities": Unavailable("output other than text", _equals(["text"])),
    "audio": Unavailable("audio"),
    "prediction": Unavailable("predicted outputs"),
    "web_search_options": Unavailable("web search"),
    "prompt_logprobs": Unavailable("log probabilities of the prompt"),
    "logprob_token_ids": Unavailable("log probabilities of chosen ids", _equals([])),
    "prompt_embeds": Unavailable("prompt embeddings"),
    "truncate_prompt_tokens": Unavailable("truncating prompts"),
    "truncation_side": Unavailable("truncating prompts", _equals("left", "right")),
    "spaces_between_special_tokens": Unavailable("leaving these spaces out", _equals(True)),
    "documents": Unavailable("retrieved documents", _equals([])),
    "chat_template": Unavailable("templates from clients; the model's own is used"),
    "mm_processor_kwargs": Unavailable("multi-modal input", _equals({})),
    "media_io_kwargs": Unavailable("multi-modal input", _equals({})),
    "request_id": Unavailable("naming requests in the body; send the x-request-id header"),
    "return_prompt_text": Unavailable("returning the rendered prompt", _equals(False)),
    "kv_transfer_params": Unavailable("client-made KV transfers", _equals({})),
    "ec_transfer_params": Unavailable("client-made transfers", _equals({})),
    "vllm_xargs": Unavailable("engine arguments from clients", _equals({})),
    "repetition_detection": Unavailable("repetition detection"),
    "thinking_token_budget": Unavailable("thinking budgets", _equals(-1)),
    "stream_interval": Unavailable("streaming at intervals", _equals(1)),
    "routed_experts_prompt_start": Unavailable("routed experts", _equals(0)),
    "moderation": Unavailable("moderation"),
    "watermarking": Unavailable("watermarking", _equals(False)),
}


def without_other_fields(body: Mapping[str, object], *, known: frozenset[str]) -> dict[str, object]:
    """The body without the fields listed here, all of which were found harmless.

    Args:
        known: fields of the endpoint's own schema, which are passed on whatever they hold.

    Raises:
        InvalidRequest: a field of the wrong type, or one that asks for what is not there.
    """
    kept: dict[str, object] = {}
    for name, value in body.items():
        if name in known:
            kept[name] = value
        elif name in _NO_EFFECT:
            wanted, is_fine = _NO_EFFECT[name]
            if value is not None and not is_fine(value):
                raise InvalidRequest(f"{name}: must be {wanted}, not {shorten(value)}", field=name)
        elif name in _LATER:
            later = _LATER[name]
            if value is not None and not later.neutral(value):
                raise InvalidRequest(
                    f"{name}: {later.what}: not available (got {shorten(value)}); "
                    "leave the field out",
                    field=name,
                    code="unsupported_value",
                )
        else:
            shown = shorten(name).strip('"')
            raise InvalidRequest(
                f"{shown}: not a known field of this endpoint; leave it out",
                field=shown,
                code="unknown_parameter",
            )
    return kept
