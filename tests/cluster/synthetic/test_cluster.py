"""Whole clusters of daemons through the real command line and HTTP, without a model."""

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from typing import Any

import httpx
import pytest

from pdd.cli.main import main
from tests.vllm.cluster import Cluster, Node, logs, run_here, start_cluster, stop_cluster
from tests.waiting import wait_until

WAIT_S = 20.0
"""How long a test waits for something to happen before it fails; nothing is measured with it."""

LONG: dict[str, Any] = {"max_tokens": 200, "temperature": 0.8, "seed": 11, "ignore_eos": True}
STORY = "The old ship sailed around the island. " * 12
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": "The quick brown fox", "temperature": 0.0},
    "seeded": {"prompt": "The quick brown fox", "seed": 5, "top_p": 0.9},
    "unicode": {"prompt": "Größe, naïve café, 東京タワー, 🙂", "temperature": 0.0},
    "many blocks": {"prompt": STORY, "temperature": 0.0, "logprobs": 2},
    "several chunks": {"prompt": [300 + 7 * i % 5000 for i in range(5000)], "seed": 2},
    "one block": {"prompt": list(range(300, 316)), "temperature": 0.0},
    "one token": {"prompt": [400], "temperature": 0.0},
    "penalty": {"prompt": "to be or not to be", "temperature": 0.0, "presence_penalty": 1.0},
    "stop string": {"prompt": "The end of", "temperature": 0.0, "stop": ["ing", "ed"]},
    "to the end": {"prompt": "Once upon a time", "seed": 9, "max_tokens": 400},
}
"""Each is asked twice: the second time with a warm cache."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one node says that does everything."""
    cluster = start(tmp_path_factory, "alone", "--prefill", "0", "--decode", "1")
    try:
        answers = {name: answer(cluster, fields) for name, fields in CASES.items()}
        answers["long"] = answer(cluster, {"prompt": STORY, **LONG})
        return answers
    finally:
        stop_cluster(cluster)


@pytest.fixture(scope="module")
def cluster(
    expected: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two and two, with steps slow enough for a client to come between them."""
    step = ("--set", "faults.step_delay_s=0.004")
    running = start(tmp_path_factory, "pair", "--prefill", "2", "--decode", "2", *step)
    try:
        yield running
    finally:
        stop_cluster(running)


def start(factory: pytest.TempPathFactory, name: str, *options: str) -> Cluster:
    """Every prompt is handed over, however much of it the decode node holds."""
    state_dir = factory.mktemp(name) / "state"
    always = ("--set", "scheduler.path.local_stall_s=0.000001")
    return start_cluster(state_dir, "--engine", "synthetic", *always, *options)


def complete(cluster: Cluster, fields: dict[str, Any]) -> dict[str, Any]:
    return cluster.complete(**{"max_tokens": 30, **fields})


def comparable(whole: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that must not depend on where it was computed."""
    return {"choices": whole["choices"], "completion_tokens": whole["usage"]["completion_tokens"]}


def answer(cluster: Cluster, fields: dict[str, Any]) -> dict[str, Any]:
    return comparable(complete(cluster, fields))


def stream(
    cluster: Cluster,
    fields: dict[str, Any],
    *,
    on_token: Callable[[int, dict[str, Any]], None] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Text and usage; ``on_token`` gets the number of events so far and the newest."""
    body = {**fields, "stream": True, "stream_options": {"include_usage": True}}
    text, usage, count = "", {}, 0
    with httpx.stream(
        "POST", f"{cluster.http}/v1/completions", json=body, timeout=WAIT_S
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, (event, logs(cluster.state_dir))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["text"]
                count += 1
                if on_token is not None:
                    on_token(count, event)
    return text, usage


def why(cluster: Cluster, request_id: str) -> list[dict[str, Any]]:
    done = run_here("why", request_id, "-o", "json", "--state-dir", str(cluster.state_dir))
    assert done.returncode == 0, done.stderr
    decisions: list[dict[str, Any]] = json.loads(done.stdout)
    return decisions


@pytest.mark.parametrize("case", CASES)
def test_two_nodes_answer_what_one_answers(
    case: str, cluster: Cluster, expected: dict[str, Any]
) -> None:
    assert answer(cluster, CASES[case]) == expected[case]
    warm = complete(cluster, CASES[case])
    assert comparable(warm) == expected[case]
    usage = warm["usage"]
    path = "local" if case == "penalty" else "disaggregated"
    assert usage["pdd"]["path"] == path
    if path == "disaggregated" and usage["completion_tokens"] > 1:
        assert usage["pdd"]["decode_computed_prompt_tokens"] == 0
        assert usage["pdd"]["transferred_bytes"] > 0


def test_tenants_share_no_blocks_and_are_counted_apart(cluster: Cluster) -> None:
    fields: dict[str, Any] = {"prompt": [310 + 3 * i for i in range(160)], "temperature": 0.0}
    tenants = ("acme", "umbrella", None, "acme", "umbrella", None)
    # On one pair of nodes, so that what is found does not depend on where it was placed.
    answers = [
        complete(cluster, {**fields, "prompt_cache_key": "k", "tenant": tenant})
        for tenant in tenants
    ]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached[:3] == [0, 0, 0]
    assert min(cached[3:]) > 0
    assert [comparable(one) for one in answers[1:]] == [comparable(answers[0])] * 5

    (decision,) = why(cluster, answers[0]["usage"]["pdd"]["request_id"])
    assert decision["tenant"] == "acme"
    metrics = httpx.get(f"{cluster.http}/metrics", timeout=WAIT_S).text
    assert 'pdd_tenant_requests_total{outcome="finished",tenant="acme"} 2.0' in metrics
    assert f'pdd_tenant_tokens_total{{kind="cached",tenant="acme"}} {cached[3]}.0' in metrics


def test_a_running_request_s_blocks_are_located_on_its_nodes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    located: list[dict[str, Any]] = []

    def look(count: int, event: dict[str, Any]) -> None:
        if count == 5:  # in this process: another one takes longer to start than the answer
            located.append(json.loads(locate(event["id"])))

    def locate(what: str) -> str:
        assert main(["block", "locate", what, "-o", "json", "--scheduler", cluster.grpc]) == 0
        return capsys.readouterr().out

    _, usage = stream(cluster, {"prompt": STORY, **LONG}, on_token=look)
    (told,) = located
    assert (told["phase"], told["path"]) == ("decoding", "disaggregated")
    assert told["owner"] == usage["pdd"]["decode_node"]
    assert told["watermark_tokens"] == usage["prompt_tokens"] + told["output_tokens"]
    (decode,) = [one for one in told["nodes"] if one["node"] == told["owner"]]
    holders = json.loads(locate(told["prompt_keys"][0]))["holders"]
    assert told["owner"] in holders
    ((*block_ids,),) = decode["rank_block_ids"]
    assert len(set(block_ids)) == len(block_ids) >= usage["prompt_tokens"] // 16

    done = run_here("block", "locate", told["request_id"], "--state-dir", str(cluster.state_dir))
    assert (done.returncode, done.stdout) == (1, "")
    assert "has ended: no block is held for it any more" in done.stderr


def test_what_the_engine_cannot_do_is_the_client_s_fault(cluster: Cluster) -> None:
    refused = cluster.post(
        "/v1/completions", {"prompt": "x", "response_format": {"type": "json_object"}}
    )
    assert refused.status_code == 400
    assert "follows no grammar" in refused.json()["error"]["message"]


def test_leaving_while_the_prompt_is_computed_frees_everything(cluster: Cluster) -> None:
    prompt = [300 + 11 * i % 5000 for i in range(16_000)]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{cluster.http}/v1/completions",
            json={"prompt": prompt, **LONG},
            timeout=httpx.Timeout(WAIT_S, read=0.1),
        )
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.parametrize("event_count", [1, 2, 12])
def test_leaving_after_some_tokens_frees_everything(cluster: Cluster, event_count: int) -> None:
    seen = 0
    with httpx.stream(
        "POST",
        f"{cluster.http}/v1/completions",
        json={"prompt": STORY, **LONG, "stream": True},
        timeout=WAIT_S,
    ) as response:
        for line in response.iter_lines():
            seen += line.startswith("data: ")
            if seen == event_count:
                break
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.fault
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_that_is_killed_mid_stream_costs_time_and_nothing_else(
    role: str, cluster: Cluster, expected: dict[str, Any]
) -> None:
    pids = {row["name"]: row["pid"] for row in cluster.node_list() if row["role"] == role}

    def kill(count: int, _event: dict[str, Any]) -> None:
        if count == (1 if role == "prefill" else 20):
            for name in busy(cluster, pids):
                os.kill(pids[name], signal.SIGKILL)

    text, usage = stream(cluster, {"prompt": STORY, **LONG}, on_token=kill)

    assert text == expected["long"]["choices"][0]["text"]
    assert usage["completion_tokens"] == LONG["max_tokens"]
    if role == "decode":
        assert usage["pdd"]["path"] == "local", "another node went on after the lost one"
        cluster.wait_until_ready()
    cluster.wait_until_idle(within_s=WAIT_S)


def logged(cluster: Cluster, node: str) -> str:
    return (cluster.state_dir / "log" / f"{node}.log").read_text()


def busy(cluster: Cluster, names: Collection[str]) -> list[str]:
    """Those that run a sequence; if none does any more, the first of them. Asked over HTTP: the
    command line takes longer to start than the stream may last."""
    gauges = cluster.node_gauges()
    running = [
        name for name in names if gauges[f'pdd_node_sequences{{node="{name}",state="running"}}'] > 0
    ]
    return running or sorted(names)[:1]


@pytest.mark.fault
@pytest.mark.parametrize("point", ["first_sample", "target_opened"])
def test_neither_a_crash_at_a_named_point_nor_a_flipped_byte_changes_the_text(
    point: str, expected: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The node dies at the first request. Its successor's first transfer is damaged."""
    faults = (f"faults.crash_at={point}", "faults.transfer_flip_byte_in_chunk=0")
    options = [word for fault in faults for word in ("--set", fault)]
    crashing = start(tmp_path_factory, point, *options)
    before: tuple[Node, ...] = crashing.nodes
    try:
        text, usage = stream(crashing, {"prompt": STORY, **LONG})
        assert text == expected["long"]["choices"][0]["text"]
        assert usage["completion_tokens"] == LONG["max_tokens"]
        crashing.wait_until_ready()
        after = {row["pid"] for row in crashing.node_list()}
        assert after - {node.pid for node in before}, "nobody has died"
        assert answer(crashing, CASES["many blocks"]) == expected["many blocks"]
        assert "kv_digest_mismatched" in logged(crashing, "decode-0")
    finally:
        stop_cluster(crashing)


TURN = [310 + 3 * i for i in range(200)]


def wait_until_known(cluster: Cluster, block_count: int) -> None:
    """Until the directory has heard of so many blocks."""

    def known_count() -> float:
        text = httpx.get(f"{cluster.http}/metrics", timeout=WAIT_S).text
        lines = [line for line in text.splitlines() if line.startswith("pdd_directory_blocks")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    wait_until(lambda: known_count() >= block_count, lambda: f"{block_count}; {known_count()}")


def test_a_long_second_turn_pulls_what_the_prefill_node_lacks(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The answer's blocks are on the decode node only."""
    options = ("--prefill", "1", "--decode", "1", "--set", "scheduler.path.pull=always")
    cluster = start(tmp_path_factory, "pulls", *options)
    try:
        first = complete(cluster, {"prompt": TURN, **LONG})
        history = TURN + first["choices"][0]["token_ids"]
        held, had = (len(history) - 1) // 16 * 16, len(TURN) // 16 * 16
        wait_until_known(cluster, held // 16)
        asked = {"prompt": history + TURN[:100], **LONG}
        second = complete(cluster, asked)
        usage = second["usage"]
        assert usage["pdd"]["path"] == "disaggregated"
        assert usage["pdd"]["decode_computed_prompt_tokens"] == 0
        assert usage["pdd"]["pulled_tokens"] == held - had
        assert usage["pdd"]["pulled_bytes"] > 0
        assert usage["prompt_tokens_details"]["cached_tokens"] == held
        (decision,) = why(cluster, usage["pdd"]["request_id"])
        assert decision["path_inputs"]["pull_tokens"] == held - had
        assert f"{held - had} tokens come from decode-0" in decision["reason"]
        # With nothing of it in any cache it is the same text.
        computed = complete(cluster, {**asked, "cache_salt": "nobody's"})
        assert computed["usage"]["pdd"]["pulled_tokens"] == 0
        assert comparable(second) == comparable(computed)
        cluster.wait_until_idle(within_s=WAIT_S)
        metrics = httpx.get(f"{cluster.http}/metrics", timeout=WAIT_S).text
        assert 'pdd_kv_transfer_completed_pulls_total{node="prefill-0"} 1.0' in metrics
    finally:
        stop_cluster(cluster)
