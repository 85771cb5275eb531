"""A client that leaves frees its blocks on both nodes, whatever phase its request is in."""

import httpx
import pytest

from tests.vllm.cluster import Cluster

BODY = {"max_tokens": 600, "ignore_eos": True, "stream": True, "temperature": 0.0}
STEP_S = 15.0
"""Generous for one engine step of 512 prompt tokens on a machine that runs other tests too; on an
idle one blocks are back within 0.5 s."""


def test_leaving_while_the_prompt_is_computed_frees_everything(pair: Cluster) -> None:
    long_prompt = [900 + (23 * i) % 5000 for i in range(1400)]  # three chunks
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{pair.http}/v1/completions",
            json={"prompt": long_prompt, **BODY, "stream": False, "cache_salt": "leave-early"},
            timeout=httpx.Timeout(10.0, read=0.3),
        )
    pair.wait_until_idle(within_s=STEP_S + 1.0)


@pytest.mark.parametrize("event_count", [1, 2, 12])
def test_leaving_after_some_tokens_frees_everything(pair: Cluster, event_count: int) -> None:
    seen = 0
    with httpx.stream(
        "POST",
        f"{pair.http}/v1/completions",
        json={"prompt": "A very long story begins.", **BODY},
        timeout=60,
    ) as response:
        for line in response.iter_lines():
            seen += line.startswith("data: ")
            if seen == event_count:
                break
    pair.wait_until_idle(within_s=STEP_S + 1.0)


def test_the_cluster_serves_on_after_all_that(pair: Cluster) -> None:
    answer = pair.complete("Still there?", max_tokens=4, temperature=0.0)

    assert answer["usage"]["pdd"]["path"] == "disaggregated"
    assert answer["usage"]["pdd"]["transferred_bytes"] > 0
