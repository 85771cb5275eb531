"""What the synthetic engine decides to compute, step by step."""

import itertools

from pdd.connector.params import JobKind
from pdd.engine.synthetic.batch import Batch, StepPlan
from pdd.engine.synthetic.ledger import BlockLedger
from pdd.engine.synthetic.sequence import Sequence, SequencePhase
from tests.unit.engine.synthetic_jobs import make_job

BLOCK_SIZE = 4
_arrivals = itertools.count()


def make_batch(
    *, blocks: int = 100, budget: int = 64, seqs: int = 8, caching: bool = True
) -> Batch:
    return Batch(
        ledger=BlockLedger(block_count=blocks + 1),
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        prefix_caching=caching,
    )


def sequence(prompt_count: int, *, kind: JobKind = JobKind.LOCAL, first: int = 0, **fields):
    arrival = next(_arrivals)
    job = make_job(
        list(range(first, first + prompt_count)), key=f"r{arrival}/0", kind=kind, **fields
    )
    one = Sequence(job=job, arrival=arrival, tokens=list(job.prompt_token_ids))
    one.source_open = kind is JobKind.PREFILL
    return one


def step(batch: Batch, *, offer: bool = True) -> dict[Sequence, tuple[int, int]]:
    """Plan and compute one step; every sequence that has caught up samples token 7."""
    plan = batch.plan()
    batch.check()
    obey(batch, plan, offer=offer)
    return {chunk.sequence: (chunk.start, chunk.end) for chunk in plan.chunks}


def obey(batch: Batch, plan: StepPlan, *, offer: bool = True) -> None:
    for chunk in plan.chunks:
        batch.commit(chunk.sequence, chunk.end)
        if offer and chunk.sequence.source_open:
            chunk.sequence.sent_block_count = len(chunk.sequence.blocks)
        if chunk.sequence.remaining == 0:
            chunk.sequence.tokens.append(7)
    batch.check()


def test_a_prompt_is_computed_in_chunks_of_the_budget():
    batch = make_batch(budget=10)
    one = sequence(25)
    batch.add(one)
    assert [step(batch).get(one) for _ in range(4)] == [(0, 10), (10, 20), (20, 25), (25, 26)]


def test_a_long_prompt_does_not_hold_a_short_one_up():
    batch = make_batch(budget=64, blocks=1000)
    long, short = sequence(1000), sequence(20, first=5000)
    batch.add(long)
    step(batch)
    batch.add(short)
    chunks = step(batch)
    assert chunks[short] == (0, 20)
    assert chunks[long] == (64, 64 + 44)


def test_decoding_comes_before_prompts_and_shares_their_step():
    batch = make_batch(budget=32)
    decoding, prompt = sequence(5), sequence(100, first=500)
    batch.add(decoding)
    step(batch)
    batch.add(prompt)
    assert step(batch) == {decoding: (5, 6), prompt: (0, 31)}


def test_no_more_sequences_run_than_allowed():
    batch = make_batch(seqs=2)
    many = [sequence(3, first=100 * i) for i in range(5)]
    for one in many:
        batch.add(one)
    assert set(step(batch)) == set(many[:2])
    batch.end(many[0], handed_over=True)
    assert many[2] in step(batch)


def test_a_small_budget_still_makes_progress():
    batch = make_batch(budget=1, seqs=1)
    one, two = sequence(3), sequence(2, first=9)
    batch.add(one)
    batch.add(two)
    for _ in range(3):
        assert list(step(batch)) == [one]
    batch.end(one, handed_over=True)
    assert step(batch) == {two: (0, 1)}


def test_lower_priority_numbers_go_first():
    batch = make_batch(seqs=1)
    ordinary, urgent = sequence(3), sequence(3, first=50, priority=-1)
    batch.add(ordinary)
    batch.add(urgent)
    assert list(step(batch)) == [urgent]


def test_a_prompt_that_was_seen_before_is_found_but_for_its_last_token():
    batch = make_batch()
    first, again = sequence(12), sequence(12)
    batch.add(first)
    step(batch)
    batch.end(first, handed_over=True)
    batch.add(again)
    assert step(batch) == {again: (8, 12)}
    assert again.facts.cached_tokens == 8


def test_the_tokens_of_an_answer_are_found_by_the_next_turn():
    batch = make_batch()
    first = sequence(6)
    batch.add(first)
    for _ in range(4):
        step(batch)
    batch.end(first, handed_over=True)
    turn = Sequence(job=make_job([*first.tokens, 99]), arrival=10**6, tokens=[*first.tokens, 99])
    batch.add(turn)
    assert step(batch) == {turn: (8, 11)}


def test_another_tenant_finds_nothing():
    batch = make_batch()
    first, other = sequence(12, cache_salt="a"), sequence(12, cache_salt="b")
    batch.add(first)
    step(batch)
    batch.end(first, handed_over=True)
    batch.add(other)
    assert step(batch) == {other: (0, 12)}


def test_without_prefix_caching_nothing_is_found():
    batch = make_batch(caching=False)
    first, again = sequence(12), sequence(12)
    batch.add(first)
    step(batch)
    batch.end(first, handed_over=True)
    assert batch.ledger.counts().cached == 0
    batch.add(again)
    assert step(batch) == {again: (0, 12)}


def test_when_the_pool_is_full_the_last_to_come_gives_up_its_blocks_and_starts_again():
    batch = make_batch(blocks=6, caching=False)
    first, last = sequence(11), sequence(10, first=100)
    batch.add(first)
    batch.add(last)
    assert set(step(batch)) == {first, last}  # 3 + 3 blocks
    assert step(batch) == {first: (11, 12), last: (10, 11)}
    assert step(batch) == {first: (12, 13)}, "its fourth block is taken from the other"
    assert (last.phase, last.computed, batch.preempted_count) == (SequencePhase.WAITING, 0, 1)
    batch.end(first, handed_over=True)
    assert step(batch) == {last: (0, 12)}
    assert last.tokens[:11] == [*range(100, 110), 7]


def test_a_preempted_prompt_s_blocks_are_not_used_before_its_transfer_is_quiet():
    batch = make_batch(blocks=6, budget=16, caching=False)
    first, sending = sequence(11), sequence(10, first=100, kind=JobKind.PREFILL)
    batch.add(first)
    batch.add(sending)
    step(batch)
    step(batch)
    step(batch)
    plan = batch.plan()
    assert plan.aborted == [sending] or batch.ledger.counts().quarantined == 3
    assert batch.ledger.counts().quarantined == 3
    batch.check()
    assert not batch.plan().chunks, "it waits rather than preempt more"
    batch.transfer_quiet(sending.key)
    assert first in step(batch)


def test_a_prompt_of_which_nothing_was_offered_can_be_preempted_without_ending_its_transfer():
    batch = make_batch(blocks=6, caching=False)
    first, prompt = sequence(11), sequence(10, first=100, kind=JobKind.PREFILL)
    batch.add(first)
    batch.add(prompt)
    step(batch, offer=False)
    step(batch, offer=False)
    plan = batch.plan()
    assert not plan.aborted
    assert prompt.source_open
    assert prompt.phase is SequencePhase.WAITING


def test_a_decode_job_reserves_its_prompt_before_anything_has_come():
    batch = make_batch()
    job = sequence(10, kind=JobKind.DECODE)
    batch.add(job)
    plan = batch.plan()
    assert (plan.reserved, plan.chunks) == ([job], [])
    assert (len(job.blocks), batch.ledger.counts().leased) == (3, 3)
    job.tokens.append(42)
    batch.loaded(job, first_bad_index=None)
    assert (batch.ledger.counts().leased, batch.ledger.counts().active) == (0, 3)
    assert step(batch) == {job: (10, 11)}


def test_what_did_not_arrive_is_computed_from_the_first_missing_block_on():
    batch = make_batch()
    job = sequence(10, kind=JobKind.DECODE)
    batch.add(job)
    batch.plan()
    job.tokens.append(42)
    batch.loaded(job, first_bad_index=1)
    assert step(batch) == {job: (4, 11)}


def test_a_decode_job_asks_only_for_what_its_cache_lacks_and_always_for_the_last_block():
    batch = make_batch()
    first = sequence(8)
    batch.add(first)
    step(batch)
    batch.end(first, handed_over=True)
    job = sequence(8, kind=JobKind.DECODE)
    batch.add(job)
    batch.plan()
    assert (job.loads_from_index, len(job.blocks)) == (1, 2)
    counts = batch.ledger.counts()
    assert (counts.active, counts.leased) == (1, 1)
    batch.check()


def test_a_decode_job_without_room_waits_and_nobody_overtakes_it():
    batch = make_batch(blocks=4)
    running, big, small = (
        sequence(8),
        sequence(12, kind=JobKind.DECODE, first=30),
        sequence(2, first=70),
    )
    batch.add(running)
    step(batch)
    batch.add(big)
    batch.add(small)
    plan = batch.plan()
    obey(batch, plan)
    assert not plan.reserved
    assert small.phase is SequencePhase.WAITING
    batch.end(running, handed_over=True)
    assert batch.plan().reserved == [big]


def test_a_cancelled_transfer_s_blocks_are_quarantined_until_it_is_quiet():
    batch = make_batch()
    job = sequence(10, kind=JobKind.DECODE)
    batch.add(job)
    batch.plan()
    batch.end(job, handed_over=False)
    batch.check()
    assert batch.ledger.counts().quarantined == 3
    batch.transfer_quiet(job.key)
    batch.transfer_quiet(job.key)
    batch.check()
    assert batch.ledger.counts().free == 100


def test_a_finished_prompt_s_blocks_are_leased_until_they_have_been_fetched():
    batch = make_batch()
    prompt = sequence(10, kind=JobKind.PREFILL)
    batch.add(prompt)
    step(batch)
    batch.end(prompt, handed_over=True)
    batch.check()
    assert batch.ledger.counts().leased == 3
    batch.quarantine(prompt.key)
    batch.check()
    assert batch.ledger.counts().quarantined == 3
    batch.transfer_quiet(prompt.key)
    batch.check()
    counts = batch.ledger.counts()
    assert (counts.cached, counts.free) == (2, 98)


def test_a_sequence_can_be_ended_in_every_phase_and_only_once():
    batch = make_batch(seqs=1)
    waiting, running = sequence(4, first=40), sequence(4)
    loading = sequence(4, first=80, kind=JobKind.DECODE)
    loaded = sequence(4, first=90, kind=JobKind.DECODE)
    for one in (loading, loaded, running):
        batch.add(one)
    step(batch)
    loaded.tokens.append(1)
    batch.loaded(loaded, first_bad_index=None)
    batch.add(waiting)
    step(batch)
    assert [one.phase for one in (waiting, running, loading, loaded)] == [
        SequencePhase.WAITING,
        SequencePhase.RUNNING,
        SequencePhase.LOADING,
        SequencePhase.LOADED,
    ]
    for one in (waiting, running, loading, loaded):
        batch.end(one, handed_over=False)
        batch.end(one, handed_over=False)
        batch.check()
    batch.transfer_quiet(loading.key)
    assert batch.ledger.available_count == 100
    assert not list(batch.sequences())
    assert (batch.running_count, batch.waiting_count) == (0, 0)
