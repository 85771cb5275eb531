"""Which jobs the engine takes, and when an output ends. Pure."""

from pdd.connector.params import JobKind
from pdd.core.errors import InvalidRequest
from pdd.core.frames import FinishReason
from pdd.engine.port import EngineFailed, Job
from pdd.engine.synthetic.choice import Vocabulary, refuse
from pdd.engine.synthetic.sequence import Sequence


def check_job(job: Job, *, words: Vocabulary, max_model_len: int, reaches_source: bool) -> None:
    """Refuse what cannot be done, before anything is held for it.

    ``reaches_source``: a decode job's blocks can be had from the node that it names.

    Raises:
        InvalidRequest: the client's fault; the message names the field.
        EngineFailed: the source's node does not fit this one.
    """
    refuse(job.sampling, words)
    emitted_count = max(len(choice.emitted_token_ids) for choice in job.choices)
    count = len(job.prompt_token_ids) + emitted_count
    if not job.prompt_token_ids:
        raise InvalidRequest("prompt: it has no tokens", field="prompt")
    if count >= max_model_len:
        raise InvalidRequest(
            f"prompt: {count} tokens leave no room for output in this node's {max_model_len}; "
            "shorten the prompt",
            field="prompt",
            code="context_length_exceeded",
        )
    for token_id in job.prompt_token_ids:
        if not 0 <= token_id < words.size:
            raise InvalidRequest(
                f"prompt: token id {token_id} is not in 0..{words.size - 1}", field="prompt"
            )
    if job.kind is JobKind.DECODE and not reaches_source:
        who = "no node" if job.source is None else f"{job.source.name}"
        raise EngineFailed(
            f"blocks cannot come from {who}: it was not introduced to this node, and has another"
            " number of ranks"
        )


def finish_of(
    sequence: Sequence, *, words: Vocabulary, max_model_len: int
) -> tuple[FinishReason | None, int | None]:
    """Whether the newest token ends the output, and the stop token if one does.

    As vLLM's check_stop (vllm/v1/core/sched/utils.py, 0.32): tokens before lengths.
    """
    sampling = sequence.job.sampling
    newest = sequence.tokens[-1]
    if sequence.output_count >= sampling.min_tokens:
        if newest in words.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if newest in sampling.stop_token_ids:
            return FinishReason.STOP, newest
    if sequence.output_count >= sequence.output_limit or len(sequence.tokens) >= max_model_len:
        return FinishReason.LENGTH, None
    return None, None
