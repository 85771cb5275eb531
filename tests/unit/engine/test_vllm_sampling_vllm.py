"""What each kind of job asks of vLLM, and that vLLM takes it."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdd.connector.keyed_params import NoiseKey, read_noise_key
from pdd.connector.params import JobKind, JobParams, SourceNode
from pdd.core.errors import InvalidRequest
from pdd.core.sampling import Grammar, Sampling
from pdd.engine.port import Choice, Job
from pdd.engine.vllm_sampling import first_output_index, sampling_params
from tests.builders import make_identity
from tests.unit.daemon.fake_engine import letter_tokenizer

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    import vllm.sampling_params

    from pdd.engine.vllm_engine import VllmEngine

SOURCE = SourceNode(
    name="prefill-0", uuid="u", boot_epoch=3, control_address="h:1", ucx_addresses=(b"a", b"b")
)


def params_of(job: Job) -> Any:
    return sampling_params(job, native_seeds=False)


def make_job(kind: JobKind, *, emitted: int = 0, max_tokens: int = 10, **sampling: Any) -> Job:
    return Job(
        key="r1/0",
        kind=kind,
        prompt_token_ids=(1, 2, 3),
        choices=(Choice(emitted_token_ids=tuple(range(emitted))),),
        sampling=Sampling(max_tokens=max_tokens, **sampling),
        cache_salt="",
        priority=0,
        deadline_s=60.0,
        source=SOURCE if kind is JobKind.DECODE else None,
    )


@pytest.mark.parametrize(
    ("kind", "emitted", "min_tokens", "expected"),
    [
        # (first_output_index, max_tokens, min_tokens) that the engine is given
        (JobKind.PREFILL, 0, 0, (0, 1, 0)),
        (JobKind.PREFILL, 0, 4, (0, 1, 1)),  # no end token as t1
        (JobKind.DECODE, 0, 0, (1, 9, 0)),
        (JobKind.DECODE, 0, 1, (1, 9, 0)),
        (JobKind.DECODE, 0, 4, (1, 9, 3)),
        (JobKind.DECODE, 0, 10, (1, 9, 9)),
        (JobKind.LOCAL, 0, 4, (0, 10, 4)),
        (JobKind.LOCAL, 3, 4, (3, 7, 1)),
        (JobKind.LOCAL, 6, 4, (6, 4, 0)),
        (JobKind.LOCAL, 9, 10, (9, 1, 1)),
    ],
)
def test_limits_count_what_was_emitted_elsewhere(
    kind: JobKind, emitted: int, min_tokens: int, expected: tuple[int, int, int]
) -> None:
    job = make_job(kind, emitted=emitted, min_tokens=min_tokens)
    params = params_of(job)
    assert (first_output_index(job), params.max_tokens, params.min_tokens) == expected


@pytest.mark.parametrize("kind", list(JobKind))
def test_the_noise_key_names_seed_and_index_and_vllms_own_seed_stays_unset(kind: JobKind) -> None:
    job = make_job(kind, seed=-(2**63))
    params = params_of(job)
    assert params.seed is None
    assert read_noise_key(params.extra_args) == NoiseKey(
        seed=-(2**63), first_output_index=first_output_index(job)
    )


@pytest.mark.parametrize("kind", list(JobKind))
def test_the_connector_reads_what_the_engine_was_given(kind: JobKind) -> None:
    params = params_of(make_job(kind))
    assert params.extra_args is not None
    assert JobParams.from_extra_args(params.extra_args["kv_transfer_params"]) == JobParams(
        key="r1/0",
        kind=kind,
        deadline_s=60.0,
        source=SOURCE if kind is JobKind.DECODE else None,
    )


def test_a_request_of_somebody_else_has_no_job() -> None:
    assert JobParams.from_extra_args(None) is None
    assert JobParams.from_extra_args({"do_remote_decode": True}) is None


def test_values_pass_unchanged() -> None:
    params = params_of(
        make_job(
            JobKind.LOCAL,
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=-0.3,
            stop=("x",),
            stop_token_ids=(5, 6),
            ignore_eos=True,
            logit_bias=((3, 1.5), (4, -2.0)),
            allowed_token_ids=(3, 4),
            bad_words=("no",),
            logprobs=2,
        )
    )
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 40, 0.05)
    assert params.repetition_penalty == 1.1
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, -0.3)
    assert params.stop_token_ids == [5, 6]
    assert params.ignore_eos
    assert params.logit_bias == {3: 1.5, 4: -2.0}
    assert params.allowed_token_ids == [3, 4]
    assert params.bad_words == ["no"]
    assert params.logprobs == 2
    # Stop strings and text are pdd's own: one output path for both engines' tokens.
    assert (params.stop, params.detokenize) == ([], False)
    assert params.output_kind is vllm.sampling_params.RequestOutputKind.DELTA


def test_no_limit_and_nothing_asked_stay_so() -> None:
    params = params_of(make_job(JobKind.LOCAL))
    assert params.top_k == 0
    assert (params.logprobs, params.logit_bias, params.allowed_token_ids) == (None, None, None)
    assert params.structured_outputs is None


@pytest.mark.parametrize(
    ("grammar", "field", "value"),
    [
        (Grammar(kind="json_object"), "json_object", True),
        (Grammar(kind="json_schema", value='{"type": "object"}'), "json", '{"type": "object"}'),
        (Grammar(kind="regex", value="a+"), "regex", "a+"),
        (Grammar(kind="choice", value='["yes", "two\\nlines"]'), "choice", ["yes", "two\nlines"]),
        (Grammar(kind="grammar", value='root ::= "a"'), "grammar", 'root ::= "a"'),
    ],
)
def test_grammars(grammar: Grammar, field: str, value: Any) -> None:
    structured = params_of(make_job(JobKind.LOCAL, grammar=grammar)).structured_outputs
    assert structured is not None
    assert getattr(structured, field) == value


def test_an_unknown_grammar_is_the_clients_fault() -> None:
    with pytest.raises(ValueError, match="'poem' is not known"):
        params_of(make_job(JobKind.LOCAL, grammar=Grammar(kind="poem")))


def test_what_vllm_refuses_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="top_p"):
        params_of(make_job(JobKind.LOCAL, top_p=1.5))


async def test_and_the_engine_says_that_the_request_is_at_fault() -> None:
    engine = VllmEngine(
        settings=SimpleNamespace(rpc_dir=Path("none")),  # type: ignore[arg-type]
        identity=make_identity("decode-0"),
        tokenizer=letter_tokenizer(),
        clock=lambda: 0.0,
    )
    engine._llm = SimpleNamespace()  # type: ignore[assignment]  # never reached
    with pytest.raises(InvalidRequest, match="top_p"):
        await anext(engine.run(make_job(JobKind.LOCAL, top_p=1.5)))
    engine._thread.shutdown()


def test_a_runner_that_draws_by_position_gets_the_seed_itself() -> None:
    params = sampling_params(make_job(JobKind.DECODE, seed=77), native_seeds=True)
    assert params.seed == 77
    assert params.extra_args is not None
    assert "pdd" not in params.extra_args


def test_a_runner_with_stateful_draws_gets_the_seed_by_the_keyed_sampler() -> None:
    params = sampling_params(make_job(JobKind.DECODE, seed=77), native_seeds=False)
    assert params.seed is None
    assert params.extra_args is not None
    assert params.extra_args["pdd"] == {"seed": 77, "first_output_index": 1}
