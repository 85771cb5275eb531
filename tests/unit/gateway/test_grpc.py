"""The public gRPC service, through a plain client."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    NodeUnavailable,
    RequestFailed,
)
from pdd.gateway.grpc_inference import InferenceServicer
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.server import make_runs
from pdd.gateway.settings import GatewaySettings
from pdd.rpc.v1 import inference_pb2 as pb
from pdd.rpc.v1.inference_pb2_grpc import InferenceStub
from tests.sinks import Delta, Planned
from tests.unit.gateway.builders import (
    MODEL,
    PLAN,
    Flood,
    LetterTokenizer,
    ScriptedInference,
    ended,
    frames,
    script,
    soon,
)


@asynccontextmanager
async def service(
    steps: list[Any],
    *,
    inference: Any = None,
    settings: GatewaySettings | None = None,
) -> AsyncIterator[tuple[InferenceStub, ScriptedInference, GatewayMetrics]]:
    player = ScriptedInference(steps) if inference is None else inference
    letters = LetterTokenizer()
    metrics = GatewayMetrics()
    server = grpc.aio.server()
    settings = settings or GatewaySettings()
    servicer = InferenceServicer(
        inference=player,
        runs=make_runs(inference=player, settings=settings, clock=time.monotonic),
        tokenizer=letters,
        model=MODEL,
        settings=settings,
        metrics=metrics,
    )
    servicer.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    player.stop = servicer.stop
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield InferenceStub(channel), player, metrics
    finally:
        await server.stop(grace=None)
        letters.close()


async def test_a_request_is_a_plan_then_tokens_then_an_end() -> None:
    async with service(script("Hel", "lo", logprobs=1)) as (stub, player, _):
        request = pb.GenerateRequest(
            text="hi", sampling=pb.SamplingParameters(max_tokens=4, logprobs=1, seed=7)
        )
        responses = [response async for response in stub.Generate(request)]
        assert [response.WhichOneof("event") for response in responses] == [
            "plan",
            "tokens",
            "end",
        ]
        assert {response.request_id for response in responses} == {player.requests[0].request_id}
        assert responses[0].plan.decode_node == "decode-0"
        tokens = responses[1].tokens  # both came in one flush interval
        assert tokens.text == "Hello"
        assert list(tokens.token_ids) == [100, 101]
        assert [one.chosen.token_bytes for one in tokens.logprobs] == [b"Hel", b"lo"]
        end = responses[2].end
        assert end.finish_reason == "stop"
        assert end.usage.transferred_bytes == 4096
        assert not end.HasField("stop_token_id")
        sampling = player.requests[0].sampling
        assert (sampling.max_tokens, sampling.seed, sampling.logprobs) == (4, 7, 1)
        assert sampling.temperature == 1.0
        assert sampling.skip_special_tokens


async def test_tokens_of_one_flush_interval_share_a_message() -> None:
    first, *rest = frames(*"abcdefgh")
    gate = asyncio.Event()
    end = ended(completion_tokens=8)
    steps = [Planned(plan=PLAN), first, gate, *rest, asyncio.Event(), end]
    async with service(steps, settings=GatewaySettings(grpc_flush_s=0.01)) as (stub, player, _):
        call = stub.Generate(pb.GenerateRequest(text="x"))
        assert (await call.read()).WhichOneof("event") == "plan"
        assert (await call.read()).tokens.text == "a", "the first one waits for nobody"
        gate.set()
        tokens = (await call.read()).tokens  # the end is not there yet, and not waited for
        assert tokens.text == "bcdefgh"
        assert (tokens.first_token_index, tokens.text_offset) == (1, 1)
        assert len(tokens.token_ids) == 7
        player.steps[-2].set()
        assert (await call.read()).end.usage.completion_tokens == 8
        assert await call.read() is grpc.aio.EOF


async def test_the_end_does_not_wait_for_the_interval() -> None:
    async with service(script("a", "b"), settings=GatewaySettings(grpc_flush_s=60)) as (stub, _, _):
        async with asyncio.timeout(10):
            kinds = [
                r.WhichOneof("event") async for r in stub.Generate(pb.GenerateRequest(text="x"))
            ]
        assert kinds[0] == "plan"
        assert kinds[-1] == "end"


async def test_all_three_kinds_of_prompt_are_tokenised_as_over_http() -> None:
    async with service(script("a")) as (stub, player, _):
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])
        for request in (
            pb.GenerateRequest(text="A"),
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6]), tenant="acme"),
            pb.GenerateRequest(chat=chat, model="tiny", cache_salt="s", priority=3),
        ):
            async for _ in stub.Generate(request):
                pass
        text, ids, conversation = player.requests
        assert text.prompt_token_ids == (1, 65)
        assert text.sampling.max_tokens == 16
        assert ids.prompt_token_ids == (5, 6)
        assert [request.tenant for request in player.requests] == ["default", "acme", "default"]
        assert "".join(map(chr, conversation.prompt_token_ids)) == "user:x\nassistant:"
        assert (conversation.cache_salt, conversation.priority) == ("s", 3)
        assert {request.deadline_s for request in player.requests} == {600.0}  # none was set


@pytest.mark.parametrize("reason", ["word", 17])
async def test_what_stopped_the_output_is_told(reason: str | int) -> None:
    end = ended(stop_reason=reason, completion_tokens=1)
    async with service([Planned(plan=PLAN), *frames("a"), end]) as (stub, _, _):
        responses = [r async for r in stub.Generate(pb.GenerateRequest(text="x"))]
        end = responses[-1].end
        assert (end.stop_string or end.stop_token_id) == reason


BAD = [
    (pb.GenerateRequest(), "prompt: is required"),
    (pb.GenerateRequest(text=""), "prompt: is empty"),
    (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[])), "prompt: is empty"),
    (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300])), "ids go from 0 to 255"),
    (pb.GenerateRequest(text="x" * 200), "at most 99 here"),
    (pb.GenerateRequest(text="x", tenant="a b"), 'tenant: "a b" must have 1 to 64'),
    (pb.GenerateRequest(text="x", model="gpt-9"), "'tiny' is served"),
    (pb.GenerateRequest(text="x", priority=3, cache_salt="s" * 200), "at most 128"),
    (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(temperature=3)),
        "temperature: Input should be less than or equal to 2 (got 3.0)",
    ),
    (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(temperature=float("nan"))),
        "temperature",
    ),
    (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(max_tokens=0)),
        "max_tokens: Input should be greater than or equal to 1",
    ),
    (
        pb.GenerateRequest(text="x", sampling=pb.SamplingParameters(logit_bias={999: 1.0})),
        "logit_bias",
    ),
    (pb.GenerateRequest(chat=pb.Chat(messages=[])), "messages"),
    (
        pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="robot", content="x")])),
        "messages.0.role",
    ),
]


@pytest.mark.parametrize(("request_", "says"), BAD, ids=[says for _, says in BAD])
async def test_bad_requests_are_invalid_argument_with_field_and_bound(
    request_: Any, says: str
) -> None:
    async with service(script("a")) as (stub, player, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(request_):
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert says in (caught.value.details() or "")
        assert player.requests == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AdmissionRejected("full", retry_after_s=1.5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NodeUnavailable("none"), grpc.StatusCode.UNAVAILABLE),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (RequestFailed("died"), grpc.StatusCode.INTERNAL),
        (ZeroDivisionError("a fault of ours"), grpc.StatusCode.INTERNAL),
    ],
)
@pytest.mark.parametrize("started", [True, False])
async def test_errors_have_the_status_that_the_service_promises(
    error: Exception, code: grpc.StatusCode, started: bool
) -> None:
    steps = [Planned(plan=PLAN), *frames("a"), error] if started else [error]
    async with service(steps) as (stub, _, metrics):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(pb.GenerateRequest(text="x")):
                pass
        assert caught.value.code() is code
        trailing = dict(caught.value.trailing_metadata() or ())
        assert trailing["x-pdd-request-id"].startswith("r-")
        if isinstance(error, AdmissionRejected):
            assert trailing["retry-after"] == "2"
        assert metrics.registry.get_sample_value("pdd_requests_running") == 0


@pytest.mark.parametrize(
    "before", [[], [Planned(plan=PLAN)], [Planned(plan=PLAN), *frames("a")]], ids=len
)
async def test_ending_the_call_closes_the_run_in_every_phase(before: list[Any]) -> None:
    async with service([*before, asyncio.Event()]) as (stub, player, _):
        call = stub.Generate(pb.GenerateRequest(text="x"))
        reading = asyncio.create_task(call.read())
        await soon(player.waiting)
        call.cancel()
        await soon(player.closed)
        assert player.open_count == 0
        await asyncio.wait({reading})


async def test_the_deadline_of_the_call_is_the_request_s_and_ends_it() -> None:
    async with service([Planned(plan=PLAN), asyncio.Event()]) as (stub, player, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(pb.GenerateRequest(text="x"), timeout=0.3):
                pass
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0 < player.requests[0].deadline_s < 1
        await soon(player.closed)


async def test_no_deadline_of_a_call_is_longer_than_a_request_may_take() -> None:
    async with service(script("x")) as (stub, player, _):
        async for _ in stub.Generate(pb.GenerateRequest(text="x"), timeout=86_400.0):
            pass
        assert player.requests[0].deadline_s == 600.0


async def test_a_client_that_stops_reading_is_dropped() -> None:
    flood = Flood()
    settings = GatewaySettings(write_stall_s=0.2)
    async with service([], inference=flood, settings=settings) as (stub, _, metrics):
        call = stub.Generate(pb.GenerateRequest(text="x"))
        await call.read()
        await soon(flood.closed)
        labels = {"surface": "grpc", "path": "disaggregated", "outcome": "stalled"}
        assert metrics.registry.get_sample_value("pdd_requests_total", labels) == 1
        call.cancel()


async def test_stopping_ends_open_calls_with_unavailable_and_a_reason() -> None:
    async with service([Planned(plan=PLAN), asyncio.Event()]) as (stub, player, _):
        call = stub.Generate(pb.GenerateRequest(text="x"))
        await soon(player.waiting)
        await player.stop(grace_s=0.0)
        with pytest.raises(grpc.aio.AioRpcError, match="is stopping") as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert player.open_count == 0


async def test_a_call_goes_on_where_another_one_broke_off() -> None:
    gate = asyncio.Event()
    one, *rest = frames("a", "b", "c", logprobs=1)
    steps = [Planned(plan=PLAN), one, gate, *rest, ended(completion_tokens=3)]
    async with service(steps) as (stub, player, _):
        request = pb.GenerateRequest(text="hi", idempotency_key="k1")
        broken = stub.Generate(request)
        assert (await broken.read()).WhichOneof("event") == "plan"
        assert (await broken.read()).tokens.text == "a"
        request_id = player.requests[0].request_id
        broken.cancel()
        place = pb.ResumeFrom(request_id=request_id, next_token_index=1)
        again = stub.Generate(pb.GenerateRequest(resume_from=place))
        assert (await again.read()).WhichOneof("event") == "plan"
        gate.set()
        responses = []
        while (response := await again.read()) is not grpc.aio.EOF:
            responses.append(response)
        assert {response.request_id for response in responses} == {request_id}
        tokens = [one.tokens for one in responses if one.WhichOneof("event") == "tokens"]
        assert "".join(token.text for token in tokens) == "bc"
        assert tokens[0].first_token_index == 1
        assert responses[-1].end.usage.completion_tokens == 3
        assert len(player.requests) == 1


async def test_a_call_with_a_known_key_is_told_all_of_it_again() -> None:
    async with service(script("a", "b")) as (stub, player, _):
        request = pb.GenerateRequest(text="hi", idempotency_key="k1")
        for _ in range(2):
            responses = [response async for response in stub.Generate(request)]
            assert "".join(response.tokens.text for response in responses) == "ab"
        assert len(player.requests) == 1
        request.text = "other"
        with pytest.raises(grpc.aio.AioRpcError, match="another body"):
            await stub.Generate(request).read()


@pytest.mark.parametrize(
    ("request_id", "index", "extra", "code"),
    [
        ("r-nobody", 0, {}, grpc.StatusCode.NOT_FOUND),
        ("", 0, {}, grpc.StatusCode.NOT_FOUND),
        ("known", -1, {}, grpc.StatusCode.INVALID_ARGUMENT),
        ("known", 3, {}, grpc.StatusCode.INVALID_ARGUMENT),
        ("known", 1, {"text": "hi"}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_resumed_is_refused(
    request_id: str, index: int, extra: dict[str, Any], code: grpc.StatusCode
) -> None:
    async with service(script("a", "b")) as (stub, player, _):
        async for _ in stub.Generate(pb.GenerateRequest(text="hi", idempotency_key="k1")):
            pass
        known = player.requests[0].request_id
        place = pb.ResumeFrom(
            request_id=known if request_id == "known" else request_id, next_token_index=index
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(pb.GenerateRequest(resume_from=place, **extra)).read()
        assert caught.value.code() is code


async def test_a_call_that_would_go_on_in_the_middle_of_a_frame_is_refused_at_its_end_too() -> None:
    steps = [Planned(plan=PLAN), *frames("ab", "cd", tokens_per_frame=2)]
    async with service([*steps, ended(completion_tokens=4)]) as (stub, player, _):
        async for _ in stub.Generate(pb.GenerateRequest(text="hi", idempotency_key="k1")):
            pass
        place = pb.ResumeFrom(request_id=player.requests[0].request_id, next_token_index=1)
        again = stub.Generate(pb.GenerateRequest(resume_from=place))
        assert (await again.read()).WhichOneof("event") == "plan"
        with pytest.raises(grpc.aio.AioRpcError, match="no message ended there") as caught:
            await again.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_of_several_choices_goes_on_in_each_of_them() -> None:
    finish = ended().finish
    first, second = (
        [replace(delta.frame, choice_index=index) for delta in frames(*texts)]
        for index, texts in enumerate((("a", "b"), ("x", "y", "z")))
    )
    first[-1], second[-1] = replace(first[-1], finish=finish), replace(second[-1], finish=finish)
    told = [Delta(frame=frame) for frame in (*first, *second)]
    async with service([Planned(plan=PLAN), *told, ended(completion_tokens=5)]) as (
        stub,
        player,
        _,
    ):
        whole = pb.GenerateRequest(text="hi", idempotency_key="k1", n=2)
        async for _ in stub.Generate(whole):
            pass
        place = pb.ResumeFrom(request_id=player.requests[0].request_id, choice_token_indexes=[2, 1])
        texts = ["", ""]
        async for response in stub.Generate(pb.GenerateRequest(resume_from=place)):
            texts[response.tokens.choice_index] += response.tokens.text
        assert texts == ["", "yz"]
        place.choice_token_indexes[:] = [1]
        with pytest.raises(grpc.aio.AioRpcError, match="one index of 0 or more for each choice"):
            await stub.Generate(pb.GenerateRequest(resume_from=place)).read()
