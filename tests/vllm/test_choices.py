"""``n`` > 1 on real engines: one prefill and one transfer, and the engine's own numbers for it."""

from typing import Any

from tests.vllm.cluster import Cluster

COUNTING = "one two three four five six seven eight nine ten. One two three four five six seven"
"""Its continuation is no near thing: rows of a batch differ from a row alone in low-order bits."""

BLOCK_TOKENS = 128
"""vLLM's own choice on a CPU."""


def test_greedy_choices_are_all_the_single_answer(pair: Cluster) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "logprobs": 1}
    single = pair.complete(COUNTING, cache_salt="single", **fields)
    answer = pair.complete(COUNTING, n=4, cache_salt="several", **fields)

    expected = single["choices"][0]["token_ids"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["token_ids"] for choice in answer["choices"]] == [expected] * 4
    assert [choice["text"] for choice in answer["choices"]] == [single["choices"][0]["text"]] * 4
    usage = answer["usage"]
    assert usage["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == 4 * 12
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["pdd"]["transferred_bytes"] == single["usage"]["pdd"]["transferred_bytes"] > 0


def test_sampled_choices_differ_are_reproducible_and_the_usage_tells_what_was_not_shared(
    pair: Cluster,
) -> None:
    fields: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 11, "max_tokens": 4}
    prompt = [1000 + 17 * index for index in range(150)]
    first = pair.complete(prompt, cache_salt="first", **fields)
    again = pair.complete(prompt, cache_salt="again", **fields)

    tokens = [choice["token_ids"] for choice in first["choices"]]
    assert tokens == [choice["token_ids"] for choice in again["choices"]]
    assert len({tuple(one) for one in tokens}) == 3, "choose another seed"
    usage = first["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (150, 12)
    assert usage["pdd"]["path"] == "disaggregated"
    # vLLM shares full blocks: each further choice computes the rest of the prompt anew.
    least = 2 * (150 % BLOCK_TOKENS)
    assert least <= usage["pdd"]["decode_computed_prompt_tokens"] <= least + 1
    pair.wait_until_idle(within_s=10.0)


def test_a_stop_string_ends_one_choice_and_a_penalty_keeps_all_on_one_engine(pair: Cluster) -> None:
    free = pair.complete(COUNTING, n=2, temperature=1.0, seed=3, max_tokens=24, cache_salt="free")
    texts = [choice["text"] for choice in free["choices"]]
    word = next(word for word in texts[0].split()[1:] if word not in texts[1])
    stopped = pair.complete(
        COUNTING, n=2, temperature=1.0, seed=3, max_tokens=24, cache_salt="stop", stop=[word]
    )
    assert stopped["choices"][0]["stop_reason"] == word
    assert stopped["choices"][1]["stop_reason"] is None

    local = pair.complete(COUNTING, n=2, seed=3, max_tokens=8, presence_penalty=0.5)
    assert local["usage"]["pdd"]["path"] == "local"
    assert local["usage"]["completion_tokens"] == 16
    pair.wait_until_idle(within_s=10.0)
