"""Failures on a cluster of its own, in which every transfer is held back for two seconds.

One start serves all of them, so the order matters: what ends a process comes last.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.vllm.cluster import (
    Cluster,
    descendants,
    files_of,
    process_exists,
    run_cli,
    start_cluster,
    stop_cluster,
)
from tests.waiting import wait_until

DELAY_S = 2.0
pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def slow(pair: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Started after ``pair`` has answered its tests; both fit into memory."""
    cluster = start_cluster(
        tmp_path_factory.mktemp("slow") / "state", "--set", f"faults.transfer_delay_s={DELAY_S}"
    )
    try:
        yield cluster
    finally:
        stop_cluster(cluster)


def test_the_first_token_does_not_wait_for_the_transfer(slow: Cluster) -> None:
    """The second token does; the moments are the client's own."""
    slow.complete("warm up", max_tokens=2)
    events = stream(slow, {"prompt": "The first token", "max_tokens": 4, "temperature": 0.0})

    # The delay begins when the prompt is computed, a little before the first token is out.
    gap_s = events[1][0] - events[0][0]
    assert gap_s > DELAY_S / 2
    usage = events[-1][1]["usage"]["pdd"]
    assert usage["path"] == "disaggregated"
    assert usage["transfer_ms"] > DELAY_S * 1000 / 2
    assert usage["transferred_bytes"] > 0
    assert usage["decode_computed_prompt_tokens"] <= 1


def test_leaving_while_blocks_are_on_their_way_frees_both_nodes(slow: Cluster) -> None:
    with httpx.stream(
        "POST",
        f"{slow.http}/v1/completions",
        json={"prompt": "Leaving soon", "max_tokens": 50, "stream": True, "ignore_eos": True},
        timeout=60,
    ) as response:
        next(line for line in response.iter_lines() if line.startswith("data: "))
    slow.wait_until_idle(within_s=16.0)


def test_a_prefill_node_killed_during_the_transfer_costs_time_and_nothing_else(
    slow: Cluster,
) -> None:
    body = {"prompt": "In the year 1969", "max_tokens": 8, "temperature": 0.0}
    undisturbed = text_of(stream(slow, body))
    prefill = slow.node("prefill")

    def kill_after_first(count: int) -> None:
        if count == 1:
            os.kill(prefill.pid, signal.SIGKILL)

    events = stream(slow, {**body, "cache_salt": "killed"}, on_event=kill_after_first)

    assert text_of(events) == undisturbed
    usage = events[-1][1]["usage"]["pdd"]
    assert usage["path"] == "local"
    assert usage["decode_computed_prompt_tokens"] > 1, "the decode node had to compute the prompt"


def test_pdd_up_starts_the_killed_node_again_and_it_is_used(slow: Cluster) -> None:
    (prefill,) = wait_until(
        lambda: [n for n in slow.node_list() if n["role"] == "prefill" and n["state"] == "ready"],
        "the prefill node to come back",
        within_s=240,
    )
    assert prefill["boot_epoch"] == 2
    answer = slow.complete("Welcome back", max_tokens=3, temperature=0.0)
    assert answer["usage"]["pdd"]["path"] == "disaggregated"
    assert answer["usage"]["pdd"]["transferred_bytes"] > 0


def test_a_killed_decode_node_costs_time_and_no_token(slow: Cluster) -> None:
    """The only one: the stream pauses until ``pdd up`` has started it again, then goes on.

    The rest is computed from prompt and tokens as one prompt; a near-tie may fall differently
    then (design: Exactness), so the count and the order are compared, not the words.
    """
    (decode,) = [node for node in slow.node_list() if node["role"] == "decode"]

    def kill_after_fifth(count: int) -> None:
        if count == 5:
            os.kill(decode["pid"], signal.SIGKILL)

    body = {
        "prompt": "Once upon a time",
        "max_tokens": 12,
        "temperature": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    undisturbed = tokens_of(stream(slow, body))
    events = stream(slow, {**body, "cache_salt": "d"}, on_event=kill_after_fifth, timeout_s=280)

    assert len(tokens_of(events)) == 12
    assert tokens_of(events)[:5] == undisturbed[:5]
    assert events[-1][1]["usage"]["completion_tokens"] == 12
    assert events[-1][1]["usage"]["pdd"]["path"] == "local"


def test_the_end_leaves_no_process_no_shared_memory_and_no_socket(slow: Cluster) -> None:
    nodes = slow.node_list()
    pids = {node["pid"] for node in nodes} | {slow.node("scheduler").pid}
    everybody = pids.union(*(descendants(pid) for pid in pids))
    files = files_of(everybody)
    assert len(everybody) >= len(pids) + 4, "each engine runs in two processes of its own"
    assert files, "engines talk through shared memory and sockets"

    started_s = time.monotonic()
    done = run_cli("down", "--state-dir", str(slow.state_dir))
    assert done.returncode == 0, done.stderr
    print(f"pdd down took {time.monotonic() - started_s:.1f} s")
    assert not [pid for pid in sorted(everybody) if process_exists(pid)]
    assert not [path for path in sorted(files) if Path(path).exists()]


def stream(
    cluster: Cluster, body: dict[str, Any], *, on_event: Any = None, timeout_s: float = 120.0
) -> list[tuple[float, dict[str, Any]]]:
    """Every event with the moment at which it came; the last one carries the usage."""
    events: list[tuple[float, dict[str, Any]]] = []
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream(
        "POST", f"{cluster.http}/v1/completions", json=asked, timeout=timeout_s
    ) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            events.append((time.monotonic(), event))
            if on_event is not None:
                on_event(len(events))
    return events


def tokens_of(events: list[tuple[float, dict[str, Any]]]) -> list[int]:
    return [
        token for _, event in events for c in event["choices"] for token in c["token_ids"] or ()
    ]


def text_of(events: list[tuple[float, dict[str, Any]]]) -> str:
    return "".join(choice["text"] for _, event in events for choice in event["choices"])
