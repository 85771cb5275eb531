"""A gRPC request as the JSON body that means the same, and results as gRPC messages.

The only rule of its own is that a prompt must be set; everything else is checked by ``door``,
so that HTTP and gRPC allow exactly the same.
"""

from typing import Any

from pdd.core.errors import InvalidRequest
from pdd.core.frames import Finish, Frame, Logprob, TokenLogprobs
from pdd.core.requests import Ended, Plan
from pdd.gateway.json_text import finite_logprob
from pdd.gateway.reply import finish_reason_of

_SINGLE = (
    "min_tokens",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "include_stop_str_in_output",
    "ignore_eos",
)
_OPTIONAL = ("max_tokens", "temperature", "top_p", "repetition_penalty", "seed")
_REPEATED = ("stop", "stop_token_ids", "bad_words")


def is_chat(request: Any) -> bool:
    return bool(request.WhichOneof("prompt") == "chat")


def body_of(request: Any) -> dict[str, object]:
    """The body of ``/v1/chat/completions`` if the prompt is a conversation, else completions'.

    Raises:
        InvalidRequest: no prompt is set.
    """
    body: dict[str, object] = {"priority": request.priority}
    if request.model:
        body["model"] = request.model
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if request.HasField("n"):
        body["n"] = request.n
    _add_sampling(body, request.sampling, chat=is_chat(request))
    match request.WhichOneof("prompt"):
        case "text":
            body["prompt"] = request.text
        case "token_ids":
            body["prompt"] = list(request.token_ids.ids)
        case "chat":
            body["messages"] = [
                {"role": message.role, "content": message.content}
                for message in request.chat.messages
            ]
        case _:
            raise InvalidRequest(
                "prompt: is required; set text, token_ids or chat",
                field="prompt",
                code="missing_required_parameter",
            )
    return body


def _add_sampling(body: dict[str, object], sampling: Any, *, chat: bool) -> None:
    for name in _SINGLE:
        body[name] = getattr(sampling, name)
    for name in _OPTIONAL:
        if sampling.HasField(name):
            body[name] = getattr(sampling, name)
    for name in _REPEATED:
        values = list(getattr(sampling, name))
        if values:
            body[name] = values
    if sampling.logit_bias:
        body["logit_bias"] = {str(key): value for key, value in sampling.logit_bias.items()}
    body["skip_special_tokens"] = not sampling.keep_special_tokens
    if sampling.HasField("logprobs"):
        if chat:
            body["logprobs"] = True
            body["top_logprobs"] = sampling.logprobs
        else:
            body["logprobs"] = sampling.logprobs


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Fields of ``Plan``; a node that takes no part is ""."""
    return {
        "path": plan.path.value,
        "prefill_node": plan.prefill_node or "",
        "decode_node": plan.decode_node or "",
    }


def tokens_fields(frame: Frame) -> dict[str, Any]:
    """Fields of ``Tokens``."""
    return {
        "choice_index": frame.choice_index,
        "first_token_index": frame.first_token_index,
        "token_ids": frame.token_ids,
        "text": frame.text,
        "text_offset": frame.text_offset,
        "logprobs": [_token_logprobs(token) for token in frame.logprobs],
    }


def end_fields(ended: Ended) -> dict[str, Any]:
    """Fields of ``End``.

    Raises:
        RequestFailed: the sequence was cancelled by the cluster.
    """
    usage = ended.usage
    return {
        **_finish_fields(ended.finish),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "path": usage.path.value,
            "prefill_node": usage.prefill_node or "",
            "decode_node": usage.decode_node or "",
            "queue_ms": usage.queue_ms,
            "prefill_ms": usage.prefill_ms,
            "transfer_ms": usage.transfer_ms,
            "decode_ms": usage.decode_ms,
            "transferred_bytes": usage.transferred_bytes,
            "decode_computed_prompt_tokens": usage.decode_computed_prompt_tokens,
            "pulled_tokens": usage.pulled_tokens,
            "pulled_bytes": usage.pulled_bytes,
        },
    }


def choice_end_fields(choice_index: int, finish: Finish) -> dict[str, Any]:
    """Fields of ``ChoiceEnd``.

    Raises:
        RequestFailed: the sequence was cancelled by the cluster.
    """
    return {"choice_index": choice_index, **_finish_fields(finish)}


def _finish_fields(finish: Finish) -> dict[str, Any]:
    fields: dict[str, Any] = {"finish_reason": finish_reason_of(finish)}
    stop_reason = finish.stop_reason
    if isinstance(stop_reason, str):
        fields["stop_string"] = stop_reason
    elif stop_reason is not None:
        fields["stop_token_id"] = stop_reason
    return fields


def _token_logprobs(token: TokenLogprobs) -> dict[str, Any]:
    return {
        "chosen": _logprob(token.chosen),
        "top": [_logprob(candidate) for candidate in token.top],
    }


def _logprob(candidate: Logprob) -> dict[str, Any]:
    return {
        "token_id": candidate.token_id,
        "logprob": finite_logprob(candidate.logprob),
        "rank": candidate.rank,
        "text": candidate.text,
        "token_bytes": candidate.token_bytes,
    }
