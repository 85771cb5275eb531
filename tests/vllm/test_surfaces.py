"""The ways in: the openai client, server-sent events, gRPC, the command line."""

import json

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pdd.rpc.v1 import inference_pb2, inference_pb2_grpc
from tests.vllm.cluster import Cluster, run_cli

QUESTION = "What is the capital of France?"


def test_the_openai_client_works_unmodified(pair: Cluster) -> None:
    client = openai.OpenAI(base_url=f"{pair.http}/v1", api_key="none")
    (model,) = client.models.list().data
    answer = client.chat.completions.create(
        model=model.id,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=32,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None

    streamed = ""
    usage = None
    for chunk in client.chat.completions.create(
        model=model.id,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            streamed += choice.delta.content or ""
    assert streamed == answer.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == answer.usage.completion_tokens


def test_events_carry_one_token_each_and_end_with_done(pair: Cluster) -> None:
    body = {
        "prompt": "One, two, three,",
        "max_tokens": 6,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{pair.http}/v1/completions", json=body, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-pdd-path"] == "disaggregated"
        request_id = response.headers["x-pdd-request-id"]
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    usage = events[-1]["usage"]
    tokens = [id_ for event in events for c in event["choices"] for id_ in c["token_ids"] or ()]
    assert len(tokens) == usage["completion_tokens"] == 6
    assert usage["pdd"]["request_id"] == request_id
    assert usage["pdd"]["decode_computed_prompt_tokens"] <= 1
    assert usage["pdd"]["transferred_bytes"] > 0


def test_a_plain_grpc_client_gets_tokens_and_text(pair: Cluster) -> None:
    over_http = pair.complete("The quick brown fox", max_tokens=8, temperature=0.0)
    with grpc.insecure_channel(pair.grpc) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(
            text="The quick brown fox",
            sampling=inference_pb2.SamplingParameters(max_tokens=8, temperature=0.0),
        )
        events = list(stub.Generate(request, timeout=60))
    assert events[0].WhichOneof("event") == "plan"
    assert events[-1].WhichOneof("event") == "end"
    tokens = [id_ for event in events for id_ in event.tokens.token_ids]
    text = "".join(event.tokens.text for event in events)
    assert tokens == over_http["choices"][0]["token_ids"]
    assert text == over_http["choices"][0]["text"]
    assert events[-1].end.finish_reason == "length"
    assert events[-1].end.usage.completion_tokens == 8


def test_grpc_refuses_bad_values_naming_field_and_bound(pair: Cluster) -> None:
    with grpc.insecure_channel(pair.grpc) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(
            text="x", sampling=inference_pb2.SamplingParameters(max_tokens=4, top_p=7.0)
        )
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(request, timeout=10))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "top_p" in refused.value.details()
    assert "7" in refused.value.details()


def test_health_and_reflection_are_on(pair: Cluster) -> None:
    with grpc.insecure_channel(pair.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(
            health_pb2.HealthCheckRequest(service="pdd.rpc.v1.Inference"), timeout=10
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (listed,) = list(reflection.ServerReflectionInfo(asked, timeout=10))
    names = {service.name for service in listed.list_services_response.service}
    assert "pdd.rpc.v1.Inference" in names


def test_the_command_line_chats_and_lists_nodes(pair: Cluster) -> None:
    said = run_cli(
        "chat", QUESTION, "--temperature", "0", "--state-dir", str(pair.state_dir), timeout_s=120
    )
    assert said.returncode == 0, said.stderr
    assert "Paris" in said.stdout
    nodes = {node["name"]: node for node in pair.node_list()}
    assert set(nodes) == {"prefill-0", "decode-0"}
    assert nodes["decode-0"]["role"] == "decode"
    assert nodes["decode-0"]["state"] == "ready"
    assert nodes["decode-0"]["boot_epoch"] >= 1
    assert nodes["decode-0"]["free_block_count"] <= nodes["decode-0"]["block_count"]


BAD_BODIES = {
    "unknown model": ({"model": "gpt-17", "prompt": "x"}, "gpt-17"),
    "empty prompt": ({"prompt": ""}, "prompt"),
    "too long": ({"prompt": [5] * 3000, "max_tokens": 4}, "2048"),
    "wrong type": ({"prompt": "x", "max_tokens": "many"}, "max_tokens"),
    "temperature": ({"prompt": "x", "temperature": -1}, "temperature"),
    "token id": ({"prompt": [1, 10_000_000]}, "10000000"),
    "n": ({"prompt": "x", "n": 129}, "n"),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_bad_input_is_a_400_that_names_it(pair: Cluster, case: str) -> None:
    body, named = BAD_BODIES[case]
    response = pair.post("/v1/completions", body)

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert named in json.dumps(error)
    assert error["type"] == "invalid_request_error"
    pair.wait_until_idle(within_s=5.0)


def test_broken_json_and_oversized_bodies_are_refused(pair: Cluster) -> None:
    headers = {"content-type": "application/json"}
    url = f"{pair.http}/v1/completions"
    assert httpx.post(url, content=b'{"prompt": ', headers=headers).status_code == 400
    huge = b'{"prompt": "' + b"x" * (9 << 20) + b'"}'
    assert httpx.post(url, content=huge, headers=headers).status_code == 413
