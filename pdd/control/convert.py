"""Protobuf messages to core values and back. Pure; every field of a value is carried."""

from collections.abc import Iterable, Iterator
from itertools import repeat

from pdd.core.frames import (
    EngineFacts,
    Finish,
    FinishReason,
    Frame,
    Logprob,
    TokenLogprobs,
)
from pdd.core.identity import NodeIdentity, NodeName, RequestId
from pdd.core.requests import GenerateRequest
from pdd.core.sampling import Grammar, Sampling
from pdd.rpc.v1 import cluster_pb2, inference_pb2

Said = tuple[Frame, int]
"""A frame, and the generation of the submit that it belongs to."""

TokenRow = tuple[RequestId, int, int, int, int, str, int]
"""Request id, generation, index of the token, token id, text offset, text, index of the choice."""

_ROW_COUNT_MAX = 2048
"""Rows of one message. A row has at most as much text as a stop string may hold back, so that it
stays below ``MESSAGE_BYTES_MAX``."""


def identity_to_proto(identity: NodeIdentity) -> cluster_pb2.NodeIdentity:
    """See ``NodeIdentity``."""
    return cluster_pb2.NodeIdentity(
        name=identity.name, uuid=identity.uuid, boot_epoch=identity.boot_epoch
    )


def identity_from_proto(message: cluster_pb2.NodeIdentity) -> NodeIdentity:
    """See ``NodeIdentity``."""
    return NodeIdentity(
        name=NodeName(message.name), uuid=message.uuid, boot_epoch=message.boot_epoch
    )


def sampling_to_proto(sampling: Sampling) -> inference_pb2.SamplingParameters:
    """Everything but grammar and allowed tokens, which ``Submit`` carries itself."""
    message = inference_pb2.SamplingParameters(
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        ignore_eos=sampling.ignore_eos,
        bad_words=sampling.bad_words,
        logit_bias=dict(sampling.logit_bias),
        keep_special_tokens=not sampling.skip_special_tokens,
    )
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    return message


def sampling_from_submit(submit: cluster_pb2.Submit) -> Sampling:
    """The whole sampling value of a job."""
    message = submit.sampling
    return Sampling(
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        seed=message.seed,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        include_stop_str_in_output=message.include_stop_str_in_output,
        ignore_eos=message.ignore_eos,
        skip_special_tokens=not message.keep_special_tokens,
        bad_words=tuple(message.bad_words),
        logit_bias=tuple(sorted(message.logit_bias.items())),
        allowed_token_ids=tuple(submit.allowed_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        grammar=(
            Grammar(kind=submit.grammar_kind, value=submit.grammar_value)
            if submit.grammar_kind
            else None
        ),
    )


def request_from_submit(submit: cluster_pb2.Submit) -> GenerateRequest:
    """The request of a job, as far as a node was told of it. ``resume`` knows the rest."""
    return GenerateRequest(
        request_id=RequestId(submit.request_id),
        prompt_token_ids=tuple(submit.prompt_token_ids),
        sampling=sampling_from_submit(submit),
        priority=submit.priority,
        resume=submit.resume,
        resume_key=submit.resume_key,
    )


def frame_to_proto(frame: Frame, *, generation: int) -> cluster_pb2.TokenFrame:
    """See ``Frame``."""
    message = cluster_pb2.TokenFrame(
        request_id=frame.request_id,
        generation=generation,
        choice_index=frame.choice_index,
        tokens=inference_pb2.Tokens(
            first_token_index=frame.first_token_index,
            token_ids=frame.token_ids,
            text=frame.text,
            text_offset=frame.text_offset,
            logprobs=[logprobs_to_proto(logprobs) for logprobs in frame.logprobs],
        ),
    )
    if frame.finish is not None:
        message.finish.CopyFrom(finish_to_proto(frame.finish))
    return message


def frame_from_proto(message: cluster_pb2.TokenFrame) -> Frame:
    """See ``Frame``."""
    tokens = message.tokens
    return Frame(
        request_id=RequestId(message.request_id),
        first_token_index=tokens.first_token_index,
        token_ids=tuple(tokens.token_ids),
        text_offset=tokens.text_offset,
        text=tokens.text,
        logprobs=tuple(map(logprobs_from_proto, tokens.logprobs)),
        finish=finish_from_proto(message.finish) if message.HasField("finish") else None,
        choice_index=message.choice_index,
    )


def messages_of(
    said: Iterable[cluster_pb2.NodeMessage | Said],
) -> Iterator[cluster_pb2.NodeMessage]:
    """What a node says, in order. Neighbouring frames of one token share columns, which are filled
    in one go here: made one by one and merged they cost several times as much."""
    rows: list[Said] = []
    for one in said:
        is_row = isinstance(one, tuple) and _is_row(one[0])
        if rows and (not is_row or len(rows) >= _ROW_COUNT_MAX):
            yield _columns(rows)
            rows = []
        if isinstance(one, cluster_pb2.NodeMessage):
            yield one
        elif is_row:
            rows.append(one)
        else:
            frame, generation = one
            yield cluster_pb2.NodeMessage(
                frames=cluster_pb2.FrameBatch(frames=[frame_to_proto(frame, generation=generation)])
            )
    if rows:
        yield _columns(rows)


def _is_row(frame: Frame) -> bool:
    return len(frame.token_ids) == 1 and not frame.logprobs and frame.finish is None


def _columns(rows: list[Said]) -> cluster_pb2.NodeMessage:
    choices = [frame.choice_index for frame, _ in rows]
    return cluster_pb2.NodeMessage(
        tokens=cluster_pb2.TokenColumns(
            request_ids=[frame.request_id for frame, _ in rows],
            generations=[generation for _, generation in rows],
            token_indexes=[frame.first_token_index for frame, _ in rows],
            token_ids=[frame.token_ids[0] for frame, _ in rows],
            text_offsets=[frame.text_offset for frame, _ in rows],
            texts=[frame.text for frame, _ in rows],
            choice_indexes=choices if any(choices) else (),
        )
    )


def rows_from_columns(columns: cluster_pb2.TokenColumns) -> Iterator[TokenRow]:
    """The rows, in order.

    Raises:
        ValueError: the columns differ in length.
    """
    # Slices are copied in one go; iterating over the columns themselves is slower.
    return zip(
        columns.request_ids[:],
        columns.generations[:],
        columns.token_indexes[:],
        columns.token_ids[:],
        columns.text_offsets[:],
        columns.texts[:],
        columns.choice_indexes[:] or repeat(0, len(columns.request_ids)),
        strict=True,
    )


def finish_to_proto(finish: Finish) -> cluster_pb2.NodeFinish:
    """See ``Finish``."""
    facts = finish.facts
    message = cluster_pb2.NodeFinish(
        reason=finish.reason,
        cached_tokens=facts.cached_tokens,
        computed_prompt_tokens=facts.computed_prompt_tokens,
        forked_prompt_tokens=facts.forked_prompt_tokens,
        transferred_bytes=facts.transferred_bytes,
        pulled_tokens=facts.pulled_tokens,
        pulled_bytes=facts.pulled_bytes,
        pull_s=facts.pull_s,
        queue_s=facts.queue_s,
        prefill_s=facts.prefill_s,
        transfer_s=facts.transfer_s,
        decode_s=facts.decode_s,
    )
    if isinstance(finish.stop_reason, str):
        message.stop_string = finish.stop_reason
    elif finish.stop_reason is not None:
        message.stop_token_id = finish.stop_reason
    return message


def finish_from_proto(message: cluster_pb2.NodeFinish) -> Finish:
    """See ``Finish``. Raises ValueError for an unknown reason."""
    stop_reason: int | str | None = None
    if message.HasField("stop_string"):
        stop_reason = message.stop_string
    elif message.HasField("stop_token_id"):
        stop_reason = message.stop_token_id
    return Finish(
        reason=FinishReason(message.reason),
        stop_reason=stop_reason,
        facts=EngineFacts(
            cached_tokens=message.cached_tokens,
            computed_prompt_tokens=message.computed_prompt_tokens,
            forked_prompt_tokens=message.forked_prompt_tokens,
            transferred_bytes=message.transferred_bytes,
            pulled_tokens=message.pulled_tokens,
            pulled_bytes=message.pulled_bytes,
            pull_s=message.pull_s,
            queue_s=message.queue_s,
            prefill_s=message.prefill_s,
            transfer_s=message.transfer_s,
            decode_s=message.decode_s,
        ),
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> inference_pb2.TokenLogprobs:
    """See ``TokenLogprobs``."""
    return inference_pb2.TokenLogprobs(
        chosen=_logprob_to_proto(logprobs.chosen),
        top=[_logprob_to_proto(candidate) for candidate in logprobs.top],
    )


def _logprob_to_proto(logprob: Logprob) -> inference_pb2.Logprob:
    return inference_pb2.Logprob(
        token_id=logprob.token_id,
        logprob=logprob.logprob,
        rank=logprob.rank,
        text=logprob.text,
        token_bytes=logprob.token_bytes,
    )


def logprobs_from_proto(message: inference_pb2.TokenLogprobs) -> TokenLogprobs:
    """See ``TokenLogprobs``."""
    return TokenLogprobs(
        chosen=_logprob_from_proto(message.chosen),
        top=tuple(_logprob_from_proto(candidate) for candidate in message.top),
    )


def _logprob_from_proto(message: inference_pb2.Logprob) -> Logprob:
    return Logprob(
        token_id=message.token_id,
        logprob=message.logprob,
        rank=message.rank,
        text=message.text,
        token_bytes=message.token_bytes,
    )
