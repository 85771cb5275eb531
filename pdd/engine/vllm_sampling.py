"""From pdd's sampling value to vLLM's, for one job.

Token 0 of a disaggregated request is sampled on the prefill node, the rest on the decode node,
where it counts as part of the prompt. So limits on the *number* of output tokens are lowered by
what was emitted elsewhere, and the keyed sampler is told the index at which this engine begins.
Parameters that look back at output tokens (presence and frequency penalties, bad words, grammars)
would not see the emitted ones: ``scheduler.policy`` sends such requests on the local path.
"""

import json
from typing import TYPE_CHECKING

from pdd.connector.keyed_params import noise_key_extra_args
from pdd.connector.params import JobKind, JobParams
from pdd.core.sampling import Grammar, Sampling
from pdd.engine.port import Job

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams


def first_output_index(job: Job) -> int:
    """Index, among the request's output tokens, of the first one that this engine samples."""
    return 1 if job.kind is JobKind.DECODE else len(job.choices[0].emitted_token_ids)


def sampling_params(job: Job, *, native_seeds: bool) -> "SamplingParams":
    """vLLM's parameters for ``job``. Raises ValueError where vLLM refuses the values.

    ``native_seeds``: see ``vllm_start.StartedLlm``.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        return _sampling_params(job, native_seeds=native_seeds)
    except VLLMValidationError as error:  # no ValueError in vLLM's own tree
        raise ValueError(str(error)) from error


def _sampling_params(job: Job, *, native_seeds: bool) -> "SamplingParams":
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    sampling = job.sampling.of_choice(job.choices[0].index)
    done = first_output_index(job)
    max_tokens = 1 if job.kind is JobKind.PREFILL else sampling.max_tokens - done
    return SamplingParams(
        n=1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        stop_token_ids=list(sampling.stop_token_ids),
        bad_words=list(sampling.bad_words),
        ignore_eos=sampling.ignore_eos,
        min_tokens=min(max(sampling.min_tokens - done, 0), max_tokens),
        max_tokens=max_tokens,
        logprobs=sampling.logprobs,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=list(sampling.allowed_token_ids) or None,
        structured_outputs=_grammar(sampling),
        seed=sampling.seed if native_seeds else None,
        detokenize=False,  # one output path for both engines' tokens: pdd.engine.output_stream
        output_kind=RequestOutputKind.DELTA,
        extra_args={
            **(
                {}
                if native_seeds
                else noise_key_extra_args(seed=sampling.seed, first_output_index=done)
            ),
            "kv_transfer_params": JobParams(
                key=job.key,
                kind=job.kind,
                deadline_s=job.deadline_s,
                source=job.source,
                pull=job.pull,
                lends=job.lends,
            ).to_extra_args(),
        },
    )


def _grammar(sampling: Sampling) -> "StructuredOutputsParams | None":
    from vllm.sampling_params import StructuredOutputsParams

    grammar: Grammar | None = sampling.grammar
    if grammar is None:
        return None
    match grammar.kind:
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            return StructuredOutputsParams(json=grammar.value)
        case "regex":
            return StructuredOutputsParams(regex=grammar.value)
        case "choice":
            return StructuredOutputsParams(choice=json.loads(grammar.value))
        case "grammar":
            return StructuredOutputsParams(grammar=grammar.value)
        case other:
            raise ValueError(f"grammar kind {other!r} is not known")
