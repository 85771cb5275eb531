"""A prefill node has the prefix that it lacks from the decode node, and computes only the rest.

Every answer is compared with that of an engine that computed everything: tokens follow from the
bytes of all blocks, so a block that is wrong, stale or somebody else's changes the text.
"""

import asyncio
import random
from dataclasses import replace

import pytest

from pdd.connector.params import JobKind, Pull, SourceNode
from pdd.engine.port import Job
from pdd.engine.synthetic.sequence import SequencePhase
from pdd.engine.synthetic.settings import SyntheticFaults
from pdd.transfer.settings import TransferFaults, TransferSettings
from tests.cluster.synthetic.pair import (
    VOCAB_SIZE,
    WAIT_S,
    Node,
    disaggregated,
    joined,
    local,
    make_job,
    nodes,
    outputs_of,
    settings,
    tokens_of,
)
from tests.waiting import until

KEYS = iter(range(10**9))
BLOCK_SIZE, BLOCK_BYTES = 16, 16 * 64


def job_of(prompt: list[int], **fields) -> Job:
    return make_job(prompt, key=f"p{next(KEYS)}/0", **fields)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 10_000 + length).choices(range(VOCAB_SIZE), k=length)


async def first_turn(decode: Node, prompt: list[int], count: int = 40) -> list[int]:
    """A conversation that only the decode node has: its prompt and the answer."""
    job = job_of(prompt, max_tokens=count, ignore_eos=True)
    return prompt + tokens_of(await local(decode, job))


def held_tokens(history: list[int]) -> int:
    """Full blocks of it; the last token of an answer is never computed."""
    return (len(history) - 1) // BLOCK_SIZE * BLOCK_SIZE


async def test_a_long_second_turn_pulls_the_conversation_and_ships_only_new_blocks():
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        held = held_tokens(history)
        turn = job_of(history + prompt_of(120, seed=3), max_tokens=20)
        said = await disaggregated(prefill, decode, turn, pulled_tokens=held)
        assert said == await local(alone, turn)
        assert decode.ready[turn.key].cached_tokens == held
        assert decode.ready[turn.key].computed_prompt_tokens == 0
        new_blocks = -(-len(turn.prompt_token_ids) // BLOCK_SIZE) - held // BLOCK_SIZE
        assert decode.ready[turn.key].transferred_bytes == new_blocks * BLOCK_BYTES
        counters = prefill.engine.counters()
        assert counters["pulls_completed"] == 1
        assert counters["pulled_bytes"] == held // BLOCK_SIZE * BLOCK_BYTES
        assert counters["computed_tokens"] == len(turn.prompt_token_ids) - held
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_what_the_prefill_node_has_is_not_pulled_and_what_was_pulled_is_cached_there():
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        first = job_of(prompt_of(100), max_tokens=40, ignore_eos=True)
        history = [*prompt_of(100), *tokens_of(await disaggregated(prefill, decode, first))]
        held, had = held_tokens(history), 96
        turn = job_of(history + prompt_of(50, seed=4))
        assert await disaggregated(prefill, decode, turn, pulled_tokens=held) == await local(
            alone, turn
        )
        pulled_bytes = (held - had) // BLOCK_SIZE * BLOCK_BYTES
        assert prefill.engine.counters()["pulled_bytes"] == pulled_bytes
        again = job_of(history + prompt_of(50, seed=5))
        assert await disaggregated(prefill, decode, again, pulled_tokens=held) == await local(
            alone, again
        )
        assert prefill.engine.counters()["pulled_bytes"] == pulled_bytes, "it has all of it now"
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_a_prefix_that_the_decode_node_holds_no_more_is_computed_at_once():
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        assert await decode.engine.reset_cache()
        turn = job_of(history + prompt_of(60, seed=3))
        # Nothing is waited for: with a wait for ever it would not come to its end.
        said = await disaggregated(
            prefill, decode, turn, pulled_tokens=held_tokens(history), pull_wait_s=WAIT_S * 10
        )
        assert said == await local(alone, turn)
        assert prefill.engine.counters()["pulls_not_held"] == 1
        assert prefill.engine.counters()["pulled_bytes"] == 0
        for node in (prefill, decode):
            await node.wait_quiet()


@pytest.mark.parametrize("believed_blocks", [1, 3])
async def test_of_a_prefix_that_the_decode_node_holds_in_part_that_part_is_pulled(
    believed_blocks: int,
):
    """The last blocks were evicted since the plan was made, or the first ones are here already."""
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        first = job_of(prompt_of(100), max_tokens=40, ignore_eos=True)
        history = [*prompt_of(100), *tokens_of(await disaggregated(prefill, decode, first))]
        held, had = held_tokens(history), 96
        turn = job_of(history + prompt_of(120, seed=3), max_tokens=20)
        computed_before = prefill.engine.counters()["computed_tokens"]
        said = await disaggregated(
            prefill,
            decode,
            turn,
            pulled_tokens=held + believed_blocks * BLOCK_SIZE,
            pull_wait_s=WAIT_S * 10,  # nothing is waited for: it would not come to its end
        )
        assert said == await local(alone, turn)
        counters = prefill.engine.counters()
        assert counters["pulls_not_held"] == 1
        assert counters["pulled_bytes"] == (held - had) // BLOCK_SIZE * BLOCK_BYTES > 0
        computed = counters["computed_tokens"] - computed_before
        assert computed == len(turn.prompt_token_ids) - held
        assert decode.ready[turn.key].computed_prompt_tokens == 0
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_without_a_digest_a_damaged_part_shows_in_the_text():
    blind = TransferSettings(digest=False)
    damaging = replace(blind, faults=TransferFaults(flip_byte_in_chunk=0))
    async with nodes(
        replace(settings(), transfer=blind), replace(settings(), transfer=damaging), settings()
    ) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        turn = job_of(history + prompt_of(60, seed=3))
        pulled_tokens = held_tokens(history) + BLOCK_SIZE
        said = await disaggregated(prefill, decode, turn, pulled_tokens=pulled_tokens)
        assert prefill.engine.counters()["pulled_bytes"] > 0
        assert said != await local(alone, turn)


async def test_a_pull_that_takes_too_long_is_computed_instead():
    slow = {"delay_s": WAIT_S}
    async with nodes(settings(), settings(transfer=slow), settings()) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        turn = job_of(history + prompt_of(60, seed=3))
        said = await disaggregated(
            prefill, decode, turn, pulled_tokens=held_tokens(history), pull_wait_s=0.05
        )
        assert said == await local(alone, turn)
        assert prefill.engine.counters()["pulls_failed"] == 1


async def test_damaged_bytes_are_noticed_and_computed_here():
    damaged = {"fail_chunk": 0}
    async with nodes(settings(), settings(transfer=damaged), settings()) as (
        prefill,
        decode,
        alone,
    ):
        history = await first_turn(decode, prompt_of(100))
        turn = job_of(history + prompt_of(60, seed=3))
        said = await disaggregated(prefill, decode, turn, pulled_tokens=held_tokens(history))
        assert said == await local(alone, turn)
        assert prefill.engine.counters()["pulls_failed"] == 1
        assert prefill.engine.counters()["digest_mismatches"] > 0
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_without_a_digest_a_damaged_prefix_shows_in_the_text():
    """The proof that the comparisons above would see wrong bytes."""
    blind = TransferSettings(digest=False)
    damaging = replace(blind, faults=TransferFaults(flip_byte_in_chunk=0))
    async with nodes(
        replace(settings(), transfer=blind), replace(settings(), transfer=damaging), settings()
    ) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        turn = job_of(history + prompt_of(60, seed=3))
        said = await disaggregated(prefill, decode, turn, pulled_tokens=held_tokens(history))
        assert prefill.engine.counters()["pulls_completed"] == 1
        assert said != await local(alone, turn)


async def test_a_lender_that_nobody_asks_goes_on_when_its_blocks_are_there():
    async with nodes(settings(), settings(), settings()) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        turn = job_of(history + prompt_of(60, seed=3))
        lending = replace(turn, kind=JobKind.DECODE, source=prefill.source, lends=True)
        decoding = asyncio.create_task(outputs_of(decode, lending))
        (first,) = await outputs_of(prefill, replace(turn, kind=JobKind.PREFILL))
        decode.engine.first_tokens(turn.key, {0: first.token_ids[0]})
        said = [first.token_ids[0], *tokens_of(await decoding)]
        assert said == tokens_of(await local(alone, turn))
        for node in (prefill, decode):
            await node.wait_quiet()


async def test_a_node_that_cannot_be_reached_is_not_waited_for():
    nowhere = SourceNode(
        name="gone", uuid="gone", boot_epoch=1, control_address="gone", ucx_addresses=()
    )
    async with nodes(settings(), settings()) as (prefill, alone):
        turn = job_of(prompt_of(100), max_tokens=1)
        pull = Pull(source=nowhere, token_count=64, wait_s=WAIT_S * 10)
        said = await outputs_of(prefill, replace(turn, kind=JobKind.PREFILL, pull=pull))
        assert tokens_of(said) == tokens_of(await local(alone, turn))
        prefill.engine.drop_source(turn.key, "one token was wanted")
        await prefill.wait_quiet()


@pytest.mark.parametrize("believed_tokens", [0, BLOCK_SIZE])
async def test_ranks_pull_together(believed_tokens: int):
    two = settings(tensor_parallel_size=2)
    async with nodes(two, two, two) as (prefill, decode, alone):
        history = await first_turn(decode, prompt_of(100))
        held = held_tokens(history)
        turn = job_of(history + prompt_of(60, seed=3))
        said = await disaggregated(prefill, decode, turn, pulled_tokens=held + believed_tokens)
        assert said == await local(alone, turn)
        assert prefill.engine.counters()["pulled_bytes"] == 2 * held // BLOCK_SIZE * BLOCK_BYTES


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(4, 2), (2, 4), (1, 4)])
async def test_nodes_that_are_cut_differently_pull_too(prefill_tp: int, decode_tp: int) -> None:
    cut = [settings(tensor_parallel_size=tp, kv_head_count=4) for tp in (prefill_tp, decode_tp)]
    async with nodes(*cut, settings(kv_head_count=4)) as (prefill, decode, alone):
        await joined(prefill, decode)
        history = await first_turn(decode, prompt_of(100))
        held = held_tokens(history)
        turn = job_of(history + prompt_of(60, seed=3))
        said = await disaggregated(prefill, decode, turn, pulled_tokens=held)
        assert said == await local(alone, turn)
        counters = prefill.engine.counters()
        assert counters["pulls_completed"] == 1
        assert counters["pulled_bytes"] == held // BLOCK_SIZE * BLOCK_BYTES * 4
        assert decode.ready[turn.key].computed_prompt_tokens == 0
        prefill.engine.drop_source(turn.key, "the decode node is ready")
        for node in (prefill, decode):
            await node.wait_quiet()


def is_pulling(node: Node, key: str) -> bool:
    return any(
        one.key == key and one.phase is SequencePhase.LOADING
        for one in node.engine.batch.sequences()
    )


@pytest.mark.parametrize("who", ["prefill", "decode", "both"])
async def test_a_cancel_while_blocks_are_pulled_gives_every_block_back(who: str):
    async with nodes(settings(), settings(transfer={"delay_s": 0.3}), settings()) as (
        prefill,
        decode,
        alone,
    ):
        history = await first_turn(decode, prompt_of(100))
        held = held_tokens(history)
        turn = job_of(history + prompt_of(60, seed=3))
        lending = replace(turn, kind=JobKind.DECODE, source=prefill.source, lends=True)
        pull = Pull(source=decode.source, token_count=held, wait_s=WAIT_S)
        tasks = {
            "decode": asyncio.create_task(outputs_of(decode, lending)),
            "prefill": asyncio.create_task(
                outputs_of(prefill, replace(turn, kind=JobKind.PREFILL, pull=pull))
            ),
        }
        await until(
            lambda: (
                is_pulling(prefill, turn.key)
                and is_pulling(decode, turn.key)
                and decode.engine.counters().get("source_lanes")
            )
        )
        ended = [one for name, one in tasks.items() if who in (name, "both")]
        for task in ended:
            task.cancel()
        await asyncio.wait(ended)
        if who == "decode":  # the prefill node computes what does not come
            assert tokens_of(await tasks["prefill"]) == tokens_of(await local(alone, turn))[:1]
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        prefill.engine.drop_source(turn.key, "cancelled")
        for node in (prefill, decode):
            await node.wait_quiet()
        after = job_of(history + prompt_of(9))
        assert await disaggregated(prefill, decode, after) == await local(alone, after)


async def test_random_turns_and_cancels_in_small_pools_never_show_a_wrong_byte():
    """Pulls that meet evictions, preemptions, each other and cancels at any moment."""
    seed = 20261130
    print(f"seed {seed}")
    rng = random.Random(seed)
    small = settings(block_count=70, faults=SyntheticFaults(step_delay_s=0.001))
    async with nodes(small, small, settings()) as (prefill, decode, alone):
        histories = [await first_turn(decode, prompt_of(80, seed=i)) for i in range(4)]

        async def one(index: int) -> None:
            history = rng.choice(histories)
            job = job_of(history + prompt_of(rng.randint(1, 150), seed=index), max_tokens=12)
            turn = disaggregated(
                prefill,
                decode,
                job,
                pulled_tokens=rng.choice([16, held_tokens(history), held_tokens(history) + 16]),
                pull_wait_s=rng.choice([0.002, 1.0, WAIT_S]),
            )
            task = asyncio.create_task(turn)
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
                await asyncio.wait([task])
                prefill.engine.drop_source(job.key, "cancelled")
            else:
                assert await task == await local(alone, job)

        for round_ in range(12):
            async with asyncio.TaskGroup() as group:
                for index in range(6):
                    group.create_task(one(6 * round_ + index))
            for node in (prefill, decode):
                await node.wait_quiet()
        counters = prefill.engine.counters()
        print({name: value for name, value in counters.items() if name.startswith("pull")})
        assert counters["pulls_completed"] > 0
