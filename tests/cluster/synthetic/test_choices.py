"""``n`` > 1 through whole clusters: every choice is what a request of its own would have got."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from pdd.rpc.v1 import inference_pb2, inference_pb2_grpc
from tests.vllm.cluster import Cluster, logs, start_cluster, stop_cluster

WAIT_S = 20.0
"""How long a test waits for something to happen before it fails; nothing is measured with it."""

STORY = "The old ship sailed around the island. " * 12
SAMPLED: dict[str, Any] = {"temperature": 1.1, "seed": 7, "max_tokens": 60}
MAX_NUM_SEQS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two and two, with steps slow enough for a client to come between them. Prompts always go to
    a prefill node."""
    running = start_cluster(
        tmp_path_factory.mktemp("choices") / "state",
        *("--engine", "synthetic", "--prefill", "2", "--decode", "2"),
        *("--set", "faults.step_delay_s=0.004"),
        *("--set", "scheduler.path.mode=disaggregated"),
        *("--set", f"engine.max_num_seqs={MAX_NUM_SEQS}"),
    )
    try:
        yield running
    finally:
        stop_cluster(running)


def apart(cluster: Cluster, n: int, **fields: Any) -> list[dict[str, Any]]:
    """The oracle: a request for each choice, with the seed that it should have."""
    fields = {"prompt": STORY, **SAMPLED, **fields}
    choices = []
    for index in range(n):
        answer = cluster.complete(**{**fields, "seed": fields["seed"] + index})
        (choice,) = answer["choices"]
        choices.append({**choice, "index": index})
    return choices


class Events:
    """A stream's events, sorted out by choice; everything is checked as it comes."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = defaultdict(str)
        self.token_ids: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, str] = {}
        self.usage: dict[str, Any] = {}
        self.done = False
        self.count = 0
        self.after_first_end = 0

    def take(self, line: str, state_dir: Any) -> None:
        assert not self.done, "an event after [DONE]"
        if line == "data: [DONE]":
            self.done = True
            return
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event, (event, logs(state_dir))
        self.count += 1
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in self.finished, f"choice {index} goes on after its end"
            if self.finished:
                self.after_first_end += 1
            delta = choice.get("delta")
            self.texts[index] += choice["text"] if delta is None else delta.get("content", "")
            self.token_ids[index] += choice.get("token_ids") or []
            if choice["finish_reason"] is not None:
                self.finished[index] = choice["finish_reason"]


def stream(
    cluster: Cluster,
    body: dict[str, Any],
    *,
    path: str = "/v1/completions",
    on_event: Callable[[Events], None] = lambda _: None,
    **headers: str,
) -> Events:
    body = {**SAMPLED, **body, "stream": True, "stream_options": {"include_usage": True}}
    if path == "/v1/completions":
        body = {"prompt": STORY, "return_token_ids": True, **body}
    events = Events()
    with httpx.stream(
        "POST", f"{cluster.http}{path}", json=body, timeout=WAIT_S, headers=headers
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.take(line, cluster.state_dir)
                on_event(events)
    assert events.done
    return events


@pytest.mark.parametrize("n", [1, 2, 5])
def test_one_prefill_and_one_transfer_serve_all_choices(n: int, cluster: Cluster) -> None:
    prompt = [300 + 13 * n + 7 * i % 900 for i in range(203)]  # seen by nobody, ends in a block
    answer = cluster.complete(prompt, n=n, **SAMPLED)
    usage = answer["usage"]
    assert answer["choices"] == apart(cluster, n, prompt=prompt)
    counted = sum(len(choice["token_ids"]) for choice in answer["choices"])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (203, counted)
    assert usage["total_tokens"] == 203 + counted
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["pdd"]["decode_computed_prompt_tokens"] == 0
    single = cluster.complete([one + 1 for one in prompt], **SAMPLED)["usage"]["pdd"]
    assert usage["pdd"]["transferred_bytes"] == single["transferred_bytes"] > 0
    cluster.wait_until_idle(within_s=WAIT_S)


def test_a_stream_tells_each_choice_in_order_and_its_end_when_it_comes(cluster: Cluster) -> None:
    # Of these seeds some end long before 400 tokens: the synthetic engine says "end" now and then.
    expected = apart(cluster, 5, max_tokens=400)
    lengths = [len(choice["token_ids"]) for choice in expected]
    assert min(lengths) < max(lengths), "choose another seed: all have the same length"
    events = stream(cluster, {"n": 5, "max_tokens": 400})
    for choice in expected:
        index = choice["index"]
        assert events.token_ids[index] == choice["token_ids"]
        assert events.texts[index] == choice["text"]
        assert events.finished[index] == choice["finish_reason"]
    assert events.after_first_end > 0, "an early end was told only at the end of all"
    assert events.usage["completion_tokens"] == sum(lengths)
    cluster.wait_until_idle(within_s=WAIT_S)


def test_a_stop_string_ends_its_choice_and_no_other(cluster: Cluster) -> None:
    free = apart(cluster, 3)
    stop = free[1]["text"][40:46]
    assert stop not in free[0]["text"] + free[2]["text"], "choose another seed"
    answer = cluster.complete(STORY, n=3, stop=[stop], **SAMPLED)
    assert answer["choices"] == apart(cluster, 3, stop=[stop])
    assert [choice["stop_reason"] for choice in answer["choices"]] == [None, stop, None]
    cluster.wait_until_idle(within_s=WAIT_S)


def test_chat_answers_alike_in_a_stream_and_in_one_piece(cluster: Cluster) -> None:
    messages = [{"role": "user", "content": STORY}]
    body = {"messages": messages, "n": 3, **SAMPLED}
    whole = cluster.post("/v1/chat/completions", body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 3
    events = stream(cluster, {"messages": messages, "n": 3}, path="/v1/chat/completions")
    assert [events.texts[index] for index in range(3)] == texts
    assert events.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    for index in range(3):
        single = {**body, "n": 1, "seed": SAMPLED["seed"] + index}
        (choice,) = cluster.post("/v1/chat/completions", single).json()["choices"]
        assert choice["message"]["content"] == texts[index]


def test_logprobs_echo_and_penalties_are_those_of_single_requests(cluster: Cluster) -> None:
    fields = {"logprobs": 2, "max_tokens": 20}
    assert cluster.complete(STORY, n=3, **{**SAMPLED, **fields})["choices"] == apart(
        cluster, 3, **fields
    )
    local = {"presence_penalty": 1.2, "echo": True}
    answer = cluster.complete(STORY, n=3, **{**SAMPLED, **local})
    assert answer["choices"] == apart(cluster, 3, **local)
    assert answer["usage"]["pdd"]["path"] == "local"
    assert answer["usage"]["pdd"]["decode_computed_prompt_tokens"] <= len(STORY)
    cluster.wait_until_idle(within_s=WAIT_S)


def test_one_token_each_is_drawn_on_the_prefill_node(cluster: Cluster) -> None:
    answer = cluster.complete(STORY, n=5, **{**SAMPLED, "max_tokens": 1})
    assert answer["choices"] == apart(cluster, 5, max_tokens=1)
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["pdd"]["decode_node"] is None
    cluster.wait_until_idle(within_s=WAIT_S)


def test_more_choices_than_a_node_runs_are_refused_by_name(cluster: Cluster) -> None:
    refused = cluster.post("/v1/completions", {"prompt": "x", "n": MAX_NUM_SEQS + 1})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "n"
    assert f"{MAX_NUM_SEQS + 1} choices" in error["message"]
    assert f"it holds {MAX_NUM_SEQS}" in error["message"]
    answer = cluster.complete("x", n=MAX_NUM_SEQS, max_tokens=3, seed=1)
    assert len(answer["choices"]) == MAX_NUM_SEQS


def test_grpc_tells_the_same(cluster: Cluster) -> None:
    expected = apart(cluster, 3, max_tokens=30)
    request = inference_pb2.GenerateRequest(
        text=STORY,
        n=3,
        sampling=inference_pb2.SamplingParameters(max_tokens=30, temperature=1.1, seed=7),
    )
    token_ids: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, str] = {}
    with grpc.insecure_channel(cluster.grpc) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for response in stub.Generate(request, timeout=WAIT_S):
            match response.WhichOneof("event"):
                case "tokens":
                    index = response.tokens.choice_index
                    assert index not in ends
                    assert response.tokens.first_token_index == len(token_ids[index])
                    token_ids[index] += response.tokens.token_ids
                case "choice_end":
                    ends[response.choice_end.choice_index] = response.choice_end.finish_reason
                case "end":
                    usage = response.end.usage
    assert dict(token_ids) == {one["index"]: one["token_ids"] for one in expected}
    assert ends == {one["index"]: one["finish_reason"] for one in expected}
    assert usage.completion_tokens == sum(map(len, token_ids.values()))


def test_a_keyed_request_joins_all_choices(cluster: Cluster) -> None:
    key = {"idempotency-key": "choices-1"}
    first = stream(cluster, {"n": 3}, **key)
    again = stream(cluster, {"n": 3}, **key)
    assert (again.texts, again.finished, again.token_ids) == (
        first.texts,
        first.finished,
        first.token_ids,
    )
    assert again.count < first.count, "it ran anew"
    assert again.usage == first.usage


def test_such_a_stream_goes_on_behind_any_of_its_events(cluster: Cluster) -> None:
    key = {"idempotency-key": "choices-2"}
    first = stream(cluster, {"n": 2, "seed": 99}, **key)
    body = {"prompt": STORY, "return_token_ids": True, **SAMPLED, "n": 2, "seed": 99}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    again = httpx.post(f"{cluster.http}/v1/completions", json=body, headers=key, timeout=WAIT_S)
    request_id = again.headers["x-pdd-request-id"]
    ended = len(first.token_ids[1])
    for place, left in (("7,3", (7, 3)), (f"0,{ended}f", (0, ended)), ("-,5", (0, 5))):
        rest = httpx.get(
            f"{cluster.http}/v1/streams/{request_id}",
            headers={"last-event-id": f"{request_id}:{place}"},
            timeout=WAIT_S,
        )
        token_ids: dict[int, list[int]] = {0: [], 1: []}
        for line in rest.text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    token_ids[choice["index"]] += choice.get("token_ids") or []
        assert token_ids == {index: first.token_ids[index][left[index] :] for index in (0, 1)}
        assert rest.text.endswith("data: [DONE]\n\n")


def test_leaving_while_the_prompt_is_computed_frees_everything(cluster: Cluster) -> None:
    prompt = [300 + 11 * i % 5000 for i in range(16_000)]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{cluster.http}/v1/completions",
            json={"prompt": prompt, "n": 4, **SAMPLED},
            timeout=httpx.Timeout(WAIT_S, read=0.1),
        )
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.parametrize("event_count", [1, 4, 5, 40])
def test_leaving_after_some_tokens_frees_everything(cluster: Cluster, event_count: int) -> None:
    seen = 0
    body = {"prompt": STORY, **SAMPLED, "n": 4, "max_tokens": 300, "stream": True}
    with httpx.stream(
        "POST", f"{cluster.http}/v1/completions", json=body, timeout=WAIT_S
    ) as response:
        for line in response.iter_lines():
            seen += line.startswith("data: ")
            if seen == event_count:
                break
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.fault
@pytest.mark.parametrize(("role", "event_count"), [("prefill", 1), ("decode", 60), ("decode", 400)])
def test_a_node_that_is_killed_mid_stream_costs_time_and_nothing_else(
    role: str, event_count: int, cluster: Cluster
) -> None:
    """After 400 events some choices have ended: only the others are resumed."""
    fields = {"max_tokens": 200, "seed": 7}
    expected = apart(cluster, 4, **fields)
    pids = {row["name"]: row["pid"] for row in cluster.node_list() if row["role"] == role}

    def kill(events: Events) -> None:
        if events.count == event_count:
            gauges = cluster.node_gauges()
            running = [
                name
                for name in pids
                if gauges[f'pdd_node_sequences{{node="{name}",state="running"}}'] > 0
            ]
            for name in running or sorted(pids)[:1]:
                os.kill(pids[name], signal.SIGKILL)

    events = stream(cluster, {"n": 4, **fields}, on_event=kill)
    for choice in expected:
        index = choice["index"]
        assert events.token_ids[index] == choice["token_ids"]
        assert events.texts[index] == choice["text"]
        assert events.finished[index] == choice["finish_reason"]
    if role == "decode":
        assert events.usage["pdd"]["path"] == "local", "another node went on after the lost one"
    cluster.wait_until_ready()
    cluster.wait_until_idle(within_s=WAIT_S)
