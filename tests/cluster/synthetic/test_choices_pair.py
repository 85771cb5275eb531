"""Several choices of one prompt on two engines: each is what one engine says for its own seed.

The tokens depend on every byte of every block, so a block that two choices share by mistake, or a
copy that is not one, changes the text.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from pdd.connector.params import JobKind
from pdd.core.frames import FinishReason
from pdd.engine.port import Choice, Job, StepOutput
from pdd.engine.synthetic.settings import SyntheticFaults
from tests.cluster.synthetic.pair import (
    VOCAB_SIZE,
    WAIT_S,
    Node,
    local,
    make_job,
    nodes,
    outputs_of,
    settings,
    tokens_of,
)

KEYS = iter(range(10**9))
SAMPLED: dict[str, Any] = {"temperature": 1.1, "seed": 2**63 - 3}
"""The seed is near its end: choice 3 goes on at the other one."""


def job_of(prompt: list[int], *, n: int = 1, **fields: Any) -> Job:
    choices = tuple(Choice(index=index) for index in range(n))
    return make_job(prompt, key=f"r{next(KEYS)}/0", choices=choices, **(SAMPLED | fields))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 10_000 + length).choices(range(VOCAB_SIZE), k=length)


def by_choice(outputs: list[StepOutput]) -> dict[int, list[StepOutput]]:
    """Each choice's outputs, without the mark of whose they are."""
    sorted_out: dict[int, list[StepOutput]] = defaultdict(list)
    for output in outputs:
        sorted_out[output.choice_index].append(replace(output, choice_index=0))
    return dict(sorted_out)


def seed_of(job: Job, index: int) -> int:
    """Counted on from the request's own, the smallest 64-bit number after the largest."""
    seed = job.sampling.seed + index
    return seed if seed < 2**63 else seed - 2**64


async def apart(node: Node, job: Job) -> dict[int, list[StepOutput]]:
    """The oracle: a request of its own for every choice, with the seed that it should have."""
    return {
        choice.index: await local(
            node,
            replace(
                job,
                key=f"r{next(KEYS)}/0",
                choices=(replace(choice, index=0),),
                sampling=replace(job.sampling, seed=seed_of(job, choice.index)),
            ),
        )
        for choice in job.choices
    }


async def handed_over(prefill: Node, decode: Node, job: Job) -> list[StepOutput]:
    """As the scheduler has it: first tokens on one node, then all that have not ended go on."""
    decoding = asyncio.create_task(
        outputs_of(decode, replace(job, kind=JobKind.DECODE, source=prefill.source))
    )
    try:
        firsts = await outputs_of(prefill, replace(job, kind=JobKind.PREFILL))
        limit = job.sampling.max_tokens
        going_on = {
            one.choice_index: one.token_ids[0]
            for one in firsts
            if one.finish_reason is not FinishReason.STOP and limit > 1
        }
        if not going_on:
            prefill.engine.drop_source(job.key, "all choices ended with their first token")
            return firsts
        decode.engine.first_tokens(job.key, going_on)
        shown = [
            replace(one, finish_reason=None) if one.choice_index in going_on else one
            for one in firsts
        ]
        return [*shown, *await decoding]
    finally:
        decoding.cancel()
        await asyncio.wait([decoding])


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 70])
async def test_each_choice_is_what_one_node_says_for_its_seed(n: int, length: int):
    job = job_of(prompt_of(length), n=n, max_tokens=40, logprobs=2)
    async with nodes(settings(), settings(), settings(), settings()) as (
        prefill,
        decode,
        alone,
        fresh,
    ):
        expected = await apart(fresh, job)
        assert by_choice(await outputs_of(alone, job)) == expected
        assert by_choice(await handed_over(prefill, decode, job)) == expected
        facts = decode.ready[job.key]
        assert facts.computed_prompt_tokens == 0, "the last block was computed, not copied"
        assert facts.transferred_bytes == -(-length // 16) * 16 * 64, "not one transfer"
        assert prefill.engine.facts(job.key).computed_prompt_tokens == length, "not one prefill"
        assert alone.engine.facts(job.key).computed_prompt_tokens == length
        for node in (prefill, decode, alone):
            await node.wait_quiet()


async def test_random_jobs_on_pools_that_are_too_small_answer_alike():
    seed = 20261130
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with nodes(
        settings(block_count=14), settings(block_count=14, max_num_seqs=6), settings()
    ) as (prefill, decode, fresh):
        for turn in range(12):
            jobs = [
                job_of(
                    prompt_of(rng.randint(1, 60), seed=rng.randint(0, 3)),
                    n=rng.randint(1, 5),
                    max_tokens=rng.randint(1, 40),
                    temperature=rng.choice([0.0, 1.2]),
                    seed=rng.getrandbits(60),
                )
                for _ in range(3)
            ]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(handed_over(prefill, decode, job)) for job in jobs]
            for job, task in zip(jobs, tasks, strict=True):
                assert by_choice(task.result()) == await apart(fresh, job), turn
        for node in (prefill, decode):
            await node.wait_quiet()
        assert decode.engine.counters()["preemptions"] > 0, "nobody was short of blocks"


async def test_greedy_choices_are_all_the_single_answer():
    async with nodes(settings(), settings(), settings()) as (prefill, decode, fresh):
        job = job_of(prompt_of(37), n=5, temperature=0.0, max_tokens=30)
        (single,) = (await apart(fresh, replace(job, choices=job.choices[:1]))).values()
        got = by_choice(await handed_over(prefill, decode, job))
        assert got == dict.fromkeys(range(5), single)


async def test_without_a_block_for_its_copy_a_choice_waits_and_computes_what_it_lacks():
    # 39 tokens are 3 blocks; 5 usable ones leave 2 for the copies that 4 choices want.
    async with nodes(settings(block_count=6), settings()) as (small, fresh):
        job = job_of(prompt_of(39), n=5, max_tokens=6, ignore_eos=True)
        expected = await apart(fresh, job)
        assert by_choice(await outputs_of(small, job)) == expected
        computed = small.engine.facts(job.key).computed_prompt_tokens
        assert computed > 39, "it must be told that something was computed again"
        await small.wait_quiet()


async def test_choices_go_on_after_what_each_has_emitted_elsewhere():
    async with nodes(settings(), settings()) as (other, fresh):
        job = job_of(prompt_of(45), n=4, max_tokens=30, ignore_eos=True)
        whole = {index: tokens_of(one) for index, one in (await apart(fresh, job)).items()}
        emitted = {0: 3, 1: 0, 3: 19}  # choice 2 has ended before
        resumed = replace(
            job,
            key=f"r{next(KEYS)}/1",
            choices=tuple(
                Choice(index=index, emitted_token_ids=tuple(whole[index][:count]))
                for index, count in emitted.items()
            ),
        )
        got = by_choice(await outputs_of(other, resumed))
        assert {index: tokens_of(one) for index, one in got.items()} == {
            index: whole[index][count:] for index, count in emitted.items()
        }
        await other.wait_quiet()


async def test_a_choice_that_is_stopped_gives_back_its_blocks_and_disturbs_nobody():
    async with nodes(settings(), settings(faults=SyntheticFaults(step_delay_s=0.002))) as (
        fresh,
        node,
    ):
        job = job_of(prompt_of(40), n=3, max_tokens=60, ignore_eos=True)
        expected = await apart(fresh, job)
        got: dict[int, list[int]] = defaultdict(list)
        active: list[int] = []
        async with asyncio.timeout(WAIT_S):
            async for output in node.engine.run(job):
                if output.choice_index == 1 and len(got[1]) == 20:
                    continue  # what was on its way when it was stopped
                got[output.choice_index].extend(output.token_ids)
                if output.choice_index == 1 and len(got[1]) == 20:
                    active.append(node.counts()[0])
                    node.engine.stop_choice(job.key, 1)
                    active.append(node.counts()[0])
        # Two full blocks of the prompt stay; what the choice had for itself is back at once.
        assert active[0] - active[1] == -(-(40 + 20) // 16) - 2
        assert got == {
            index: tokens_of(one)[: 20 if index == 1 else None] for index, one in expected.items()
        }
        await node.wait_quiet()


@pytest.mark.parametrize("after", [0, 1, 7])
async def test_a_cancel_gives_back_all_blocks_whatever_the_choices_do(after: int):
    async with nodes(settings(), settings(faults=SyntheticFaults(step_delay_s=0.002))) as (
        prefill,
        decode,
    ):
        job = job_of(prompt_of(40), n=4, max_tokens=60, ignore_eos=True)
        run = decode.engine.run(replace(job, kind=JobKind.DECODE, source=prefill.source))
        reading = asyncio.create_task(anext(run))
        firsts = await outputs_of(prefill, replace(job, kind=JobKind.PREFILL))
        if after:
            first_tokens = {one.choice_index: one.token_ids[0] for one in firsts}
            decode.engine.first_tokens(job.key, first_tokens)
            async with asyncio.timeout(WAIT_S):
                await reading
                for _ in range(after - 1):
                    await anext(run)
        reading.cancel()
        await asyncio.wait([reading])
        await run.aclose()
        prefill.engine.drop_source(job.key, "cancelled")
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_blocks_that_do_not_come_are_computed_once_for_all_choices():
    async with nodes(settings(transfer={"fail_chunk": 0}), settings(), settings()) as (
        prefill,
        decode,
        fresh,
    ):
        job = job_of(prompt_of(50), n=3, max_tokens=12)
        expected = await apart(fresh, job)
        assert by_choice(await handed_over(prefill, decode, job)) == expected
        facts = decode.ready[job.key]
        assert facts.load_failed_reason
        assert facts.computed_prompt_tokens == 50
        for node in (prefill, decode):
            await node.wait_quiet()
