"""What an operator does by hand, through the real command line: why, cordon, drain, uncordon."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.vllm.cluster import Cluster, run_here, start_cluster, stop_cluster
from tests.waiting import wait_until

WAIT_S = 30.0
WORDS: dict[str, Any] = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("operator") / "state", "--engine", "synthetic", "--decode", "2"
    )
    try:
        yield running
    finally:
        stop_cluster(running)


def pdd(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    done = run_here(*arguments, "--state-dir", str(cluster.state_dir))
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def node_of(cluster: Cluster, **fields: Any) -> str:
    answer = cluster.complete("The old ship sailed around the island. " * 20, **WORDS, **fields)
    return str(answer["usage"]["pdd"]["decode_node"])


def test_why_tells_how_a_request_was_placed(cluster: Cluster) -> None:
    answer = cluster.complete("Why me?", **WORDS)
    code, out, err = pdd(cluster, "why", answer["id"], "-o", "json")
    assert code == 0, err
    (decision,) = json.loads(out)
    assert (decision["outcome"], decision["path"]) == ("placed", "disaggregated")
    chosen = {
        choice["role"]: [one["node"] for one in choice["candidates"] if one["is_chosen"]]
        for choice in decision["choices"]
    }
    usage = answer["usage"]["pdd"]
    assert chosen == {"prefill": [usage["prefill_node"]], "decode": [usage["decode_node"]]}
    assert len(decision["choices"][1]["candidates"]) == 2
    code, out, _ = pdd(cluster, "why", answer["id"])
    assert code == 0
    assert f"* {usage['decode_node']}" in out
    assert "free_kv=" in out
    code, _, err = pdd(cluster, "why", "no-such-request")
    assert code == 1
    assert "nothing is remembered of request 'no-such-request'" in err


def test_a_conversation_stays_with_its_node(cluster: Cluster) -> None:
    for key in ("chat-1", "chat-2", "chat-3"):
        nodes = {
            cluster.complete(f"{key} {turn}", **WORDS, prompt_cache_key=key)["usage"]["pdd"][
                "decode_node"
            ]
            for turn in range(4)
        }
        assert len(nodes) == 1, key


def test_a_cordoned_node_gets_nothing_until_it_is_given_back(cluster: Cluster) -> None:
    home = node_of(cluster)
    assert node_of(cluster) == home, "it has the prefix"
    assert pdd(cluster, "node", "cordon", home, "-m", "swap NIC")[:2] == (0, f"{home} cordoned")
    assert pdd(cluster, "node", "cordon", home)[:2] == (0, f"{home} already cordoned")
    row = next(row for row in cluster.node_list() if row["name"] == home)
    assert (row["state"], row["state_reason"]) == ("cordoned", "cordoned: swap NIC")
    assert node_of(cluster) != home
    assert pdd(cluster, "node", "uncordon", home)[:2] == (0, f"{home} uncordoned")
    assert pdd(cluster, "node", "uncordon", home)[:2] == (0, f"{home} was not cordoned")


def test_a_drain_is_watched_to_its_end(cluster: Cluster) -> None:
    code, out, err = pdd(cluster, "node", "drain", "decode-1", "--deadline-s", "20")
    assert code == 0, err
    assert out.startswith("decode-1 drained in ")
    assert pdd(cluster, "node", "drain", "decode-1")[:2] == (0, "decode-1 already drained")
    assert node_of(cluster) == "decode-0"
    assert pdd(cluster, "node", "uncordon", "decode-1")[0] == 0


def test_a_name_must_mean_one_node(cluster: Cluster) -> None:
    code, _, err = pdd(cluster, "node", "drain", "decode")
    assert (code, err) == (1, "error: 'decode' matches 2 nodes: decode-0, decode-1")
    code, _, err = pdd(cluster, "node", "cordon", "nobody")
    assert code == 1
    assert "no node 'nobody'; there are decode-0, decode-1, prefill-0" in err


def scheduler_of(cluster: Cluster) -> psutil.Process:
    record = json.loads((cluster.state_dir / "cluster.json").read_text())
    (pid,) = [one["pid"] for one in record["nodes"] if one["role"] == "scheduler"]
    return psutil.Process(pid)


def replica_of(scheduler: psutil.Process) -> psutil.Process:
    found = [one for one in scheduler.children() if "pdd.daemon.replica_process" in one.cmdline()]
    (replica,) = found
    return replica


def until_states(cluster: Cluster, wanted: dict[str, tuple[str, str]]) -> None:
    """Until ``pdd node list`` says so; the scheduler may be on its way back."""

    def states() -> dict[str, tuple[str, str]]:
        rows = cluster.rows().items()
        return {name: (row["state"], row["state_reason"]) for name, row in rows if name in wanted}

    wait_until(lambda: states() == wanted, lambda: f"{wanted}; there is {states()}")


@pytest.mark.fault
def test_cordons_and_drains_outlive_the_scheduler_and_its_replica(cluster: Cluster) -> None:
    assert pdd(cluster, "node", "drain", "decode-1", "-m", "swap NIC")[0] == 0
    assert pdd(cluster, "node", "cordon", "prefill-0")[0] == 0
    wanted = {
        "decode-0": ("ready", ""),
        "decode-1": ("cordoned", "drained: swap NIC"),
        "prefill-0": ("cordoned", "cordoned"),
    }
    scheduler = scheduler_of(cluster)
    former = replica_of(scheduler)
    former.send_signal(signal.SIGKILL)
    former.wait(timeout=WAIT_S)
    assert node_of(cluster) == "decode-0", "requests do not wait for the replica"
    until_states(cluster, wanted)
    os.kill(scheduler.pid, signal.SIGKILL)
    until_states(cluster, wanted)
    assert node_of(cluster) == "decode-0"
    for name in ("decode-1", "prefill-0"):
        assert pdd(cluster, "node", "uncordon", name)[:2] == (0, f"{name} uncordoned")


@pytest.mark.fault
def test_cordons_outlive_the_whole_cluster(tmp_path: Path) -> None:
    options = ("--engine", "synthetic", "--prefill", "0", "--decode", "1")
    running = start_cluster(tmp_path / "state", *options)
    try:
        assert pdd(running, "node", "cordon", "decode-0", "-m", "why")[0] == 0
        stop_cluster(running)
        running = start_cluster(tmp_path / "state", *options)
        until_states(running, {"decode-0": ("cordoned", "cordoned: why")})
        assert pdd(running, "node", "uncordon", "decode-0")[0] == 0
    finally:
        stop_cluster(running)


def test_the_log_of_a_single_scheduler_can_be_looked_at_and_shortened(cluster: Cluster) -> None:
    assert pdd(cluster, "node", "cordon", "decode-1")[0] == 0
    assert pdd(cluster, "node", "uncordon", "decode-1")[0] == 0
    code, out, err = pdd(cluster, "raft", "snapshot")
    assert code == 0, err
    code, text, err = pdd(cluster, "raft", "status", "-o", "json")
    assert code == 0, err
    (row,) = json.loads(text)
    assert (row["name"], row["role"], row["leader"]) == ("scheduler-0", "leader", "scheduler-0")
    assert out == f"scheduler-0: snapshot up to entry {row['snapshot_index']}"
    assert row["snapshot_index"] <= row["applied_index"] == row["commit_index"]
    assert "scheduler-0  leader" in pdd(cluster, "raft", "status")[1]
    assert pdd(cluster, "raft", "transfer", "scheduler-0") == (
        1,
        "",
        "error: scheduler-0 leads already",
    )
    code, _, err = pdd(cluster, "raft", "snapshot", "scheduler-7")
    assert (code, err) == (1, "error: no replica 'scheduler-7'; there are scheduler-0")
