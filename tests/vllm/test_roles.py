"""Two vLLM engines change places while one of them answers: same tokens, blocks the other way."""

import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest

from tests.vllm.cluster import Cluster, run_cli
from tests.vllm.prompts import BLOCK_TOKENS
from tests.vllm.test_exactness import block_bytes

WAIT_S = 120.0
PROMPT = "The lighthouse keeper wrote down every ship that passed his rock. " * 30
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}


def role(cluster: Cluster, node: str, duty: str) -> None:
    done = run_cli(
        *("node", "role", node, duty, "--state-dir", str(cluster.state_dir)), timeout_s=WAIT_S
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def swapped_back(pair: Cluster) -> Iterator[Cluster]:
    yield pair
    for node in ("decode-0", "prefill-0"):  # one decode node must always be there
        role(pair, node, "auto")


def test_engines_change_places_under_a_stream_and_say_the_same(swapped_back: Cluster) -> None:
    """Tenants never share cached blocks: each asks with a cold cache."""
    cluster = swapped_back
    expected = cluster.complete(PROMPT, tenant="before", **GREEDY)
    assert expected["usage"]["pdd"]["prefill_node"] == "prefill-0"
    long = {**GREEDY, "max_tokens": 160}
    long_expected = cluster.complete("Once upon a time", tenant="before", **long)
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(cluster.complete, "Once upon a time", tenant="meanwhile", **long)
        cluster.wait_until_busy(within_s=WAIT_S)
        role(cluster, "prefill-0", "decode")
        role(cluster, "decode-0", "prefill")
        answer = running.result(timeout=WAIT_S)
    assert answer["choices"][0]["token_ids"] == long_expected["choices"][0]["token_ids"]
    assert answer["usage"]["pdd"]["decode_node"] == "decode-0", "it ended where it ran"

    answer = cluster.complete(PROMPT, tenant="after", **GREEDY)
    usage = answer["usage"]
    assert (usage["pdd"]["prefill_node"], usage["pdd"]["decode_node"]) == ("decode-0", "prefill-0")
    assert usage["pdd"]["path"] == "disaggregated"
    blocks = -(-usage["prompt_tokens"] // BLOCK_TOKENS)
    assert usage["pdd"]["transferred_bytes"] == blocks * block_bytes(cluster)
    assert usage["pdd"]["decode_computed_prompt_tokens"] <= 1
    assert answer["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
