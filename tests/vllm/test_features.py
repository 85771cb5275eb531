"""Parameters that a hand-over between engines could get wrong: each equals co-located serving."""

import time
from typing import Any

import pytest

from tests.vllm.answers import FEATURE_PROMPT, FEATURES
from tests.vllm.cluster import Cluster
from tests.vllm.prompts import BLOCK_TOKENS, MAX_TOKENS, block_bytes

STAYS_ON_ONE_ENGINE = {"presence penalty", "frequency penalty", "bad words", "json", "choice"}
EOS = 2


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_equals_colocated_serving(
    pair: Cluster, references: dict[str, dict[str, Any]], feature: str
) -> None:
    answer = pair.complete(
        FEATURE_PROMPT, max_tokens=MAX_TOKENS, cache_salt=feature, **FEATURES[feature]
    )
    colocated = references["features"][feature]

    assert answer["choices"] == colocated["choices"]
    assert answer["usage"]["completion_tokens"] == colocated["usage"]["completion_tokens"]
    path = "local" if feature in STAYS_ON_ONE_ENGINE else "disaggregated"
    assert answer["usage"]["pdd"]["path"] == path
    assert answer["usage"]["completion_tokens"] > 1, "pick parameters that need both engines"
    if path == "disaggregated":
        assert answer["usage"]["pdd"]["transferred_bytes"] > 0
        assert answer["usage"]["pdd"]["decode_computed_prompt_tokens"] <= 1


def test_min_tokens_holds_back_the_end_token_on_both_engines(pair: Cluster) -> None:
    answer = pair.complete(
        "Hello", max_tokens=20, min_tokens=5, temperature=0.0, logit_bias={str(EOS): 100.0}
    )

    assert answer["choices"][0]["token_ids"][5:] == [EOS]
    assert EOS not in answer["choices"][0]["token_ids"][:5]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_end_token_as_first_token_ends_the_answer_at_once(pair: Cluster) -> None:
    answer = pair.complete("Hello", max_tokens=20, temperature=0.0, logit_bias={str(EOS): 100.0})

    assert answer["choices"][0]["token_ids"] == [EOS]
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["usage"]["pdd"]["decode_computed_prompt_tokens"] == 0
    pair.wait_until_idle(within_s=10.0)


def test_one_token_is_answered_by_the_prefill_node_alone(pair: Cluster) -> None:
    answer = pair.complete("The capital of France is", max_tokens=1, temperature=0.0)

    assert len(answer["choices"][0]["token_ids"]) == 1
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["pdd"]["decode_node"] is None
    assert answer["usage"]["pdd"]["prefill_node"] == "prefill-0"
    pair.wait_until_idle(within_s=10.0)


def test_a_stop_token_as_first_token_is_named(pair: Cluster) -> None:
    free = pair.complete("Count: one, two,", max_tokens=3, temperature=0.0)
    first = free["choices"][0]["token_ids"][0]
    answer = pair.complete(
        "Count: one, two,", max_tokens=20, temperature=0.0, stop_token_ids=[first]
    )

    assert answer["choices"][0]["token_ids"] == [first]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == first


def test_a_stop_string_may_span_the_two_engines(pair: Cluster) -> None:
    free = pair.complete("Count: one, two,", max_tokens=6, temperature=0.0, cache_salt="span")
    text = free["choices"][0]["text"]
    first = pair.complete("Count: one, two,", max_tokens=1, temperature=0.0, cache_salt="span-1")
    border = len(first["choices"][0]["text"])
    stop = text[border - 1 : border + 1]
    assert len(stop) == 2
    answer = pair.complete(
        "Count: one, two,", max_tokens=20, temperature=0.0, stop=[stop], cache_salt="span-2"
    )

    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == stop
    pair.wait_until_idle(within_s=10.0)


def test_a_repeated_prompt_is_computed_where_it_is_held_and_nothing_moves(pair: Cluster) -> None:
    prompt = [700 + i for i in range(300)]  # two full blocks of 128, and 44 tokens
    cold = pair.complete(prompt, max_tokens=4, temperature=0.0, cache_salt="twice")
    warm = pair.complete(prompt, max_tokens=4, temperature=0.0, cache_salt="twice")
    other = pair.complete(prompt, max_tokens=4, temperature=0.0, cache_salt="someone else")

    assert_all_moved(cold, blocks=3)
    assert_follow_up(warm, cached_tokens=2 * BLOCK_TOKENS)
    assert_all_moved(other, blocks=3)
    assert warm["choices"][0]["token_ids"] == cold["choices"][0]["token_ids"]


def test_a_prompt_with_a_long_new_part_is_found_in_both_caches_and_moves_only_the_new_blocks(
    pair: Cluster,
) -> None:
    prompt = [1300 + i for i in range(700)]  # most of it new: no follow-up
    pair.complete(prompt[:300], max_tokens=4, temperature=0.0, cache_salt="longer")
    longer = pair.complete(prompt, max_tokens=4, temperature=0.0, cache_salt="longer")
    fresh = pair.complete(prompt, max_tokens=4, temperature=0.0, cache_salt="longer, elsewhere")

    usage = longer["usage"]
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2 * BLOCK_TOKENS
    assert usage["pdd"]["transferred_bytes"] == (6 - 2) * block_bytes()
    assert usage["pdd"]["decode_computed_prompt_tokens"] <= 1
    assert_all_moved(fresh, blocks=6)


def test_tenants_never_hit_each_other_s_blocks(pair: Cluster) -> None:
    prompt = [900 + i for i in range(300)]
    answers = [
        pair.complete(prompt, max_tokens=4, temperature=0.0, tenant=tenant)
        for tenant in ("acme", "umbrella", None, "acme", "umbrella", None)
    ]

    for answer in answers[:3]:
        assert_all_moved(answer, blocks=3)
    for answer in answers[3:]:
        assert_follow_up(answer, cached_tokens=2 * BLOCK_TOKENS)
    assert len({tuple(one["choices"][0]["token_ids"]) for one in answers}) == 1


def assert_all_moved(answer: dict[str, Any], *, blocks: int) -> None:
    """Nobody had anything of its prompt."""
    usage = answer["usage"]
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["pdd"]["transferred_bytes"] == blocks * block_bytes()
    assert usage["pdd"]["decode_computed_prompt_tokens"] <= 1


def assert_follow_up(answer: dict[str, Any], *, cached_tokens: int) -> None:
    """The decode node had most of its prompt, and computed the rest itself."""
    usage = answer["usage"]
    assert usage["pdd"]["path"] == "local"
    assert usage["pdd"]["prefill_node"] is None
    assert usage["prompt_tokens_details"]["cached_tokens"] == cached_tokens
    assert usage["pdd"]["transferred_bytes"] == 0
    assert usage["pdd"]["decode_computed_prompt_tokens"] == usage["prompt_tokens"] - cached_tokens


def test_the_stage_times_add_up_and_nothing_is_held_afterwards(pair: Cluster) -> None:
    began_s = time.monotonic()
    answer = pair.complete("A short tale:", max_tokens=8, temperature=0.0)
    client_ms = (time.monotonic() - began_s) * 1000
    stages = [answer["usage"]["pdd"][f"{s}_ms"] for s in ("queue", "prefill", "transfer", "decode")]

    assert all(stage >= 0 for stage in stages)
    # What is missing is HTTP, tokenising and the way back; nothing may be counted twice.
    assert client_ms / 2 < sum(stages) <= client_ms
    pair.wait_until_idle(within_s=10.0)
