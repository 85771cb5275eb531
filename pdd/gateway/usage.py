"""``usage`` of a response: OpenAI's fields, and what pdd adds under ``pdd``."""

from pdd.core.identity import RequestId
from pdd.core.requests import RequestUsage


def usage_object(usage: RequestUsage, *, request_id: RequestId) -> dict[str, object]:
    """The final ``usage`` object: counted by engines and receiver, not by the plan."""
    return {
        **token_counts(
            prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        ),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "pdd": {
            "request_id": request_id,
            **_costs(usage),
        },
    }


def measured(usage: RequestUsage | None) -> dict[str, object]:
    """What a request's one log line says of its costs; nothing where it did not finish."""
    if usage is None:
        return {}
    costs = _costs(usage)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "final_path": costs.pop("path"),
        **costs,
    }


def _costs(usage: RequestUsage) -> dict[str, object]:
    return {
        "path": usage.path.value,
        "prefill_node": usage.prefill_node,
        "decode_node": usage.decode_node,
        "queue_ms": round(usage.queue_ms, 3),
        "prefill_ms": round(usage.prefill_ms, 3),
        "transfer_ms": round(usage.transfer_ms, 3),
        "decode_ms": round(usage.decode_ms, 3),
        "transferred_bytes": usage.transferred_bytes,
        "decode_computed_prompt_tokens": usage.decode_computed_prompt_tokens,
        "pulled_tokens": usage.pulled_tokens,
        "pulled_bytes": usage.pulled_bytes,
    }


def token_counts(*, prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    """The running ``usage`` of a stream that asked for ``continuous_usage_stats``."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
