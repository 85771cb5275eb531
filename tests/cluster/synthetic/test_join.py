"""What happens between nodes before the first request, and how a slow path shows."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pdd.connector.params import JobKind
from pdd.engine.synthetic.sequence import SequencePhase
from pdd.transfer.pairing import pair_faults
from pdd.transfer.settings import TransferSettings
from tests.cluster.synthetic.pair import (
    connected,
    disaggregated,
    joined,
    links_between,
    local,
    make_job,
    nodes,
    outputs_of,
    settings,
)
from tests.vllm.cluster import Cluster, logs, run_here, start_cluster, stop_cluster
from tests.waiting import wait_until

WAIT_S = 20.0
"""How long a test waits for something to happen before it fails; nothing is measured with it."""
BYTES_PER_TOKEN = 64 * 1024
LONG_PROMPT = [300 + 7 * index % 5000 for index in range(1100)]
"""With ``BYTES_PER_TOKEN`` its blocks are more than the 64 MiB by which a speed is judged."""


@pytest.mark.parametrize("shared_memory", [False, True])
async def test_the_first_transfer_finds_its_connections_made(shared_memory: bool) -> None:
    both = replace(
        settings(tensor_parallel_size=2), transfer=TransferSettings(shared_memory=shared_memory)
    )
    async with nodes(both, both) as (prefill, decode):
        await joined(prefill, decode)
        before = [node.engine.counters()["connects"] for node in (prefill, decode)]
        assert before == [2, 2], "one per rank"
        await disaggregated(prefill, decode, make_job(list(range(40)), key="r1/0", ignore_eos=True))
        assert decode.ready["r1/0"].transferred_bytes > 0
        assert [node.engine.counters()["connects"] for node in (prefill, decode)] == before
        for one in decode.engine.connections():
            assert ("shared_memory" in one.connection.lanes) is shared_memory
            assert any(lane.startswith("tcp/") for lane in one.connection.lanes)


async def test_a_peer_that_is_disconnected_is_connected_again_by_the_next_transfer() -> None:
    async with nodes(settings(), settings()) as (prefill, decode):
        await joined(prefill, decode)
        decode.engine.disconnect(links_between(decode, prefill))
        await connected(decode, count=0)
        await disaggregated(prefill, decode, make_job(list(range(40)), key="r1/0", ignore_eos=True))
        assert decode.ready["r1/0"].transferred_bytes > 0
        assert decode.engine.counters()["connects"] == 2


@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp"), [(4, 2), (4, 4), (2, 4), (1, 4), (4, 1), (8, 2)]
)
@pytest.mark.parametrize("shared_memory", [False, True])
async def test_nodes_of_other_tensor_parallelism_answer_what_one_answers(
    prefill_tp: int, decode_tp: int, shared_memory: bool
) -> None:
    transfer = TransferSettings(shared_memory=shared_memory)
    source, target = [
        replace(settings(tensor_parallel_size=tp, kv_head_count=4), transfer=transfer)
        for tp in (prefill_tp, decode_tp)
    ]
    prompt = [7 * index % 2000 for index in range(70)]
    async with nodes(source, target) as (prefill, decode):
        await joined(prefill, decode)
        before = [node.engine.counters()["connects"] for node in (prefill, decode)]
        job = make_job(prompt, key="r1/0", ignore_eos=True)
        answer = await disaggregated(prefill, decode, job)
        facts = decode.ready["r1/0"]
        assert facts.load_failed_reason == ""
        assert facts.computed_prompt_tokens == 0
        copies = max(1, decode_tp // 4)
        assert facts.transferred_bytes == 5 * 16 * 64 * 4 * copies, "5 blocks of 4 heads"
        assert [node.engine.counters()["connects"] for node in (prefill, decode)] == before
        prefill.engine.drop_source("r1/0", "the decode node is ready")
        for node in (prefill, decode):
            await node.wait_quiet()
    async with nodes(settings(kv_head_count=4)) as (alone,):
        assert answer == await local(alone, job)


async def test_a_node_serves_peers_of_its_own_and_of_another_cut() -> None:
    four, two = (settings(tensor_parallel_size=tp, kv_head_count=4) for tp in (4, 2))
    async with nodes(four, two, four) as (prefill, halved, like):
        await joined(prefill, halved)
        prefill.engine.connect(links_between(prefill, like))
        like.engine.connect(links_between(like, prefill))
        answers = []
        for number, decode in enumerate((halved, like)):
            key = f"r{number}/0"
            job = make_job(list(range(40)), key=key, ignore_eos=True)
            answers.append(await disaggregated(prefill, decode, job))
            assert decode.ready[key].transferred_bytes > 0
            assert decode.ready[key].computed_prompt_tokens == 0
            prefill.engine.drop_source(key, "the decode node is ready")
            await prefill.wait_quiet()
        assert answers[0] == answers[1]


async def test_a_peer_of_another_cut_may_leave_while_a_job_waits_for_its_blocks() -> None:
    one, two = (settings(tensor_parallel_size=tp, kv_head_count=2) for tp in (1, 2))
    async with nodes(one, two, one) as (prefill, decode, alone):
        await joined(prefill, decode)
        job = make_job(list(range(40)), key="r1/0", ignore_eos=True)
        decoding = asyncio.create_task(
            outputs_of(decode, replace(job, kind=JobKind.DECODE, source=prefill.source))
        )
        await asyncio.sleep(0)  # it has come, and the engine has not looked at it yet
        assert [each.phase for each in decode.engine.batch.sequences()] == [SequencePhase.WAITING]
        decode.engine.disconnect(links_between(decode, prefill))
        expected = [token_id for said in await local(alone, job) for token_id in said.token_ids]
        decode.engine.first_tokens(job.key, {0: expected[0]})
        said = [token_id for output in await decoding for token_id in output.token_ids]
        assert said == expected[1:]
        assert decode.ready[job.key].load_failed_reason == "unreachable"
        await decode.wait_quiet()


async def test_another_number_of_heads_is_refused_with_both_values() -> None:
    async with nodes(settings(tensor_parallel_size=2), settings()) as (one, other):
        assert one.info is not None
        assert other.info is not None
        faults = pair_faults(one.info.fingerprint, other.info.fingerprint, peer="n1")
    assert faults == ["kv_heads is 2 here and 1 at n1"]


# --- whole clusters ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def floored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One and one, over TCP, whose blocks are large and whose floor no machine reaches."""
    running = start_cluster(
        tmp_path_factory.mktemp("floored") / "state",
        "--engine",
        "synthetic",
        *("--set", f"synthetic.kv_bytes_per_token={BYTES_PER_TOKEN}"),
        *("--set", f"engine.kv_cache_bytes={256 << 20}"),
        *("--set", "transfer.transport=tcp"),
        *("--set", "transfer.floor_gb_per_s=9999"),
    )
    try:
        yield running
    finally:
        stop_cluster(running)


def wait_for(cluster: Cluster, what: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Until the rows of ``pdd node list``, by name, are so."""
    wait_until(
        lambda: condition({row["name"]: row for row in cluster.node_list()}),
        lambda: f"{what}; {cluster.node_list()} {logs(cluster.state_dir)}",
    )


def metrics(cluster: Cluster) -> dict[str, float]:
    text = httpx.get(f"{cluster.http}/metrics", timeout=10.0).text
    lines = [line for line in text.splitlines() if line.startswith("pdd_")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def connects(cluster: Cluster) -> dict[str, float]:
    """Connections that each node has opened since its start."""
    name = 'pdd_kv_transfer_connects_total{node="'
    found = metrics(cluster)
    return {key: value for key, value in found.items() if key.startswith(name)}


def log_events(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    text = (cluster.state_dir / "log" / f"{name}.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_slow_path_says_so_still_serves_and_recovers_with_its_cause(floored: Cluster) -> None:
    wait_for(
        floored,
        "every connection is there and told",
        lambda rows: all(row["links"] and row["links"][0]["transport"] for row in rows.values()),
    )
    before = connects(floored)
    assert sorted(before.values()) == [1, 1], "made at join"

    first = floored.complete(LONG_PROMPT, max_tokens=4, temperature=0)
    assert first["usage"]["pdd"]["path"] == "disaggregated"
    assert first["usage"]["pdd"]["transferred_bytes"] >= 64 << 20
    wait_for(floored, "degraded", lambda rows: rows["decode-0"]["state"] == "degraded")
    moved = first["usage"]["pdd"]["transferred_bytes"]
    wait_for(
        floored,
        "all that came has been told",
        lambda rows: rows["decode-0"]["links"][0]["received_bytes"] >= moved,
    )
    assert connects(floored) == before, "no request paid for a connection"

    rows = {row["name"]: row for row in floored.node_list()}
    assert rows["prefill-0"]["state"] == "ready", "it has received nothing"
    assert "below the floor of 9999.00 GB/s" in rows["decode-0"]["state_reason"]
    (link,) = rows["decode-0"]["links"]
    assert (link["peer"], link["transport"]) == ("prefill-0", "tcp")
    assert link["received_bytes"] == moved
    assert link["bytes_per_s"] > 0
    shown = run_here("node", "show", "decode", "--state-dir", str(floored.state_dir))
    assert shown.returncode == 0, shown.stderr
    assert "below the floor" in shown.stdout
    assert "GB/s" in shown.stdout
    answer = httpx.get(f"{floored.http}/health", timeout=10.0)
    assert answer.status_code == 200
    assert "degraded: decode-0" in answer.json()["reason"]
    doctor = run_here("doctor", "--state-dir", str(floored.state_dir))
    assert doctor.returncode == 0, doctor.stdout
    (told,) = [line for line in doctor.stdout.splitlines() if "node decode-0" in line]
    assert told.startswith("warning")
    assert "below the floor" in told
    found = metrics(floored)
    labels = '{node="decode-0",peer="prefill-0",transport="tcp"}'
    assert found[f"pdd_transfer_peer_bandwidth_bytes_per_second{labels}"] > 0
    assert found['pdd_node_degraded{node="decode-0"}'] == 1

    again = floored.complete(LONG_PROMPT[::-1], max_tokens=4, temperature=0)
    assert again["usage"]["pdd"]["path"] == "disaggregated", "a degraded node still serves"

    pid = rows["prefill-0"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(
        floored,
        "the next life of the peer is connected and the reason gone with the former",
        lambda rows: (
            rows["prefill-0"]["pid"] != pid
            and rows["prefill-0"]["state"] == "ready"
            and rows["decode-0"]["state"] == "ready"
            and [link["transport"] for link in rows["decode-0"]["links"]] == ["tcp"]
        ),
    )
    events = [event["event"] for event in log_events(floored, "decode-0")]
    health = [one for one in events if one in ("node_degraded", "node_recovered")]
    # The second transfer may have been measured by itself: another rate, told again.
    assert [one for one, _ in itertools.groupby(health)] == ["node_degraded", "node_recovered"]
    assert [one for one in events if one in ("peer_joined", "peer_left")] == [
        "peer_joined",
        "peer_left",
        "peer_joined",
    ]


@contextlib.contextmanager
def one_more_decode_node(
    cluster: Cluster, folder: Path, *sets: str
) -> Iterator[subprocess.Popen[str]]:
    """decode-9, configured as decode-0 is but for ``sets``; its log comes on its stderr."""
    text = (cluster.state_dir / "decode-0.toml").read_text()
    config = folder / "decode-9.toml"
    config.write_text(text.replace("decode-0", "decode-9"))
    command = [sys.executable, "-m", "pdd.cli.main", "serve", "--config", str(config)]
    for one in (f"node.state_dir={folder / 'decode-9'}", "log.format=json", *sets):
        command += ["--set", one]
    node = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield node
    finally:
        node.terminate()
        node.communicate(timeout=WAIT_S)


def test_a_node_that_does_not_fit_is_refused_with_both_values(
    floored: Cluster, tmp_path: Path
) -> None:
    with one_more_decode_node(floored, tmp_path, "synthetic.model_seed=77") as misfit:
        assert misfit.stderr is not None
        for line in misfit.stderr:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "join_refused":
                break
        else:
            pytest.fail(f"it was not refused; it ended with {misfit.wait()}")
        assert "model_seed is 77 at node decode-9 and 0 at node" in event["reason"]
        assert "decode-9" not in {row["name"] for row in floored.node_list()}


def test_a_node_of_another_tensor_parallelism_joins_and_serves(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    cluster = start_cluster(
        tmp_path_factory.mktemp("cut") / "state",
        *("--engine", "synthetic", "--set", "synthetic.kv_heads=4"),
        *("--set", "engine.tensor_parallel_size=4"),
    )
    try:
        body = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
        prompts = [[300 + number + 7 * index for index in range(64)] for number in range(16)]
        expected = [cluster.complete(prompt, **body) for prompt in prompts]
        assert {one["usage"]["pdd"]["decode_node"] for one in expected} == {"decode-0"}
        with one_more_decode_node(
            cluster,
            tmp_path,
            "engine.tensor_parallel_size=2",
            f"engine.kv_cache_bytes={256 << 20}",
        ):
            wait_for(
                cluster,
                "the prefill node is connected to both",
                lambda rows: (
                    "decode-9" in rows
                    and any('"decode-9"' in name for name in connects(cluster))
                    and {link["peer"] for link in rows["prefill-0"]["links"] if link["transport"]}
                    == {"decode-0", "decode-9"}
                ),
            )
            before = connects(cluster)
            # decode-0 holds these prompts, and would be given them again.
            place = ("--state-dir", str(cluster.state_dir))
            assert run_here("node", "cordon", "decode-0", *place).returncode == 0
            answers = [cluster.complete(prompt, **body) for prompt in prompts]
            assert run_here("node", "uncordon", "decode-0", *place).returncode == 0
            usages = [one["usage"]["pdd"] for one in answers]
            assert {usage["decode_node"] for usage in usages} == {"decode-9"}
            for answer, usage, other in zip(answers, usages, expected, strict=True):
                assert answer["choices"] == other["choices"]
                assert usage["path"] == "disaggregated"
                assert usage["decode_computed_prompt_tokens"] == 0
                assert usage["transferred_bytes"] == 4 * 16 * 256 * 4, "4 blocks of 4 heads"
            assert connects(cluster) == before
        cluster.wait_until_idle(within_s=WAIT_S)
    finally:
        stop_cluster(cluster)


def test_tcp_where_rdma_is_expected_is_degraded_and_named(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = start_cluster(
        tmp_path_factory.mktemp("expecting") / "state",
        "--engine",
        "synthetic",
        *("--set", "transfer.transport=tcp"),
        *("--set", "transfer.expect_rdma=true"),
    )
    try:
        wait_for(
            cluster,
            "both reasons",
            lambda rows: all(
                row["state"] == "degraded"
                and "RDMA is expected" in row["state_reason"]
                and "is reached over tcp/lo, not over RDMA" in row["state_reason"]
                for row in rows.values()
            ),
        )
        answer = cluster.complete("The quick brown fox", max_tokens=4)
        assert answer["usage"]["pdd"]["path"] == "disaggregated"
    finally:
        stop_cluster(cluster)
