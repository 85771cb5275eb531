"""Two engines answer what one answers, whatever their caches, pools and transfers are up to."""

import asyncio
import random
from dataclasses import replace

import pytest

from pdd.connector.params import JobKind
from pdd.core.frames import FinishReason
from pdd.engine.port import Choice, JobFacts, StepOutput
from pdd.engine.synthetic.sequence import SequencePhase
from pdd.engine.synthetic.settings import SyntheticFaults
from pdd.transfer.settings import TransferFaults, TransferSettings
from tests.cluster.synthetic.pair import (
    VOCAB_SIZE,
    Node,
    disaggregated,
    local,
    make_job,
    nodes,
    outputs_of,
    settings,
    tokens_of,
)
from tests.waiting import until

KEYS = iter(range(10**9))


def job_of(prompt: list[int], **fields):
    return make_job(prompt, key=f"r{next(KEYS)}/0", **fields)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 10_000 + length).choices(range(VOCAB_SIZE), k=length)


async def plain_answer(prompt: list[int], **fields) -> list[int]:
    """What an engine that has never seen anything says."""
    async with nodes(settings()) as (node,):
        return tokens_of(await local(node, job_of(prompt, **fields)))


async def test_random_prompts_are_answered_alike_with_cold_and_warm_caches():
    seed = 20261130
    print(f"seed {seed}")
    rng = random.Random(seed)
    prefixes = [rng.choices(range(VOCAB_SIZE), k=count) for count in (0, 16, 40, 100)]
    async with nodes(settings(), settings(), settings(enable_prefix_caching=False)) as (
        prefill,
        decode,
        alone,
    ):
        cached = 0
        for turn in range(40):
            prompt = rng.choice(prefixes) + rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 50))
            sampling = {
                "max_tokens": rng.randint(1, 24),
                "temperature": rng.choice([0.0, 0.7, 1.3]),
                "seed": rng.getrandbits(63),
                "top_p": rng.choice([1.0, 0.9]),
                "top_k": rng.choice([0, 5]),
                "logprobs": rng.choice([None, 3]),
            }
            job = job_of(prompt, **sampling)
            if rng.random() < 0.3:  # a warm cache on the decode side only
                await local(decode, job_of(prompt[: rng.randint(1, len(prompt))]))
            expected = await local(alone, job)
            assert await disaggregated(prefill, decode, job) == expected, (turn, sampling)
            cached += decode.engine.facts(job.key).cached_tokens
        assert cached > 0, "no transfer was shortened by the decode node's cache"
        for node in (prefill, decode, alone):
            await node.wait_quiet()
        assert decode.engine.counters().get("failed_loads", 0) == 0


async def test_the_decode_node_computes_nothing_of_the_prompt_and_counts_what_came():
    async with nodes(settings(), settings()) as (prefill, decode):
        job = job_of(prompt_of(70))
        await disaggregated(prefill, decode, job)
        facts: JobFacts = decode.ready[job.key]
        assert facts.computed_prompt_tokens == 0
        assert facts.transferred_bytes == 5 * 16 * 64
        assert facts.transfer_s > 0
        again = job_of(prompt_of(70))
        await disaggregated(prefill, decode, again)
        assert decode.ready[again.key].cached_tokens == 64
        assert decode.ready[again.key].transferred_bytes == 16 * 64


async def test_many_at_once_are_answered_as_one_by_one():
    jobs = [job_of(prompt_of(20 + 7 * i, seed=i), max_tokens=12) for i in range(12)]
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        async with asyncio.TaskGroup() as group:
            together = [group.create_task(disaggregated(prefill, decode, job)) for job in jobs]
        for job, task in zip(jobs, together, strict=True):
            assert task.result() == await local(alone, job)
        await prefill.wait_quiet()
        await decode.wait_quiet()


@pytest.mark.parametrize("block_count", [12, 20])
async def test_preemption_changes_nothing_but_the_time_it_takes(block_count: int):
    jobs = [job_of(prompt_of(40, seed=i), max_tokens=60, ignore_eos=True) for i in range(6)]
    async with nodes(settings(block_count=block_count), settings(block_count=1000)) as (
        small,
        large,
    ):
        async with asyncio.TaskGroup() as group:
            crowded = [group.create_task(local(small, job)) for job in jobs]
        assert small.engine.counters()["preemptions"] > 0
        for job, task in zip(jobs, crowded, strict=True):
            assert task.result() == await local(large, job)
        await small.wait_quiet()


async def test_a_preempted_prefill_and_a_preempted_decode_still_answer_alike():
    prompts = [prompt_of(50, seed=i) for i in range(8)]
    async with nodes(settings(block_count=14), settings(block_count=14), settings()) as (
        prefill,
        decode,
        alone,
    ):
        jobs = [job_of(prompt, max_tokens=40, ignore_eos=True) for prompt in prompts]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(disaggregated(prefill, decode, job)) for job in jobs]
        for job, task in zip(jobs, tasks, strict=True):
            assert task.result() == await local(alone, job)
        assert decode.engine.counters()["preemptions"] > 0
        await prefill.wait_quiet()
        await decode.wait_quiet()


async def test_a_flipped_byte_is_fetched_again_and_counted():
    async with nodes(settings(transfer={"flip_byte_in_chunk": 0}), settings()) as (
        prefill,
        decode,
    ):
        job = job_of(prompt_of(70))
        answer = tokens_of(await disaggregated(prefill, decode, job))
        assert answer == await plain_answer(prompt_of(70))
        assert decode.engine.counters()["digest_mismatches"] == 1
        assert decode.ready[job.key].computed_prompt_tokens == 0


async def test_a_transfer_that_fails_is_computed_here_and_counted():
    async with nodes(settings(transfer={"fail_chunk": 0}), settings()) as (prefill, decode):
        job = job_of(prompt_of(70), max_tokens=20)
        answer = tokens_of(await disaggregated(prefill, decode, job))
        assert answer == await plain_answer(prompt_of(70), max_tokens=20)
        facts = decode.ready[job.key]
        assert facts.load_failed_reason == "digest_mismatch"
        assert facts.computed_prompt_tokens > 0
        assert decode.engine.counters()["failed_loads"] == 1
        await prefill.wait_quiet()
        await decode.wait_quiet()


async def test_without_a_digest_a_flipped_byte_shows_in_the_text():
    """The proof that tokens follow from the bytes: nothing else sees this damage."""
    blind = TransferSettings(digest=False, faults=TransferFaults(flip_byte_in_chunk=0))
    answers = []
    for transfer in (TransferSettings(), blind):
        async with nodes(
            replace(settings(), transfer=transfer), replace(settings(), transfer=transfer)
        ) as (prefill, decode):
            job = job_of(prompt_of(70), max_tokens=20, ignore_eos=True)
            answers.append(tokens_of(await disaggregated(prefill, decode, job)))
    expected, damaged = answers
    assert damaged[0] == expected[0], "the prefill node's own pool is whole"
    assert damaged[1:] != expected[1:]


async def test_a_byte_changed_while_decoding_changes_the_rest_of_the_text():
    async with nodes(settings()) as (node,):
        prompt = prompt_of(50)
        whole = tokens_of(await local(node, job_of(prompt, max_tokens=30, ignore_eos=True)))
        said: list[int] = []
        job = job_of(prompt, max_tokens=30, ignore_eos=True)
        async for output in node.engine.run(job):
            said += output.token_ids
            if len(said) == 10:
                (sequence,) = node.engine.batch.sequences()
                node.engine.pools[0][sequence.blocks[1], 5] ^= 1
        assert said[:10] == whole[:10]
        assert said[10] != whole[10]


async def test_a_sequence_goes_on_elsewhere_after_the_tokens_that_were_said():
    async with nodes(settings(), settings()) as (one, other):
        sampling = {"max_tokens": 20, "temperature": 1.0, "seed": 77, "ignore_eos": True}
        whole = tokens_of(await local(one, job_of(prompt_of(30), **sampling)))
        for index in (1, 7, 19):
            rest = await local(
                other,
                job_of(
                    prompt_of(30),
                    choices=(Choice(emitted_token_ids=tuple(whole[:index])),),
                    **sampling,
                ),
            )
            assert tokens_of(rest) == whole[index:]


async def test_tenants_do_not_share_blocks_and_are_answered_alike():
    async with nodes(settings()) as (node,):
        jobs = [job_of(prompt_of(64), cache_salt=salt) for salt in ("a", "b", "a")]
        answers = []
        cached = []
        for job in jobs:
            answers.append(tokens_of(await outputs_of(node, job)))
            cached.append(node.engine.facts(job.key).cached_tokens)
        assert answers[0] == answers[1] == answers[2]
        assert cached == [0, 0, 48]


async def test_ends_are_told_as_the_real_engine_tells_them():
    async with nodes(settings()) as (node,):
        words = tokens_of(await local(node, job_of(prompt_of(30), max_tokens=9, ignore_eos=True)))
        stopped = await local(
            node, job_of(prompt_of(30), max_tokens=9, stop_token_ids=(words[3],), ignore_eos=True)
        )
        assert tokens_of(stopped) == words[: words.index(words[3]) + 1]
        assert stopped[-1].finish_reason is FinishReason.STOP
        assert stopped[-1].stop_reason == words[3]
        long = await local(node, job_of(prompt_of(30), max_tokens=9, ignore_eos=True))
        assert long[-1].finish_reason is FinishReason.LENGTH


def has_come_to(phase: str, node: Node, key: str) -> bool:
    """Whether a job has reached the phase in which it will be cancelled."""
    (one,) = [one for one in node.engine.batch.sequences() if one.key == key]
    match phase:
        case "waiting":
            return one.phase is SequencePhase.WAITING and node.engine.batch.running_count > 0
        case "computing":
            return one.phase is SequencePhase.RUNNING and 0 < one.computed < one.given_count
        case "loading":
            return one.phase is SequencePhase.LOADING
        case "loaded":
            return node.engine.transfers.has_arrived(key)
    return one.output_count > 3


@pytest.mark.parametrize("phase", ["waiting", "computing", "loading", "loaded", "decoding"])
async def test_a_cancel_in_any_phase_gives_every_block_back(phase: str):
    slow = SyntheticFaults(step_delay_s=0.01)
    delay = {"delay_s": 0.5 if phase == "loading" else 0.0}
    async with nodes(
        settings(faults=slow, transfer=delay), settings(faults=slow, block_count=40)
    ) as (prefill, decode):
        others: list[asyncio.Task[list[StepOutput]]] = []
        runner, job = decode, job_of(prompt_of(50), max_tokens=500, ignore_eos=True)
        if phase == "computing":
            runner, job = prefill, job_of(prompt_of(1000), kind=JobKind.PREFILL)
        elif phase == "waiting":  # a reservation waits for the room that a long answer has
            others.append(asyncio.create_task(outputs_of(decode, job_of(prompt_of(500)))))
            await until(lambda: decode.engine.batch.running_count, "the long answer to run")
        if phase in ("waiting", "loading", "loaded"):
            job = job_of(prompt_of(300), kind=JobKind.DECODE, source=prefill.source)
        if phase in ("loading", "loaded"):
            prefilling = make_job(prompt_of(300), key=job.key, kind=JobKind.PREFILL)
            others.append(asyncio.create_task(outputs_of(prefill, prefilling)))
        task = asyncio.create_task(outputs_of(runner, job))
        await asyncio.sleep(0)
        await until(lambda: task.done() or has_come_to(phase, runner, job.key), phase)
        assert not task.done()
        task.cancel()
        for other in others:
            other.cancel()
        await asyncio.wait([task, *others])
        if phase != "computing":  # there the cancel itself must do it
            prefill.engine.drop_source(job.key, "cancelled")
        for node in (prefill, decode):
            await node.wait_quiet()
            assert not list(node.engine.batch.sequences())
        after = job_of(prompt_of(9))
        assert await disaggregated(prefill, decode, after) == await local(decode, after)


async def test_random_cancels_leave_nothing_behind():
    seed = 7
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with nodes(settings(block_count=60), settings(block_count=60), settings()) as (
        prefill,
        decode,
        alone,
    ):

        async def one(index: int) -> None:
            job = job_of(prompt_of(rng.randint(1, 200), seed=index % 5), max_tokens=20)
            task = asyncio.create_task(disaggregated(prefill, decode, job))
            if rng.random() < 0.6:
                await asyncio.sleep(rng.random() * 0.05)
                prefill.engine.drop_source(job.key, "cancelled")
                task.cancel()
                await asyncio.wait([task])
                prefill.engine.drop_source(job.key, "cancelled")
            else:
                assert await task == await local(alone, job)

        for round_ in range(6):
            async with asyncio.TaskGroup() as group:
                for index in range(8):
                    group.create_task(one(8 * round_ + index))
            for node in (prefill, decode):
                await node.wait_quiet()


async def settled() -> None:
    """Let every event of the transfer threads arrive that is on its way."""
    for _ in range(20):
        await asyncio.sleep(0.005)


async def test_ranks_that_share_a_model_answer_and_transfer_together():
    two = settings(tensor_parallel_size=2)
    async with nodes(two, two, two) as (prefill, decode, alone):
        job = job_of(prompt_of(70), max_tokens=20)
        assert await disaggregated(prefill, decode, job) == await local(alone, job)
        assert decode.ready[job.key].transferred_bytes == 2 * 5 * 16 * 64
        await prefill.wait_quiet()
        await settled()


async def test_an_idle_engine_takes_no_steps():
    async with nodes(settings()) as (node,):
        await local(node, job_of(prompt_of(5)))
        before = node.engine.counters()["steps"]
        turns = 0
        node.engine._work.clear()
        while turns < 50:
            await asyncio.sleep(0.002)
            turns += 1
        assert node.engine.counters()["steps"] == before
        assert not node.engine._work.is_set()
