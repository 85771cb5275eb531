"""What a scheduler is told of a request that another one has: to and from messages. Pure."""

from pdd.control.convert import finish_from_proto, finish_to_proto, sampling_to_proto
from pdd.control.group_convert import refused_error, refused_to_proto
from pdd.core.errors import PddError, RequestGone, SchedulerStopping, UnknownRequest
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Ended, GenerateRequest, Path, RequestUsage
from pdd.rpc.v1 import cluster_pb2, decisions_pb2, inference_pb2, runs_pb2

_ERRORS: dict[str, type[PddError]] = {
    "gone": RequestGone,
    "unknown": UnknownRequest,
    "stopping": SchedulerStopping,
}
"""Besides those of a leader's refusals."""


def job_to_proto(request: GenerateRequest) -> cluster_pb2.Submit:
    """As far as a node would be told of it; its note (``resume``) knows the rest."""
    sampling = request.sampling
    return cluster_pb2.Submit(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=sampling_to_proto(sampling),
        priority=request.priority,
        grammar_kind=sampling.grammar.kind if sampling.grammar else "",
        grammar_value=sampling.grammar.value if sampling.grammar else "",
        allowed_token_ids=sampling.allowed_token_ids,
        resume=request.resume,
        resume_key=request.resume_key,
    )


def error_to_proto(error: PddError) -> decisions_pb2.PlaceRefused:
    """Why it is over, or is not there."""
    refused = refused_to_proto(RequestId(""), error).refused
    for kind, made in _ERRORS.items():
        if isinstance(error, made):
            refused.kind = kind
    return refused


def error_from_proto(refused: decisions_pb2.PlaceRefused) -> PddError:
    """See ``error_to_proto``."""
    made = _ERRORS.get(refused.kind)
    return refused_error(refused) if made is None else made(refused.message)


def end_to_proto(ended: Ended) -> runs_pb2.RunEnd:
    """See ``Ended``."""
    usage = ended.usage
    return runs_pb2.RunEnd(
        finish=finish_to_proto(ended.finish),
        usage=inference_pb2.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            path=usage.path.value,
            prefill_node=usage.prefill_node or "",
            decode_node=usage.decode_node or "",
            queue_ms=usage.queue_ms,
            prefill_ms=usage.prefill_ms,
            transfer_ms=usage.transfer_ms,
            decode_ms=usage.decode_ms,
            transferred_bytes=usage.transferred_bytes,
            decode_computed_prompt_tokens=usage.decode_computed_prompt_tokens,
            pulled_tokens=usage.pulled_tokens,
            pulled_bytes=usage.pulled_bytes,
        ),
    )


def end_from_proto(message: runs_pb2.RunEnd) -> Ended:
    """See ``Ended``. Raises ValueError for an unknown path or reason."""
    usage = message.usage
    return Ended(
        finish=finish_from_proto(message.finish),
        usage=RequestUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            path=Path(usage.path),
            prefill_node=NodeName(usage.prefill_node) if usage.prefill_node else None,
            decode_node=NodeName(usage.decode_node) if usage.decode_node else None,
            queue_ms=usage.queue_ms,
            prefill_ms=usage.prefill_ms,
            transfer_ms=usage.transfer_ms,
            decode_ms=usage.decode_ms,
            transferred_bytes=usage.transferred_bytes,
            decode_computed_prompt_tokens=usage.decode_computed_prompt_tokens,
            pulled_tokens=usage.pulled_tokens,
            pulled_bytes=usage.pulled_bytes,
        ),
    )
