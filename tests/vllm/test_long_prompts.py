"""Long prompts beside short ones on real engines: who is answered before whom, and rightly."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx

from tests.vllm.cluster import Cluster, run_here
from tests.waiting import wait_until

LONG_COUNT, LONG_TOKENS = 5, 1400
SHORT_COUNT, SHORT_TOKENS = 12, 80
HELD = 'pdd_node_held_prompts{node="prefill-0"}'
LOGPROB_TOLERANCE = 0.3
"""A CPU's arithmetic depends on where a prompt is cut; wrong blocks would be off by whole units."""


def prompt_of(index: int, count: int) -> list[int]:
    return [700 + (29 * position + 997 * index) % 6000 for position in range(count)]


def ask(pair: Cluster, prompt: list[int], ended: list[str], name: str) -> dict[str, Any]:
    answer = pair.complete(
        prompt, max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=1, cache_salt=name
    )
    ended.append(name)
    return answer


def first_logprob(answer: dict[str, Any]) -> float:
    """Of the likeliest token. Where two are nearly as likely either may come, and what follows is
    another text: a prompt that is only cut elsewhere does so in two of five cases here."""
    value: float = answer["choices"][0]["logprobs"]["token_logprobs"][0]
    return value


def test_short_prompts_do_not_wait_for_long_ones_that_came_before_them(pair: Cluster) -> None:
    alone = ask(pair, prompt_of(0, LONG_TOKENS), [], "alone")
    ended: list[str] = []
    long: list[Future[dict[str, Any]]] = []
    with ThreadPoolExecutor(LONG_COUNT + 1) as pool:
        for index in range(LONG_COUNT):
            prompt = prompt_of(index, LONG_TOKENS)
            long.append(pool.submit(ask, pair, prompt, ended, f"long {index}"))
        pair.wait_until_busy(within_s=60.0)
        for index in range(SHORT_COUNT):
            ask(pair, prompt_of(100 + index, SHORT_TOKENS), ended, f"short {index}")
        answers = [one.result() for one in long]
    print(f"ended in this order: {ended}")
    # Served in the order of arrival, each short one would end after all of the long ones.
    last_short = max(place for place, name in enumerate(ended) if name.startswith("short"))
    assert sum(name.startswith("long") for name in ended[last_short:]) >= LONG_COUNT // 2
    for answer in answers:
        assert answer["usage"]["prompt_tokens"] == LONG_TOKENS
        assert answer["usage"]["pdd"]["path"] == "disaggregated"
        assert answer["usage"]["pdd"]["decode_computed_prompt_tokens"] == 0
    # Paused, and cut into other chunks: the same blocks.
    assert abs(first_logprob(alone) - first_logprob(answers[0])) < LOGPROB_TOLERANCE
    gauges = pair.wait_until_idle(within_s=10.0)
    wait_until(lambda: pair.node_gauges()[HELD] == 0, lambda: f"nobody to be held: {gauges}")


def test_more_long_prompts_than_a_decode_node_has_sequences_leave_short_ones_room(
    pair: Cluster,
) -> None:
    """Those that wait for their turn wait at the scheduler: counted by decisions, not by time."""
    for index in range(2):  # that the scheduler knows how fast they are computed here
        ask(pair, prompt_of(200 + index, LONG_TOKENS), [], f"known {index}")
    with ExitStack() as streams:
        for index in range(12):
            body = {
                "prompt": prompt_of(210 + index, LONG_TOKENS),
                "max_tokens": 3,
                "stream": True,
                "cache_salt": f"many {index}",
            }
            url = f"{pair.http}/v1/completions"
            streams.enter_context(httpx.stream("POST", url, json=body, timeout=240.0))
        for index in range(SHORT_COUNT):
            body = {"prompt": prompt_of(230 + index, SHORT_TOKENS), "max_tokens": 2}
            answer = pair.post("/v1/completions", body)
            assert answer.status_code == 200, answer.text
            request_id = answer.headers["x-pdd-request-id"]
            told = run_here("why", request_id, "-o", "json", "--state-dir", str(pair.state_dir))
            assert [one["outcome"] for one in json.loads(told.stdout)] == ["placed"], told.stdout
        assert pair.node_gauges()[HELD] < 8
    pair.wait_until_idle(within_s=60.0)
