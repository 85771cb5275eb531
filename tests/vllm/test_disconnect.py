"""A client that leaves frees its blocks on both nodes, whatever phase its request is in.

"Within one engine step + 1 s": the step is measured here, on this machine at this load.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.vllm.cluster import Cluster

BODY = {"max_tokens": 600, "ignore_eos": True, "stream": True, "temperature": 0.0}
LONG_PROMPT = [900 + (23 * i) % 5000 for i in range(1400)]
"""Three chunks of at most 512 tokens: three engine steps of the prefill node."""


@pytest.fixture(scope="module")
def bound_s(pair: Cluster) -> float:
    """Three times the slowest step seen (another test run may share the machine), and 1 s."""
    answer = pair.complete(LONG_PROMPT, max_tokens=1, cache_salt="measure a step")
    step_s = answer["usage"]["pdd"]["prefill_ms"] / 1000 / 3
    print(f"one engine step of 512 prompt tokens takes {step_s:.2f} s")
    return 3 * step_s + 1.0


@contextmanager
def open_stream(pair: Cluster, prompt: str | list[int], salt: str) -> Iterator[httpx.Response]:
    body = {"prompt": prompt, "cache_salt": salt, **BODY}
    with httpx.stream("POST", f"{pair.http}/v1/completions", json=body, timeout=60) as response:
        yield response


def test_leaving_while_the_prompt_is_computed_frees_everything(
    pair: Cluster, bound_s: float
) -> None:
    with httpx.Client(timeout=60) as client:
        request = client.build_request(
            "POST",
            f"{pair.http}/v1/completions",
            json={"prompt": LONG_PROMPT, "cache_salt": "leave early", **BODY},
        )
        # Headers leave after a quarter of a second at most, the first token much later.
        response = client.send(request, stream=True)
        pair.wait_until_busy(within_s=30.0)
        response.close()
    pair.wait_until_idle(within_s=bound_s)


@pytest.mark.parametrize("event_count", [1, 2, 12])
def test_leaving_after_some_tokens_frees_everything(
    pair: Cluster, bound_s: float, event_count: int
) -> None:
    with open_stream(pair, "A very long story begins.", f"leave after {event_count}") as response:
        lines = response.iter_lines()  # kept: httpx closes the connection when it is dropped
        seen = 0
        while seen < event_count:
            seen += next(lines).startswith("data: ")
        pair.wait_until_busy(within_s=30.0)
    pair.wait_until_idle(within_s=bound_s)


def test_the_cluster_serves_on_after_all_that(pair: Cluster) -> None:
    answer = pair.complete("Still there?", max_tokens=4, temperature=0.0)

    assert answer["usage"]["pdd"]["path"] == "disaggregated"
    assert answer["usage"]["pdd"]["transferred_bytes"] > 0
