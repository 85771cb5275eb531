"""Disaggregated output equals co-located output and plain vLLM's, token for token.

Held still, as the design says: chunk size and threads are the same everywhere, one request at a
time, prefix cache cold. Each case also proves that the KV blocks travelled: output alone could
not show a decode node that silently recomputes.
"""

from typing import Any

import pytest

from tests.vllm.answers import answer_of
from tests.vllm.cluster import Cluster
from tests.vllm.prompts import BLOCK_TOKENS, CASES, block_bytes


@pytest.mark.parametrize(("prompt", "setting"), CASES)
def test_a_disaggregated_answer_equals_colocated_and_plain_vllm(
    pair: Cluster, references: dict[str, dict[str, Any]], prompt: str, setting: str
) -> None:
    answer = answer_of(pair, prompt, setting)
    choice = answer["choices"][0]
    colocated = references["colocated"][f"{prompt}/{setting}"]["choices"][0]

    assert choice["token_ids"] == colocated["token_ids"]
    assert choice["text"] == colocated["text"]
    assert choice["finish_reason"] == colocated["finish_reason"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(
        colocated["logprobs"]["token_logprobs"], abs=1e-6
    )
    plain = references["plain"].get(f"{prompt}/{setting}")
    if plain is not None:
        assert choice["token_ids"] == plain["token_ids"]
        assert choice["text"] == plain["text"]
        assert choice["finish_reason"] == plain["finish_reason"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain["logprobs"], abs=1e-6)
    assert_blocks_moved(answer)


def test_most_cases_are_compared_with_plain_vllm(references: dict[str, dict[str, Any]]) -> None:
    assert len(references["plain"]) >= len(CASES) - 4


def assert_blocks_moved(answer: dict[str, Any]) -> None:
    usage = answer["usage"]
    if len(answer["choices"][0]["token_ids"]) == 1 and answer["choices"][0]["finish_reason"] == (
        "stop"
    ):
        return  # the prefill node's first token ended it; whether blocks had left is a race
    blocks = -(-usage["prompt_tokens"] // BLOCK_TOKENS)
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["pdd"]["transferred_bytes"] == blocks * block_bytes()
    assert usage["pdd"]["decode_computed_prompt_tokens"] <= 1
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
