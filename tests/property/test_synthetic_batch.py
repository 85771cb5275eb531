"""Random histories of the synthetic engine's batch: blocks are conserved, everybody gets done.

The driver's part (transfers, tokens) is played by the machine, in any order the real one allows.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdd.connector.params import JobKind, Pull
from pdd.engine.cache_events import CacheCleared, CacheRemoved, CacheStored
from pdd.engine.port import Choice
from pdd.engine.synthetic.batch import Batch
from pdd.engine.synthetic.ledger import BlockLedger
from pdd.engine.synthetic.sequence import Sequence, SequencePhase
from tests.unit.engine.synthetic_jobs import SOURCE, make_job

BLOCK_COUNT, BLOCK_SIZE, BUDGET = 24, 4, 20


class BatchMachine(RuleBasedStateMachine):
    """A small pool that is always too full."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = Batch(
            ledger=BlockLedger(block_count=BLOCK_COUNT + 1),
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=4,
            prefix_caching=True,
        )
        self.arrivals = 0
        self.sending: dict[str, Sequence] = {}  # keys whose blocks a transfer may read
        self.ending: set[str] = set()  # transfers that were told to end, or have nothing to read
        self.loading: dict[str, Sequence] = {}
        self.cancelled_loads: set[str] = set()
        self.told = Counter[bytes]()  # what a listener believes the cache to hold, with copies

    @rule(
        length=st.integers(1, 40),
        same=st.integers(0, 2),
        kind=st.sampled_from(list(JobKind)),
        salt=st.sampled_from(["", "tenant"]),
        priority=st.integers(-1, 1),
        pulled=st.integers(0, 48),
        lends=st.booleans(),
    )
    def add(
        self,
        length: int,
        same: int,
        kind: JobKind,
        salt: str,
        priority: int,
        pulled: int,
        lends: bool,
    ) -> None:
        prompt = [same * 1000 + index for index in range(length)]
        key = f"r{self.arrivals}/0"
        pull = None
        if kind is JobKind.PREFILL and pulled:
            pull = Pull(source=SOURCE, token_count=pulled, wait_s=1.0)
        job = make_job(
            prompt,
            key=key,
            kind=kind,
            cache_salt=salt,
            priority=priority,
            pull=pull,
            lends=lends and kind is JobKind.DECODE,
        )
        one = Sequence(job=job, arrival=self.arrivals, tokens=prompt)
        self.arrivals += 1
        if kind is JobKind.PREFILL:
            one.source_open = True
            self.sending[key] = one
        self.batch.add(one)

    @rule(
        length=st.integers(1, 40),
        same=st.integers(0, 2),
        kind=st.sampled_from([JobKind.LOCAL, JobKind.DECODE]),
        emitted=st.lists(st.integers(0, 6), min_size=2, max_size=5),
    )
    def add_trunk(self, length: int, same: int, kind: JobKind, emitted: list[int]) -> None:
        """A job of several choices; each goes on after as many tokens of its own, or a first."""
        prompt = [same * 1000 + index for index in range(length)]
        choices = tuple(
            Choice(index=index, emitted_token_ids=tuple(9000 + index for _ in range(count)))
            for index, count in enumerate(emitted)
        )
        key = f"r{self.arrivals}/0"
        job = make_job(prompt, key=key, kind=kind, choices=choices)
        self.batch.add(Sequence(job=job, arrival=self.arrivals, tokens=prompt))
        self.arrivals += 1

    def fork(self, trunk: Sequence) -> None:
        """Full blocks are common, what comes after them is nobody else's."""
        forks = [
            Sequence(
                job=trunk.job,
                arrival=trunk.arrival,
                tokens=[*trunk.tokens, *(choice.emitted_token_ids or (7000 + choice.index,))],
                choice=choice,
            )
            for choice in trunk.job.choices
        ]
        blocks, full = list(trunk.blocks), trunk.computed // BLOCK_SIZE
        copies = self.batch.fork(trunk, forks)
        own: set[int] = set()
        for one in forks:
            if one.blocks:
                assert one.blocks[:full] == blocks[:full]
                assert not own & set(one.blocks[full:]), "two choices write in one block"
                own |= set(one.blocks[full:])
        assert {source for source, _ in copies} <= set(blocks[full:])
        assert {target for _, target in copies} == own - set(blocks)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        plan = self.batch.plan()
        assert sum(chunk.end - chunk.start for chunk in plan.chunks) <= BUDGET
        assert self.batch.running_count <= 4
        for one in plan.aborted:
            self.ending.add(one.key)
        for one in plan.reserved:
            self.loading[one.key] = one
        for chunk in plan.chunks:
            one = chunk.sequence
            assert one.computed == chunk.start < chunk.end <= len(one.tokens)
            assert chunk.end <= len(one.blocks) * BLOCK_SIZE
            self.batch.commit(one, chunk.end)
            if one.source_open:
                one.sent_block_count = len(one.blocks)
            if one.is_complete_trunk:
                self.fork(one)
            elif one.remaining == 0:
                one.tokens.append(5000 + len(one.tokens))
                if one.job.kind is JobKind.PREFILL or data.draw(st.booleans()):
                    self.batch.end(one, handed_over=True)

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.loading)))
        one = self.loading.pop(key)
        if one.job.kind is JobKind.DECODE and one.choice is not None:
            one.tokens.append(9)
        last = len(one.blocks) - 1
        bad = data.draw(st.none() | st.integers(one.loads_from_index, last))
        self.batch.loaded(one, first_bad_index=bad)
        if one.is_complete_trunk:
            self.fork(one)

    @precondition(lambda self: list(self.batch.sequences()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.batch.sequences(), key=lambda one: one.key)))
        if one.phase is SequencePhase.LOADING:
            del self.loading[one.key]
            self.cancelled_loads.add(one.key)
        self.batch.end(one, handed_over=False)
        if one.key in self.sending:
            self.ending.add(one.key)

    @precondition(lambda self: self.sending)
    @rule(data=st.data())
    def transfer_ends(self, data: st.DataObject) -> None:
        """Fetched, given up, or out of time: the source's blocks are read no more."""
        key = data.draw(st.sampled_from(sorted(self.sending)))
        self.release_source(key)

    @precondition(lambda self: self.cancelled_loads)
    @rule()
    def cancelled_load_is_quiet(self) -> None:
        self.end_cancelled_load()

    def end_cancelled_load(self) -> None:
        key = self.cancelled_loads.pop()
        if key not in self.sending:
            self.batch.transfer_quiet(key)

    def release_source(self, key: str) -> None:
        one = self.sending.pop(key)
        self.ending.discard(key)
        one.source_open = False
        if key not in self.loading and key not in self.cancelled_loads:
            self.batch.transfer_quiet(key)

    @invariant()
    def a_listener_knows_what_is_cached(self) -> None:
        for event in self.batch.take_cache_events():
            match event:
                case CacheStored():
                    assert len(event.token_ids) == len(event.hashes) * BLOCK_SIZE
                    assert event.parent is None or self.told[event.parent], "an orphan"
                    self.told.update(event.hashes)
                case CacheRemoved():
                    self.told.subtract(event.hashes)
                case CacheCleared():
                    self.told.clear()
        assert min(self.told.values(), default=0) >= 0
        assert set(+self.told) == set(self.batch.ledger.cached_hashes())

    @rule()
    def reset(self) -> None:
        held = self.batch.ledger.available_count < BLOCK_COUNT
        assert self.batch.reset_cache() is not held

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.batch.check()
        census = self.batch.ledger.census(self.batch.holders())
        assert census == self.batch.ledger.counts(), "counted afresh, and as they are kept"
        assert census.total == BLOCK_COUNT

    def teardown(self) -> None:
        """When every transfer has ended, whoever is left gets done and nothing stays held."""
        for _ in range(400):
            for key in list(self.sending):
                self.release_source(key)
            while self.cancelled_loads:
                self.end_cancelled_load()
            for key in list(self.loading):
                one = self.loading.pop(key)
                if one.job.kind is JobKind.DECODE and one.choice is not None:
                    one.tokens.append(9)
                self.batch.loaded(one, first_bad_index=None)
                if one.is_complete_trunk:
                    self.fork(one)
            if not list(self.batch.sequences()):
                break
            plan = self.batch.plan()
            for one in plan.reserved:
                self.loading[one.key] = one
            for chunk in plan.chunks:
                self.batch.commit(chunk.sequence, chunk.end)
                if chunk.sequence.is_complete_trunk:
                    self.fork(chunk.sequence)
                elif chunk.sequence.remaining == 0:
                    self.batch.end(chunk.sequence, handed_over=True)
        assert not list(self.batch.sequences()), "a sequence never gets its turn"
        self.batch.check()
        assert self.batch.ledger.available_count == BLOCK_COUNT


BatchMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)
TestBatch = BatchMachine.TestCase
