"""Which sequences compute what in the next step. Pure: no clock, no I/O, no bytes.

The driver calls ``plan``, computes the chunks and tells each by ``commit``. The order in a step:

1. sequences that have one token left (decoding), in order of arrival;
2. prompts, those first of which least remains, but for a part of the budget that is the oldest
   one's (*ageing*). So a long prompt delays short ones by that part and by the step that runs, and
   none starves: each is the oldest in its turn;
3. the head of the queue, while there is budget and room. Nobody overtakes it.

When the pool is exhausted the sequence that would be scheduled last loses its blocks and computes
again later. Blocks that a transfer may still touch are quarantined until it says that it is
quiet; while there are such, a step waits for them rather than preempt more.

Blocks that outlive their sequence are *parted*: kept by key until ``transfer_quiet``.
"""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from pdd.connector.params import JobKind
from pdd.engine.cache_events import CacheCleared, CacheEvent, CacheRemoved, CacheStored
from pdd.engine.synthetic.ledger import BlockLedger, Hold
from pdd.engine.synthetic.sequence import Sequence, SequencePhase

SHARE_TOKENS_MIN = 16
"""Least budget per prompt and step: more prompts than fit with this are not begun."""
OLDEST_SHARE = 8
"""One part in so many of what decoding leaves is for the oldest prompt, however long it is."""


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Compute positions ``start``..``end`` - 1 of a sequence. One per sequence and step, and
    therefore not frozen (see ``Frame``)."""

    sequence: Sequence
    start: int
    end: int


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """Obey in this order: ``aborted`` transfers of preempted prompts end; ``reserved`` decode jobs
    open their transfers; ``started`` begin with blocks from the prefix cache, or none; ``chunks``
    are computed. ``preempted``: somebody lost its blocks, so the queue was not looked at."""

    aborted: list[Sequence] = field(default_factory=list)
    reserved: list[Sequence] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    preempted: bool = False

    @property
    def empty(self) -> bool:
        """Nothing to obey."""
        return not (self.aborted or self.reserved or self.chunks)


@dataclass(slots=True, kw_only=True)
class _Parted:
    blocks: list[int]
    hold: Hold


class Batch:
    """All sequences of one engine, and the ledger of their blocks."""

    def __init__(
        self,
        *,
        ledger: BlockLedger,
        block_size: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        prefix_caching: bool,
    ) -> None:
        self.ledger = ledger
        self._block_size = block_size
        self._budget = max_num_batched_tokens
        self._running_max = max_num_seqs
        self._prefix_caching = prefix_caching
        self._waiting: list[Sequence] = []
        self._loading: dict[str, Sequence] = {}
        self._loaded: list[Sequence] = []
        self._running: list[Sequence] = []
        self._parted: dict[str, _Parted] = {}
        self._cache_events: list[CacheEvent] = []
        self.preempted_count = 0

    @property
    def running_count(self) -> int:
        """Sequences that take part in steps."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Sequences that wait for room, for blocks or for their turn."""
        return len(self._waiting) + len(self._loading) + len(self._loaded)

    def sequences(self) -> Iterator[Sequence]:
        """All that have not ended."""
        yield from self._running
        yield from self._loaded
        yield from self._loading.values()
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, or one that was preempted."""
        bisect.insort(self._waiting, sequence, key=lambda one: one.order)

    # --- a step ------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Decide the next step and hold the blocks that it needs."""
        plan = StepPlan()
        while self._loaded and len(self._running) < self._running_max:
            self._run(self._loaded.pop(0))
        budget = self._plan_decodes(plan, self._budget)
        if not plan.preempted:
            self._admit(plan, budget)
        self._plan_prompts(plan, budget)
        plan.chunks = [
            chunk for chunk in plan.chunks if chunk.sequence.phase is SequencePhase.RUNNING
        ]
        plan.started = [one for one in plan.started if one.phase is SequencePhase.RUNNING]
        return plan

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        for sequence in list(self._running):
            if budget < 1:
                break
            # Not by its property: this is done for every sequence in every step.
            is_decode = len(sequence.tokens) - sequence.computed == 1
            if is_decode and sequence.phase is SequencePhase.RUNNING:
                budget -= self._schedule(plan, sequence, 1)
        return budget

    def _plan_prompts(self, plan: StepPlan, budget: int) -> None:
        # One that begins now may have a single token left that its cache did not hold.
        started = plan.started
        prompts = [
            one for one in self._running if len(one.tokens) - one.computed > 1 or one in started
        ]
        prompts.sort(key=lambda one: (one.remaining, one.order))
        oldest = min(prompts, key=lambda one: one.order, default=None)
        reserve = 0 if oldest is None else min(oldest.remaining, -(-budget // OLDEST_SHARE))
        for sequence in prompts:
            kept = 0 if sequence is oldest else reserve
            count = min(sequence.remaining, budget - kept)
            if sequence is oldest:
                reserve = 0
            if count > 0 and sequence.phase is SequencePhase.RUNNING:
                budget -= self._schedule(plan, sequence, count)

    def _schedule(self, plan: StepPlan, sequence: Sequence, count: int) -> int:
        """Hold blocks for the next ``count`` positions; the positions that will be computed."""
        end = sequence.computed + count
        if not self._grow(plan, sequence, end):
            return 0
        plan.chunks.append(Chunk(sequence=sequence, start=sequence.computed, end=end))
        return count

    def _grow(self, plan: StepPlan, sequence: Sequence, end: int) -> bool:
        count = -(-end // self._block_size) - len(sequence.blocks)
        while count > 0:
            taken = self.ledger.take(count, Hold.ACTIVE)
            if taken is not None:
                sequence.blocks += taken
                return True
            if self.ledger.counts().quarantined:
                return False  # they come back soon: the driver plans again then
            victim = max(self._running, key=lambda one: one.order)
            self._preempt(plan, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, plan: StepPlan, victim: Sequence) -> None:
        self.preempted_count += 1
        plan.preempted = True
        self._running.remove(victim)
        if victim.source_open and victim.sent_block_count:  # else nothing reads its blocks yet
            self._part(victim, Hold.QUARANTINED)
            victim.source_open = False
            plan.aborted.append(victim)
        else:
            self._give_back(victim)
        victim.computed = 0
        victim.phase = SequencePhase.WAITING
        self.add(victim)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if not self._waiting:
            return
        prompt_count = sum(one.remaining > 1 for one in self._running)
        while self._waiting:
            head = self._waiting[0]
            if head.must_reserve:
                cached = self._cached_prefix(head)
                if self._load_end_index(head) > len(cached):
                    if not self._reserve(head, cached):
                        return
                    plan.reserved.append(head)
                    continue
                head.reserved_before = True  # what it was to pull has come here meanwhile
            if len(self._running) >= self._running_max:
                return
            if budget < 1 or (prompt_count and (prompt_count + 1) * SHARE_TOKENS_MIN > budget):
                return
            if prompt_count and self.ledger.available_count == 0:
                return
            self._waiting.pop(0)
            head.blocks = self._cached_prefix(head)
            self.ledger.hold(head.blocks, Hold.ACTIVE)
            head.computed = len(head.blocks) * self._block_size
            if not head.scheduled_before:
                head.facts.cached_tokens = min(head.computed, head.given_count)
            self._run(head)
            plan.started.append(head)
            prompt_count += 1

    def _reserve(self, sequence: Sequence, cached: list[int]) -> bool:
        """Hold blocks for a decode job's whole prompt, or for the prefix that a prefill job pulls;
        a peer fills those that are not ``cached``."""
        self.ledger.hold(cached, Hold.ACTIVE)
        count = self._load_end_index(sequence) - len(cached)
        taken = self.ledger.take(count, Hold.LEASED)
        if taken is None:
            self.ledger.release(reversed(cached), Hold.ACTIVE)
            return False
        assert self._waiting.pop(0) is sequence
        sequence.blocks = cached + taken
        sequence.loads_from_index = len(cached)
        sequence.facts.cached_tokens = len(cached) * self._block_size
        sequence.reserved_before = True
        sequence.scheduled_before = True
        sequence.phase = SequencePhase.LOADING
        self._loading[sequence.key] = sequence
        return True

    def _run(self, sequence: Sequence) -> None:
        sequence.phase = SequencePhase.RUNNING
        sequence.scheduled_before = True
        bisect.insort(self._running, sequence, key=lambda one: one.order)

    # --- what happened -----------------------------------------------------------------------

    def commit(self, sequence: Sequence, end: int) -> None:
        """Positions up to ``end`` are in the pool: full blocks may be reused from now on."""
        full_before = sequence.computed // self._block_size
        sequence.computed = end
        if not self._prefix_caching:
            return
        full = end // self._block_size
        if full == full_before:
            return
        hashes = self._hashes(sequence, full)[full_before:]
        for block, block_hash in zip(sequence.blocks[full_before:full], hashes, strict=True):
            self.ledger.remember(block, block_hash)
        self._note_evicted()
        self._cache_events.append(
            CacheStored(
                hashes=tuple(hashes),
                parent=sequence.hashes[full_before - 1] if full_before else None,
                token_ids=sequence.tokens[full_before * self._block_size : full * self._block_size],
                cache_salt=sequence.job.cache_salt,
            )
        )

    def take_cache_events(self) -> list[CacheEvent]:
        """What changed in the prefix cache since the last call."""
        self._note_evicted()
        events, self._cache_events = self._cache_events, []
        return events

    def reset_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while anybody holds a block (as vLLM's
        block pool does it)."""
        if self.ledger.available_count < self.ledger.usable_count:
            return False
        self.ledger.forget_all()
        self._cache_events.append(CacheCleared())
        return True

    def _note_evicted(self) -> None:
        if evicted := self.ledger.take_evicted():
            self._cache_events.append(CacheRemoved(hashes=tuple(evicted)))

    def loaded(self, sequence: Sequence, *, first_bad_index: int | None) -> None:
        """A decode job's transfer has ended and its first token is among the tokens; or a prefill
        job's pull has ended.

        ``first_bad_index``: the first prompt block that did not arrive; it and all after it are
        computed here.
        """
        assert sequence.phase is SequencePhase.LOADING
        del self._loading[sequence.key]
        self.ledger.change(sequence.blocks[sequence.loads_from_index :], Hold.LEASED, Hold.ACTIVE)
        computed = min(sequence.given_count, len(sequence.blocks) * self._block_size)
        if first_bad_index is not None:
            computed = min(computed, first_bad_index * self._block_size)
        sequence.computed = sequence.loads_from_index * self._block_size
        self.commit(sequence, computed)
        sequence.phase = SequencePhase.LOADED
        self._loaded.append(sequence)

    def fork(self, trunk: Sequence, forks: list[Sequence]) -> list[tuple[int, int]]:
        """A trunk's prompt is in the pool: ``forks``, at least one, go on from there in its place.

        All hold its full blocks; the one that is not full is the first fork's, and the others get
        copies of it. One for whose copy there is no block begins like a preempted sequence: it
        waits, and computes what the prefix cache does not hold.

        Returns ``(source, target)`` of the blocks to be copied, before anything is written.
        """
        assert trunk.is_complete_trunk, f"{trunk.key} is no prompt that is complete"
        full = trunk.computed // self._block_size
        shared, rest = trunk.blocks[:full], trunk.blocks[full:]
        copies: list[tuple[int, int]] = []
        (self._running if trunk.phase is SequencePhase.RUNNING else self._loaded).remove(trunk)
        for fork in forks:
            fork.reserved_before = fork.scheduled_before = True
            own = rest
            if fork is not forks[0]:
                taken = self.ledger.take(len(rest), Hold.ACTIVE)
                if taken is None:
                    self.add(fork)
                    continue
                own = taken
                self.ledger.hold(shared, Hold.ACTIVE)
                copies += zip(rest, own, strict=True)
            fork.blocks = [*shared, *own]
            fork.hashes = trunk.hashes[:full]
            fork.computed = trunk.computed
            fork.phase = SequencePhase.LOADED
            self._loaded.append(fork)
        trunk.blocks = []
        trunk.phase = SequencePhase.ENDED
        return copies

    def end(self, sequence: Sequence, *, handed_over: bool) -> None:
        """Forget a sequence in whatever phase it is; its blocks are given back, or parted.

        ``handed_over``: a transfer goes on reading them, as planned. Otherwise a transfer that
        touches them must be told to end, and they are quarantined until then.
        """
        after = Hold.LEASED if handed_over else Hold.QUARANTINED
        match sequence.phase:
            case SequencePhase.WAITING:
                self._waiting.remove(sequence)
            case SequencePhase.LOADING:
                del self._loading[sequence.key]
                lent = sequence.blocks[: sequence.lent_block_count]
                cached = sequence.blocks[len(lent) : sequence.loads_from_index]
                leased = sequence.blocks[sequence.loads_from_index :]
                self.ledger.release(reversed(cached), Hold.ACTIVE)
                self.ledger.change(lent, Hold.ACTIVE, after)
                self.ledger.change(leased, Hold.LEASED, after)
                self._parted[sequence.key] = _Parted(blocks=lent + leased, hold=after)
                sequence.blocks = []
            case SequencePhase.LOADED:
                self._loaded.remove(sequence)
            case SequencePhase.RUNNING:
                self._running.remove(sequence)
            case SequencePhase.ENDED:
                return
        if sequence.source_open and sequence.blocks:
            self._part(sequence, after)
        else:
            self._give_back(sequence)
        sequence.phase = SequencePhase.ENDED

    def quarantine(self, key: str) -> None:
        """The transfer that reads a parted sequence's blocks was told to end."""
        parted = self._parted.get(key)
        if parted is not None and parted.hold is Hold.LEASED:
            self.ledger.change(parted.blocks, Hold.LEASED, Hold.QUARANTINED)
            parted.hold = Hold.QUARANTINED

    def transfer_quiet(self, key: str) -> None:
        """No transfer touches the blocks that outlived this key's sequence. Idempotent."""
        parted = self._parted.pop(key, None)
        if parted is not None:
            self.ledger.release(reversed(parted.blocks), parted.hold)

    def blocks_of(self, key: str) -> list[int] | None:
        """The blocks that are held for a job, in order, each once; None where nothing is."""
        blocks = [one.blocks for one in self.sequences() if one.job.key == key and one.blocks]
        if not blocks and (parted := self._parted.get(key)):
            blocks.append(parted.blocks)
        return list(dict.fromkeys(itertools.chain(*blocks))) if blocks else None

    def holders(self) -> dict[Hold, list[list[int]]]:
        """The blocks of everybody who holds some, by the kind of hold."""
        active = [one.blocks for one in (*self._running, *self._loaded)]
        leased = []
        for one in self._loading.values():
            active.append(one.blocks[: one.loads_from_index])
            leased.append(one.blocks[one.loads_from_index :])
        quarantined: list[list[int]] = []
        for parted in self._parted.values():
            (leased if parted.hold is Hold.LEASED else quarantined).append(parted.blocks)
        return {Hold.ACTIVE: active, Hold.LEASED: leased, Hold.QUARANTINED: quarantined}

    def check(self) -> None:
        """Assert that every block is somewhere, once, and held by those who say so."""
        self.ledger.check(self.holders())
        for one in self._waiting:
            assert not one.blocks, f"{one.key} waits and holds blocks"
        for one in (*self._running, *self._loaded):
            assert one.computed <= len(one.blocks) * self._block_size, one.key
            assert one.remaining >= 1, f"{one.key} has nothing to compute"

    # --- helpers -----------------------------------------------------------------------------

    def _part(self, sequence: Sequence, hold: Hold) -> None:
        assert sequence.key not in self._parted, f"{sequence.key} parts with blocks twice"
        self.ledger.change(sequence.blocks, Hold.ACTIVE, hold)
        self._parted[sequence.key] = _Parted(blocks=sequence.blocks, hold=hold)
        sequence.blocks = []

    def _load_end_index(self, sequence: Sequence) -> int:
        """After the last block that a peer fills. The last token is always computed here, but for a
        decode job, which has it from its peer."""
        if sequence.job.kind is JobKind.DECODE:
            return -(-sequence.loads_tokens // self._block_size)
        return min(sequence.loads_tokens, len(sequence.tokens) - 1) // self._block_size

    def _give_back(self, sequence: Sequence) -> None:
        self.ledger.release(reversed(sequence.blocks), Hold.ACTIVE)
        sequence.blocks = []

    def _cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks of the longest cached prefix; the last token is always left to compute."""
        if not self._prefix_caching:
            return []
        count = (len(sequence.tokens) - 1) // self._block_size
        return self.ledger.find(self._hashes(sequence, count))

    def _hashes(self, sequence: Sequence, count: int) -> list[bytes]:
        """Chained hashes of the first ``count`` full blocks; the tenant's salt is the root."""
        hashes = sequence.hashes
        before = hashes[-1] if hashes else b"salt " + sequence.job.cache_salt.encode()
        while len(hashes) < count:
            start = len(hashes) * self._block_size
            tokens = sequence.tokens[start : start + self._block_size]
            packed = b"".join(token_id.to_bytes(4, "little") for token_id in tokens)
            before = xxhash.xxh3_128_digest(before + packed)
            hashes.append(before)
        return hashes[:count]


def sends_blocks(sequence: Sequence) -> bool:
    """Whether a peer may fetch this sequence's blocks."""
    return sequence.job.kind is JobKind.PREFILL
