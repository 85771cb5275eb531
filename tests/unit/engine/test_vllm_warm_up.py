"""What an engine computes before it says that it is ready."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pdd.engine.vllm_warm_up import DECODED_TOKENS, WarmUpPlan, plan_of, warm_up


class PlayedEngine:
    """Ends no decoded sequence before ``together`` of them run; then, if it ``ends`` any."""

    def __init__(self, *, together: int, ends: bool = True) -> None:
        self.prompts: list[list[int]] = []
        self.outputs: list[int] = []
        self.keys: set[str] = set()
        self.running = 0
        self._together = together
        self.all_run = asyncio.Event()
        self._goes_on = self.all_run if ends else asyncio.Event()

    async def generate(self, key: str, prompt: list[int], tokens: int) -> AsyncGenerator[int, None]:
        self.prompts.append(prompt)
        self.outputs.append(tokens)
        self.keys.add(key)
        self.running += 1
        try:
            if tokens > 1:
                if self.running == self._together:
                    self.all_run.set()
                await self._goes_on.wait()
            yield tokens
        finally:
            self.running -= 1


@pytest.mark.parametrize(
    ("step_tokens", "max_model_len", "prompt_tokens"),
    [(512, 2048, 512), (2048, 512, 512 - DECODED_TOKENS), (512, 2, 1)],
)
def test_the_prompt_fills_a_step_as_far_as_a_sequence_may_be_that_long(
    step_tokens: int, max_model_len: int, prompt_tokens: int
) -> None:
    plan = plan_of(step_tokens=step_tokens, max_model_len=max_model_len, max_num_seqs=8)
    assert plan == WarmUpPlan(prompt_tokens=prompt_tokens, sequences=8)


def test_so_many_sequences_as_a_large_engine_runs_are_not_needed() -> None:
    plan = plan_of(step_tokens=8192, max_model_len=4096, max_num_seqs=1024)
    assert plan.sequences == 64


async def test_one_prompt_is_computed_alone_then_all_sequences_are_decoded_at_once() -> None:
    engine = PlayedEngine(together=5)
    await warm_up(engine.generate, WarmUpPlan(prompt_tokens=70, sequences=5), vocab_size=50)
    assert engine.outputs == [1, *[DECODED_TOKENS] * 5]
    assert len(engine.keys) == 6
    assert len(engine.prompts[0]) == 70
    assert all(0 <= token < 50 for prompt in engine.prompts for token in prompt)
    assert len({prompt[0] for prompt in engine.prompts}) == 6, "none is found in the cache"


async def test_a_warm_up_that_is_given_up_leaves_nothing_running() -> None:
    engine = PlayedEngine(together=3, ends=False)
    plan = WarmUpPlan(prompt_tokens=7, sequences=3)
    task = asyncio.create_task(warm_up(engine.generate, plan, vocab_size=50))
    await engine.all_run.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.running == 0


@pytest.mark.parametrize("tokens_at_death", [1, DECODED_TOKENS])
async def test_an_engine_that_dies_meanwhile_is_told(tokens_at_death: int) -> None:
    """By its own error: this is what the operator reads, and a group's text names none."""

    async def dies(key: str, prompt: list[int], tokens: int) -> AsyncGenerator[int, None]:
        if tokens == tokens_at_death:
            raise RuntimeError("dead")
        yield 0

    with pytest.raises(RuntimeError, match="dead"):
        await warm_up(dies, WarmUpPlan(prompt_tokens=7, sequences=2), vocab_size=50)
