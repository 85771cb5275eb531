"""The first prompts of a fresh engine, before anybody waits for one.

Kernels are made at the first prompt that needs them; with ``enforce_eager``, vLLM's own warm-up on
a CPU computes nothing (vllm/v1/worker/cpu_worker.py, 0.32). The first requests were slow, and what
a scheduler measured on them was wrong. So an engine computes one whole step of a prompt, then
decodes as many sequences as it may run at once, and forgets both.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

LIMIT_S = 30.0
"""What is not done by then is left to the first requests."""
DECODED_TOKENS = 4
SEQUENCES_MAX = 64
SHORT_PROMPT_TOKENS = 8

Generate = Callable[[str, list[int], int], AsyncGenerator[Any, None]]
"""``(request id, prompt, output tokens)``: outputs until the request has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpPlan:
    """``prompt_tokens``: of the one long prompt. ``sequences``: decoded at once."""

    prompt_tokens: int
    sequences: int


def plan_of(*, step_tokens: int, max_model_len: int, max_num_seqs: int) -> WarmUpPlan:
    """A step's tokens, as far as a sequence may be that long."""
    return WarmUpPlan(
        prompt_tokens=max(1, min(step_tokens, max_model_len - DECODED_TOKENS)),
        sequences=min(max_num_seqs, SEQUENCES_MAX),
    )


async def warm_up(generate: Generate, plan: WarmUpPlan, *, vocab_size: int) -> None:
    """Returns when everything is computed. Cancelling it aborts what runs.

    vLLM's first error passes as it is, also where several sequences fail.
    """

    async def run(number: int, token_count: int, output_tokens: int) -> None:
        # No two begin alike: a prefix that is found in the cache would not be computed.
        prompt = [(number + index) % vocab_size for index in range(token_count)]
        stream = generate(f"warm-up/{number}", prompt, output_tokens)
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()

    await run(0, plan.prompt_tokens, 1)
    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, plan.sequences + 1):
                tasks.create_task(run(number, SHORT_PROMPT_TOKENS, DECODED_TOKENS))
    except ExceptionGroup as group:  # its own text does not say what went wrong
        raise group.exceptions[0] from group
