"""Long prompts beside short ones on one node, at modelled times: nothing here waits."""

import random

import pytest

from pdd.engine.synthetic.batch import Batch
from pdd.engine.synthetic.ledger import BlockLedger
from pdd.engine.synthetic.sequence import Sequence
from pdd.timing.roofline import Roofline, work_of
from pdd.timing.sheets import DEVICES, MODELS
from tests.unit.engine.synthetic_jobs import make_job

BLOCK_SIZE = 16
NODE = Roofline(model=MODELS["llama-3-70b"], device=DEVICES["h100"], device_count=4)


def ttfts_s(
    seed: int, *, chunk: int, long_count: int, long_tokens: int
) -> tuple[list[float], list[float]]:
    """Of 100 prompts of up to 2,000 tokens within 20 s, and of long ones that come at once."""
    rng = random.Random(seed)
    batch = Batch(
        ledger=BlockLedger(block_count=60_000),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=chunk,
        max_num_seqs=256,
        prefix_caching=False,
    )
    arrivals = [(rng.uniform(0.0, 20.0), rng.randint(100, 2000), "short") for _ in range(100)]
    arrivals += [(0.1 * index, long_tokens, "long") for index in range(long_count)]
    arrivals.sort(reverse=True)
    arrived_s: dict[str, float] = {}
    waits: dict[str, list[float]] = {"short": [], "long": []}
    now_s, count = 0.0, 0
    while arrivals or batch.running_count or batch.waiting_count:
        while arrivals and arrivals[-1][0] <= now_s:
            at_s, tokens, kind = arrivals.pop()
            job = make_job(list(range(tokens)), key=f"{kind}/{count}", max_tokens=1)
            batch.add(Sequence(job=job, arrival=count, tokens=list(range(tokens))))
            arrived_s[job.key] = at_s
            count += 1
        plan = batch.plan()
        if not plan.chunks:
            now_s = arrivals[-1][0]
            continue
        now_s += NODE.step_s(work_of([(one.start, one.end) for one in plan.chunks]))
        for one in plan.chunks:
            batch.commit(one.sequence, one.end)
            if one.sequence.remaining == 0:
                waits[one.sequence.key.partition("/")[0]].append(
                    now_s - arrived_s[one.sequence.key]
                )
                batch.end(one.sequence, handed_over=True)
    return waits["short"], waits["long"]


def p99(values: list[float]) -> float:
    return sorted(values)[-(-len(values) * 99 // 100) - 1]


@pytest.mark.parametrize("seed", range(5))
def test_20_long_prompts_leave_the_ttft_of_100_short_ones_within_twice(seed: int) -> None:
    alone, _ = ttfts_s(seed, chunk=512, long_count=0, long_tokens=0)
    beside, long = ttfts_s(seed, chunk=512, long_count=20, long_tokens=16_000)
    print(f"seed {seed}: p99 {p99(alone) * 1e3:.0f} -> {p99(beside) * 1e3:.0f} ms")
    assert len(beside) == 100
    assert p99(beside) <= 2 * p99(alone)
    assert len(long) == 20


def test_a_long_prompt_is_not_starved_by_short_ones_that_never_end() -> None:
    """Short ones that could take every step for ever: the oldest prompt still gets its part."""
    batch = Batch(
        ledger=BlockLedger(block_count=10_000),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=512,
        max_num_seqs=256,
        prefix_caching=False,
    )
    long = Sequence(
        job=make_job(list(range(6400)), key="long/0"), arrival=0, tokens=list(range(6400))
    )
    batch.add(long)
    steps = 0
    for index in range(1, 1000):
        for part in range(2):
            key = f"short/{2 * index + part}"
            job = make_job(list(range(400)), key=key, max_tokens=1)
            batch.add(Sequence(job=job, arrival=2 * index + part, tokens=list(range(400))))
        plan = batch.plan()
        steps += 1
        for one in plan.chunks:
            batch.commit(one.sequence, one.end)
            if one.sequence is not long and one.sequence.remaining == 0:
                batch.end(one.sequence, handed_over=True)
        if long.remaining == 0:
            break
    assert long.remaining == 0
    assert steps <= 6400 // (512 // 8) + 1
