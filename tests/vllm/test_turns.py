"""Conversations: what a decode node holds of one is neither computed nor moved again.

On a CPU vLLM's blocks have 128 tokens, and only whole ones are reused.
"""

from typing import Any

from tests.vllm.cluster import Cluster

BLOCK = 128
SYSTEM = "You are a patient teacher. " + " ".join(
    f"Rule {number}: explain word {number * 37 % 101} with an example from daily life."
    for number in range(1, 25)
)
QUESTION = "What is the capital of France?"


def chat(cluster: Cluster, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 24, "temperature": 0.0, **fields}
    response = cluster.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def opening(system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]


def followed(messages: list[dict[str, str]], answer: dict[str, Any]) -> list[dict[str, str]]:
    return [
        *messages,
        answer["choices"][0]["message"],
        {"role": "user", "content": "And of Spain?"},
    ]


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_a_second_turn_is_answered_where_the_first_one_was_and_nothing_moves(
    pair: Cluster,
) -> None:
    first = chat(pair, opening(), cache_salt="turns")
    assert first["usage"]["pdd"]["path"] == "disaggregated"
    assert first["usage"]["pdd"]["transferred_bytes"] > 0
    assert cached(first) == 0
    second = chat(pair, followed(opening(), first), cache_salt="turns")
    usage = second["usage"]
    assert usage["pdd"]["transferred_bytes"] == 0
    assert usage["pdd"]["path"] == "local"
    assert usage["pdd"]["decode_node"] == first["usage"]["pdd"]["decode_node"]
    # Every whole block of the first turn, prompt and answer.
    held = first["usage"]["total_tokens"] - 1
    assert held // BLOCK * BLOCK - BLOCK <= cached(second) <= held
    assert cached(second) >= 2 * BLOCK
    assert usage["pdd"]["decode_computed_prompt_tokens"] == usage["prompt_tokens"] - cached(second)


def test_a_rewritten_history_is_not_reused_past_the_edit(pair: Cluster) -> None:
    first = chat(pair, opening(), cache_salt="rewritten")
    at = SYSTEM.index("Rule 12:")
    edited = SYSTEM[:at] + SYSTEM[at:].replace("daily", "rural", 1)
    before = pair.post(
        "/v1/completions", {"prompt": SYSTEM[:at], "max_tokens": 1, "cache_salt": "count"}
    )
    edit_token = before.json()["usage"]["prompt_tokens"] + 30  # the template's words stand before
    again = chat(pair, followed(opening(edited), first), cache_salt="rewritten")
    assert 0 < cached(again) <= edit_token
    # The engine's own hash decides: the same with a history that nobody has ever sent.
    fresh = chat(pair, followed(opening(edited), first), cache_salt="never seen")
    assert cached(fresh) == 0


def test_another_salt_never_hits(pair: Cluster) -> None:
    chat(pair, opening(), cache_salt="mine")
    theirs = chat(pair, opening(), cache_salt="theirs")
    assert cached(theirs) == 0
    assert theirs["usage"]["pdd"]["transferred_bytes"] > 0
    mine = chat(pair, opening(), cache_salt="mine")
    assert cached(mine) > 0


def test_a_long_second_turn_pulls_the_answer_and_ships_only_new_blocks(pulling: Cluster) -> None:
    """The prefill node has the first turn's prompt; its answer is on the decode node only."""
    prompt = [1000 + 7 * index % 5000 for index in range(300)]
    first = pulling.complete(
        prompt, max_tokens=200, temperature=0.0, ignore_eos=True, cache_salt="pulls"
    )
    history = prompt + first["choices"][0]["token_ids"]
    held, had = (len(history) - 1) // BLOCK, len(prompt) // BLOCK
    assert held > had
    asked: dict[str, Any] = {
        "prompt": [*history, *(2000 + 11 * index % 5000 for index in range(600))],
        "max_tokens": 16,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    second = pulling.complete(**asked, cache_salt="pulls")
    usage = second["usage"]
    assert usage["pdd"]["path"] == "disaggregated"
    assert usage["pdd"]["pulled_tokens"] == (held - had) * BLOCK
    assert usage["prompt_tokens_details"]["cached_tokens"] == held * BLOCK
    assert usage["pdd"]["decode_computed_prompt_tokens"] == 0
    block_bytes = usage["pdd"]["pulled_bytes"] // (held - had)
    new_blocks = -(-usage["prompt_tokens"] // BLOCK) - held
    assert usage["pdd"]["transferred_bytes"] == new_blocks * block_bytes > 0
    # With nothing of it in any cache it is the same text.
    computed = pulling.complete(**asked, cache_salt="never seen")
    assert computed["usage"]["pdd"]["pulled_tokens"] == 0
    assert computed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert computed["choices"][0]["token_ids"] == second["choices"][0]["token_ids"]
    pulling.wait_until_idle(within_s=30.0)
