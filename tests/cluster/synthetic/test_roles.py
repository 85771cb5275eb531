"""Nodes change their duty while requests run: real daemons, transfers and command line."""

import concurrent.futures
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.vllm.cluster import Cluster, run_here, start_cluster, stop_cluster
from tests.waiting import wait_until

WAIT_S = 60.0
PROMPTS = [f"Tell me of harbour number {index} and of its lamps. " * 12 for index in range(8)]
LONG: dict[str, Any] = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("roles") / "state",
        *("--engine", "synthetic", "--prefill", "2", "--decode", "2"),
        *("--set", "synthetic.step_s=0.01", "--set", "roles.cooldown_s=1"),
    )
    try:
        yield running
    finally:
        stop_cluster(running)


@pytest.fixture(autouse=True)
def as_configured(cluster: Cluster) -> Iterator[None]:
    """Gives back what a test has set."""
    yield
    nodes = sorted(node.name for node in cluster.nodes if node.role != "scheduler")
    for name in nodes:
        run_here("node", "uncordon", name, "--state-dir", str(cluster.state_dir))
    for name in nodes:  # decode nodes first: one must always be there
        code, _, err = role(cluster, name, "auto")
        assert code == 0, err


def role(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    done = run_here("node", "role", *arguments, "--state-dir", str(cluster.state_dir))
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def cordon(cluster: Cluster, name: str) -> None:
    done = run_here("node", "cordon", name, "--state-dir", str(cluster.state_dir))
    assert done.returncode == 0, done.stderr


def roles(cluster: Cluster) -> dict[str, Any]:
    code, out, err = role(cluster, "-o", "json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def duties(cluster: Cluster) -> dict[str, str]:
    return {node["node"]: node["role"] for node in roles(cluster)["nodes"]}


def busy_decode_node(cluster: Cluster) -> str:
    """One that runs something at the moment."""

    def busy() -> str:
        held = (
            node["node"]
            for node in roles(cluster)["nodes"]
            if node["role"] == "decode" and node["held_request_count"]
        )
        return next(held, "")

    return str(wait_until(busy, "a decode node to have work"))


def stream(cluster: Cluster, prompt: str, **fields: Any) -> list[int]:
    """A streamed answer's token ids; its end must be a good one."""
    token_ids: list[int] = []
    body = {"prompt": prompt, "stream": True, "return_token_ids": True, **fields}
    with httpx.stream("POST", f"{cluster.http}/v1/completions", json=body, timeout=120.0) as answer:
        assert answer.status_code == 200
        done = False
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            assert not done
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                token_ids += choice.get("token_ids") or []
    assert done, "the stream was cut"
    return token_ids


def test_by_hand_under_load_no_stream_is_lost_and_the_text_is_right(cluster: Cluster) -> None:
    expected = [cluster.complete(prompt, **LONG)["choices"][0]["token_ids"] for prompt in PROMPTS]
    over = threading.Event()

    def ask_until_over(first: int) -> int:
        """One client, one request after another; how many it had."""
        for count in itertools.count():
            if over.is_set():
                return count
            index = (first + count) % len(PROMPTS)
            assert stream(cluster, PROMPTS[index], **LONG) == expected[index]
        raise AssertionError("not reached")

    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        clients = [pool.submit(ask_until_over, first) for first in range(8)]
        try:
            busy = busy_decode_node(cluster)
            for name, duty in (
                (busy, "prefill"),
                ("prefill-0", "decode"),
                (busy, "decode"),
                ("prefill-0", "prefill"),
            ):
                code, out, err = role(cluster, name, duty, "--deadline-s", str(WAIT_S))
                assert code == 0, err
                assert out.startswith(f"{name} {duty}")
        finally:
            over.set()
        assert min(client.result(timeout=WAIT_S) for client in clients) >= 1
    switches = roles(cluster)["switches"]
    assert {one["stage"] for one in switches} <= {"begun", "done"}
    held = [one["held_request_count"] for one in switches if one["stage"] == "begun"]
    assert max(held) > 0, "no node had anything to finish"
    cluster.wait_until_idle(within_s=WAIT_S)


def test_both_new_duties_are_served_over_the_new_links(cluster: Cluster) -> None:
    assert role(cluster, "decode-0", "prefill", "-m", "trial")[0] == 0
    assert role(cluster, "prefill-1", "decode")[0] == 0
    cordon(cluster, "prefill-0")
    cordon(cluster, "decode-1")
    answer = cluster.complete("A lamp that was never lit before. " * 30, max_tokens=8)
    usage = answer["usage"]["pdd"]
    assert (usage["prefill_node"], usage["decode_node"]) == ("decode-0", "prefill-1")
    assert usage["transferred_bytes"] > 0
    row = cluster.rows()["decode-0"]
    assert (row["role"], row["configured_role"]) == ("prefill", "decode")
    assert (row["role_decided_by"], row["role_reason"]) == ("operator", "trial")

    def peers() -> set[str]:  # a node tells its links with its next heartbeat
        return {link["peer"] for link in cluster.rows()["decode-0"]["links"]}

    wait_until(
        lambda: peers() == {"prefill-1", "decode-1"}, lambda: f"its new links; it has {peers()}"
    )
    shown = run_here("node", "show", "decode-0", "--state-dir", str(cluster.state_dir)).stdout
    assert "prefill (operator: trial)" in shown


def test_a_cache_outlives_the_change(cluster: Cluster) -> None:
    """What a decode node has of a conversation it still has when it computes prompts."""
    prompt = "The keeper of the light wrote every day. " * 30
    first = cluster.complete(prompt, max_tokens=8, ignore_eos=True)
    home = first["usage"]["pdd"]["decode_node"]
    other = "decode-1" if home == "decode-0" else "decode-0"
    assert role(cluster, home, "prefill")[0] == 0
    for name in ("prefill-0", "prefill-1"):
        cordon(cluster, name)
    again = cluster.complete(prompt, max_tokens=8, ignore_eos=True)
    usage = again["usage"]["pdd"]
    assert (usage["prefill_node"], usage["decode_node"]) == (home, other)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.9 * again["usage"]["prompt_tokens"]


def test_what_cannot_be_says_so(cluster: Cluster) -> None:
    assert role(cluster, "decode-0", "prefill")[0] == 0
    code, _, err = role(cluster, "decode-1", "prefill")
    assert code == 1
    assert "decode-1 is the last decode node that takes work" in err
    assert role(cluster, "decode-1", "decode")[:2] == (0, "decode-1 decode")
    assert role(cluster, "decode-1", "decode")[:2] == (0, "decode-1 already decode")
    code, _, err = role(cluster, "nobody", "prefill")
    assert code == 1
    assert "no node 'nobody'" in err
    code, _, err = role(cluster, "decode-0", "both")
    assert code == 2


def test_a_node_that_is_killed_in_mid_change_comes_back_with_its_new_duty(cluster: Cluster) -> None:
    cordon(cluster, "decode-1")  # all that runs is on decode-0
    expected = [
        cluster.complete(prompt, **LONG)["choices"][0]["token_ids"] for prompt in PROMPTS[:4]
    ]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        answers = [pool.submit(stream, cluster, prompt, **LONG) for prompt in PROMPTS[:4]]
        cluster.wait_until_busy(within_s=WAIT_S)
        run_here("node", "uncordon", "decode-1", "--state-dir", str(cluster.state_dir))
        code, out, err = role(cluster, "decode-0", "prefill", "--no-wait")
        assert (code, "changes to prefill" in out) == (0, True), out + err
        os.kill(next(node.pid for node in cluster.nodes if node.name == "decode-0"), signal.SIGKILL)
        assert [answer.result(timeout=WAIT_S) for answer in answers] == expected

    def next_life() -> dict[str, Any] | None:
        row = cluster.rows()["decode-0"]
        return row if row["state"] == "ready" and row["boot_epoch"] > 1 else None

    row = wait_until(next_life, lambda: f"its next life; {cluster.rows()['decode-0']}")
    assert row["role"] == "prefill"
    stages = [one["stage"] for one in roles(cluster)["switches"] if one["node"] == "decode-0"]
    assert stages[-2:] == ["begun", "abandoned"]


def test_ctrl_c_ends_the_watching_and_not_the_change(cluster: Cluster) -> None:
    """The last sequence may take long; whoever watches may go."""
    cordon(cluster, "decode-1")
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(stream, cluster, PROMPTS[0], **{**LONG, "max_tokens": 800})
        cluster.wait_until_busy(within_s=WAIT_S)
        run_here("node", "uncordon", "decode-1", "--state-dir", str(cluster.state_dir))
        command = ["node", "role", "decode-0", "prefill", "--state-dir", str(cluster.state_dir)]
        with subprocess.Popen(
            [sys.executable, "-m", "pdd.cli.main", *command], stderr=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stderr is not None
            assert "changes to prefill: 1 request to finish" in watching.stderr.readline()
            watching.send_signal(signal.SIGINT)
            assert watching.wait(timeout=WAIT_S) != 0
        assert len(answer.result(timeout=WAIT_S)) == 800
    wait_until(lambda: duties(cluster)["decode-0"] == "prefill", "the change to be done")


def scheduler_pid(cluster: Cluster) -> int:
    """Of the daemon that serves now, after restarts too."""
    record = json.loads((cluster.state_dir / "cluster.json").read_text())
    (pid,) = [one["pid"] for one in record["nodes"] if one["role"] == "scheduler"]
    return int(pid)


def until_duties(cluster: Cluster, wanted: dict[str, str]) -> None:
    """Once the scheduler answers again and all nodes are back."""

    def ready() -> dict[str, str]:
        rows = cluster.rows().items()
        return {name: row["role"] for name, row in rows if row["state"] == "ready"}

    wait_until(lambda: ready() == wanted, lambda: f"{wanted}; ready are {ready()}")


@pytest.mark.fault
def test_a_scheduler_that_is_killed_in_mid_change_knows_what_was_set(cluster: Cluster) -> None:
    cordon(cluster, "decode-1")
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(stream, cluster, PROMPTS[0], **{**LONG, "max_tokens": 1500})
        cluster.wait_until_busy(within_s=WAIT_S)
        run_here("node", "uncordon", "decode-1", "--state-dir", str(cluster.state_dir))
        code, out, _ = role(cluster, "decode-0", "prefill", "--no-wait")
        assert (code, "changes to prefill" in out) == (0, True), out
        os.kill(scheduler_pid(cluster), signal.SIGKILL)
        with pytest.raises((httpx.HTTPError, AssertionError)):
            answer.result(timeout=WAIT_S)  # its client was on that scheduler; it runs on
    until_duties(
        cluster,
        {
            "decode-0": "prefill",
            "decode-1": "decode",
            "prefill-0": "prefill",
            "prefill-1": "prefill",
        },
    )
    cluster.wait_until_idle(within_s=WAIT_S)


@pytest.mark.fault
def test_the_controller_follows_the_load_and_its_work_outlives_the_scheduler(
    tmp_path: Path,
) -> None:
    """Sixteen long outputs, a decode node that runs four, two prefill nodes with little to do."""
    settings = {
        "synthetic.step_s": "0.02",
        "engine.max_num_seqs": "4",
        "roles.mode": "auto",
        "roles.window_s": "1",
        "roles.sustain_s": "0.5",
        "roles.cooldown_s": "1",
    }
    running = start_cluster(
        tmp_path / "state",
        *("--engine", "synthetic", "--prefill", "2", "--decode", "1"),
        *(part for name, text in settings.items() for part in ("--set", f"{name}={text}")),
    )
    try:
        words = PROMPTS[:4]
        expected = [running.complete(one, **LONG)["choices"][0]["token_ids"] for one in words]
        with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
            answers = [pool.submit(stream, running, one, **LONG) for one in words * 4]
            assert [one.result(timeout=WAIT_S) for one in answers] == expected * 4
        done = [one for one in roles(running)["switches"] if one["stage"] == "done"]
        assert [(one["target"], one["by"]) for one in done][:1] == [("decode", "controller")]
        assert "decode pressure" in done[0]["reason"]
        wanted = duties(running)
        assert sorted(wanted.values()) == ["decode", "decode", "prefill"]
        os.kill(scheduler_pid(running), signal.SIGKILL)
        until_duties(running, wanted)
    finally:
        stop_cluster(running)
