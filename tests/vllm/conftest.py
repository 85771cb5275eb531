"""Real engines are slow to start: one disaggregated cluster serves nearly every test.

The references it is compared with are computed before it starts, on two engines side by side
(one core each): the same daemon co-located (``--prefill 0``), and plain vLLM without pdd.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdd.model.resolve import resolve_model
from tests.vllm.answers import answer_of, colocated_features
from tests.vllm.cluster import Cluster, run_cli, start_cluster, stop_cluster
from tests.vllm.prompts import CASES
from tests.vllm.pull_turns import PULLING


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers by reference (``colocated``, ``plain``) and case."""
    folder = tmp_path_factory.mktemp("references")
    model = resolve_model(None).path
    plain_file = folder / "plain.json"
    plain_log = folder / "plain.log"
    script = Path(__file__).parent / "plain_reference.py"
    with plain_log.open("w") as log:
        plain = subprocess.Popen(
            [sys.executable, str(script), "1", str(model), str(plain_file)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        cluster = start_cluster(folder / "colocated", "--prefill", "0")
        try:
            colocated = {
                f"{prompt}/{setting}": answer_of(cluster, prompt, setting)
                for prompt, setting in CASES
            }
            extra = colocated_features(cluster)
        finally:
            stop_cluster(cluster)
        assert plain.wait(timeout=300) == 0, plain_log.read_text()[-4000:]
    finally:
        plain.kill()
        plain.wait()
    return {
        "colocated": colocated,
        "plain": json.loads(plain_file.read_text()),
        "features": extra,
    }


@pytest.fixture(scope="session")
def pair(
    references: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One prefill node, one decode node, one scheduler. A follow-up is computed where it is held,
    however slow this machine may be at the moment."""
    cluster = start_cluster(
        tmp_path_factory.mktemp("pair") / "state", "--set", "scheduler.path.local_stall_s=60"
    )
    try:
        yield cluster
    finally:
        stop_cluster(cluster)


@pytest.fixture(scope="module")
def pulling(pair: Cluster) -> Iterator[Cluster]:
    """The pair, whose prefill node pulls whatever it can: else that depends on how long hand-overs
    have taken on this machine in the tests before."""
    state_dir = str(pair.state_dir)
    for key, value in PULLING.items():
        done = run_cli("config", "set", key, value, "--state-dir", state_dir)
        assert done.returncode == 0, done.stderr
    yield pair
    for key in PULLING:
        done = run_cli("config", "unset", key, "--state-dir", state_dir)
        assert done.returncode == 0, done.stderr
