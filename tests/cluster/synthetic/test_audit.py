"""The count of all blocks: it finds a leak, cries wolf never, and shows that a cancel gives every
block back, whatever phase it comes in."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pdd.connector.params import JobKind
from pdd.core.blocks import BlockCensus
from pdd.engine.port import Job
from pdd.engine.synthetic.sequence import SequencePhase
from pdd.engine.synthetic.settings import SyntheticFaults
from tests.cluster.synthetic.pair import (
    WAIT_S,
    Node,
    disaggregated,
    local,
    make_job,
    nodes,
    outputs_of,
    settings,
)
from tests.vllm.cluster import Cluster, start_cluster, stop_cluster
from tests.waiting import until, wait_until

STEP_S = 0.02
RETURN_S = STEP_S + 1.0
"""In which the blocks of a cancelled job must be back: one engine step + 1 s."""
LONG = tuple(300 + 7 * index % 5000 for index in range(600))


def count(node: Node) -> BlockCensus:
    """Afresh, whenever it is asked; every block is somewhere, once."""
    ledger, holders = node.engine.batch.ledger, node.engine.batch.holders()
    census = ledger.census(holders)
    assert census.fault == ""
    assert census == ledger.counts()
    return census


def held(census: BlockCensus) -> dict[str, int]:
    names = ("active", "leased", "quarantined")
    return {name: value for name in names if (value := getattr(census, name))}


class Case:
    """A prefill and a decode node, and one long request that is cancelled on the way."""

    def __init__(self, prefill: Node, decode: Node) -> None:
        self.prefill, self.decode = prefill, decode
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, node: Node, kind: JobKind, **fields: Any) -> Job:
        fields = {"max_tokens": 400, "ignore_eos": True, **fields}
        source = self.prefill.source if kind is JobKind.DECODE else None
        job = make_job(list(LONG), key="r1/0", kind=kind, source=source, **fields)
        self.tasks.append(asyncio.create_task(outputs_of(node, job)))
        return job

    def phase(self, node: Node) -> SequencePhase | None:
        for one in node.engine.batch.sequences():
            if one.key == "r1/0":
                return one.phase
        return None

    async def cancel(self) -> None:
        """As the scheduler does it: on every node, and the source is dropped."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        self.prefill.engine.drop_source("r1/0", "cancelled")


async def waiting(case: Case) -> None:
    busy = make_job(list(range(300, 900)), key="busy/0", max_tokens=200, ignore_eos=True)
    case.tasks.append(asyncio.create_task(outputs_of(case.decode, busy)))
    await until(lambda: count(case.decode).active >= 38)
    case.start(case.decode, JobKind.DECODE)
    await until(lambda: case.phase(case.decode) is SequencePhase.WAITING)


async def computing(case: Case) -> None:
    case.start(case.prefill, JobKind.PREFILL)
    await until(lambda: 4 < count(case.prefill).active < 30)


async def computed_and_unfetched(case: Case) -> None:
    case.start(case.prefill, JobKind.PREFILL)
    await until(lambda: count(case.prefill).leased > 0)


async def loading(case: Case) -> None:
    case.start(case.decode, JobKind.DECODE)
    await until(lambda: count(case.decode).leased > 0)
    case.start(case.prefill, JobKind.PREFILL)
    await until(lambda: count(case.prefill).active > 4)


async def loaded(case: Case) -> None:
    case.start(case.decode, JobKind.DECODE)
    case.start(case.prefill, JobKind.PREFILL)
    await until(lambda: case.decode.engine.transfers.has_arrived("r1/0"))


async def decoding(case: Case) -> None:
    job = case.start(case.decode, JobKind.DECODE)
    case.start(case.prefill, JobKind.PREFILL)
    await until(lambda: case.decode.engine.transfers.has_arrived(job.key))
    case.decode.engine.first_tokens(job.key, {0: 400})
    await until(lambda: case.phase(case.decode) is SequencePhase.RUNNING)


@pytest.mark.parametrize(
    "come_to", [waiting, computing, computed_and_unfetched, loading, loaded, decoding]
)
async def test_a_cancel_gives_every_block_back_within_a_step_and_a_second(come_to: Any) -> None:
    slow = settings(faults=SyntheticFaults(step_delay_s=STEP_S), block_count=60)
    async with nodes(slow, slow) as (prefill, decode):
        case = Case(prefill, decode)
        await come_to(case)
        assert held(count(prefill)) or held(count(decode)), "there is something to give back"
        await case.cancel()
        began_s = time.monotonic()
        await until(lambda: not held(count(prefill)) and not held(count(decode)))
        took_s = time.monotonic() - began_s
        print(f"{come_to.__name__}: {took_s * 1e3:.1f} ms")
        assert took_s < RETURN_S
        job = make_job([300, 301, 302], key="after/0")
        assert await disaggregated(prefill, decode, job) == await local(decode, job)


async def test_a_storm_of_cancels_raises_no_alarm() -> None:
    seed = 11
    print(f"seed {seed}")
    rng = random.Random(seed)
    small = settings(block_count=50)
    counted = 0
    async with nodes(small, small) as (prefill, decode):

        async def one(index: int) -> None:
            job = make_job(
                [300 + (index % 7) * 31 + n % 500 for n in range(rng.randint(1, 300))],
                key=f"s{index}/0",
                max_tokens=rng.randint(1, 40),
            )
            task = asyncio.create_task(disaggregated(prefill, decode, job))
            await asyncio.wait([task], timeout=rng.random() * 0.03)
            prefill.engine.drop_source(job.key, "cancelled")
            task.cancel()
            await asyncio.wait([task])
            prefill.engine.drop_source(job.key, "cancelled")

        async def count_always() -> None:
            nonlocal counted
            while True:
                count(prefill)
                count(decode)
                counted += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_always())
        for round_ in range(15):
            async with asyncio.TaskGroup() as group:
                for index in range(10):
                    group.create_task(one(round_ * 10 + index))
        assert not counting.done(), counting.exception()
        counting.cancel()
        assert counted > 100
        await until(lambda: not held(count(prefill)) and not held(count(decode)))


@pytest.fixture
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    state_dir = tmp_path_factory.mktemp("leak") / "state"
    fault = ("--set", "faults.leak_block_after_jobs=3")
    cluster = start_cluster(
        state_dir, "--engine", "synthetic", "--prefill", "1", "--decode", "1", *fault
    )
    try:
        yield cluster
    finally:
        stop_cluster(cluster)


def test_one_lost_block_raises_the_alarm(leaking: Cluster) -> None:
    for _ in range(2):
        leaking.complete("all is well", max_tokens=4)
    states = {row["name"]: (row["state"], row["blocks"]["lost"]) for row in leaking.node_list()}
    assert states == {"prefill-0": ("ready", 0), "decode-0": ("ready", 0)}

    leaking.complete("all is well", max_tokens=4)
    wait_until(
        lambda: {row["state"] for row in leaking.node_list()} == {"degraded"},
        lambda: f"both nodes to be degraded; {leaking.node_list()}",
    )
    for row in leaking.node_list():
        assert "1 of 4095 KV blocks are lost" in row["state_reason"], row
        blocks = row["blocks"]
        assert blocks["lost"] == 1
        states_of = ("free", "cached", "active", "leased", "quarantined")
        assert sum(blocks[state] for state in states_of) == blocks["total"] - 1
        lines = (leaking.state_dir / "log" / f"{row['name']}.log").read_text().splitlines()
        events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
        assert events.count("kv_blocks_unaccounted") == 1
    metrics = httpx.get(f"{leaking.http}/metrics", timeout=WAIT_S).text
    for name in ("prefill-0", "decode-0"):
        assert f'pdd_kv_blocks_unaccounted{{fault="lost",node="{name}"}} 1.0' in metrics
        assert f'pdd_node_degraded{{node="{name}"}} 1.0' in metrics
    leaking.complete("it serves on", max_tokens=4)
