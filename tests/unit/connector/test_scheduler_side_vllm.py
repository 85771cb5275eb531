"""The scheduler half inside vLLM's real scheduler: what it tells the workers, step by step."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd.connector.params import JobKind

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm.v1.request import RequestStatus

    from pdd.connector import facade
    from pdd.connector.metadata import PromptProgress, SourceBlocks, StepMetadata
    from tests.unit.connector.vllm_scheduler import (
        BLOCK_SIZE,
        SOURCE,
        PlayedEngine,
        make_vllm_config,
    )

PREFILL, DECODE, LOCAL = JobKind.PREFILL, JobKind.DECODE, JobKind.LOCAL
MakeEngine = Callable[..., PlayedEngine]


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    # It would tie this test process to its parent's life.
    monkeypatch.setattr(facade, "die_with_parent", lambda: None)

    def make(*, chunk: int = 64, block_count: int = 40) -> PlayedEngine:
        return PlayedEngine(make_vllm_config(tmp_path, chunk=chunk), block_count=block_count)

    return make


def prompt_of(count: int, *, first: int = 3) -> list[int]:
    return [first + index % 200 for index in range(count)]


def sources(step: StepMetadata) -> list[SourceBlocks]:
    return step.ready_blocks + step.computed_blocks


def cut(progress: list[PromptProgress]) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in progress]


class TestPulls:
    def pulling(self, engine: PlayedEngine, *, tokens: int = 70) -> list[int]:
        """A prefill job of 100 tokens that is to pull, behind a cache that has two blocks."""
        prompt = prompt_of(100)
        engine.add("a", LOCAL, prompt=prompt[:33], max_tokens=1)
        engine.step()
        engine.add("p", PREFILL, prompt=prompt, pulled_tokens=tokens)
        step = engine.step()
        (target,) = step.opened_targets
        blocks = engine.blocks_of("p")
        assert (target.key, target.is_pull, target.lent_block_ids) == ("p/0", True, None)
        assert (target.first_index, target.deadline_s) == (2, 2.0)
        assert target.block_ids == tuple(blocks[2 : tokens // BLOCK_SIZE])
        assert step.progress == []
        return blocks

    def test_it_loads_whole_blocks_and_computes_and_sends_the_rest(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        blocks = self.pulling(engine)
        assert engine.census()["leased"] == 2
        engine.step(received={"p": None})
        step = engine.step()
        assert cut(step.progress) == [(64, 100)]
        assert step.progress[0].cached_token_count == 32
        (ready,) = step.ready_blocks
        assert (ready.first_index, ready.block_ids) == (0, tuple(blocks[:4]))
        (rest,) = step.computed_blocks
        assert (rest.first_index, rest.last) == (4, True)
        engine.step(sent={"p"})
        assert engine.census().keys() <= {"cached"}

    def test_what_did_not_come_is_computed(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        blocks = self.pulling(engine)
        engine.step(received={"p": None}, bad_blocks={blocks[3]})
        step = engine.step()
        assert cut(step.progress) == [(48, 100)]
        assert step.opened_targets == []

    def test_of_a_prefix_that_is_held_in_part_the_part_is_kept(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        blocks = self.pulling(engine, tokens=96)
        engine.step(received={"p": None}, bad_blocks=set(blocks[4:6]))
        steps = [engine.step() for _ in range(3)]
        assert steps[0].ready_blocks[0].block_ids == tuple(blocks[:4])
        progress = [one for step in steps for one in step.progress]
        assert cut(progress) == [(64, 80), (80, 96), (96, 100)]
        engine.step(sent={"p"})
        engine.add("again", PREFILL, prompt=prompt_of(100))
        assert cut(engine.step().progress) == [(96, 100)], "all of it is in the cache"

    def test_without_anything_missing_nothing_is_pulled(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        engine.add("a", LOCAL, prompt=prompt, max_tokens=1)
        engine.step()
        engine.step()
        engine.add("p", PREFILL, prompt=prompt, pulled_tokens=96)
        step = engine.step()
        assert step.opened_targets == []
        assert cut(step.progress) == [(96, 100)]

    @pytest.mark.parametrize("is_told_before", [True, False])
    def test_a_cancelled_one_gives_its_blocks_back_once(
        self, make_engine: MakeEngine, is_told_before: bool
    ) -> None:
        """vLLM dies of a second word about one request."""
        engine = make_engine()
        self.pulling(engine)
        engine.abort("p")
        step = engine.step()
        assert step.cancelled_targets == ["p/0"]
        assert step.aborted_sources == ["p/0"]
        assert engine.census()["quarantined"] == 4
        if is_told_before:
            engine.step(received={"p": None})
            assert engine.census()["quarantined"] == 4
            engine.step(sent={"p"})
        else:
            engine.step(received={"p": None}, sent={"p"})
        assert engine.census().keys() <= {"cached"}

    def test_one_cancelled_between_a_step_and_its_output_gives_them_back_once(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        self.pulling(engine)
        output = engine.scheduler.schedule()
        engine.abort("p")
        engine.finish(output, received={"p": None})
        assert engine.census()["quarantined"] > 0
        engine.step(sent={"p"})
        assert engine.census().keys() <= {"cached"}

    def test_a_decode_job_lends_what_is_cached(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        engine.add("a", LOCAL, prompt=prompt[:50], max_tokens=1)
        engine.step()
        engine.add("d", DECODE, prompt=prompt, lends=True)
        (target,) = engine.step().opened_targets
        assert target.lent_block_ids == tuple(engine.blocks_of("d")[:3])
        assert (target.first_index, target.is_pull) == (3, False)


class TestPrefillJobs:
    def test_blocks_leave_as_chunks_complete_them(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(100))
        first = engine.step()
        blocks = engine.blocks_of("p")
        opening, chunk = sources(first)
        assert (opening.key, opening.request_id, opening.opens) == ("p/0", "p", True)
        assert opening.block_ids == ()
        assert chunk.first_index == 0
        assert chunk.block_ids == tuple(blocks[:4])
        assert (chunk.opens, chunk.last) == (False, False)
        assert cut(first.progress) == [(0, 64)]

        second = engine.step()
        (rest,) = sources(second)
        assert (rest.first_index, rest.last) == (4, True)
        assert len(rest.block_ids) == 3
        assert not set(rest.block_ids) & set(blocks)
        assert cut(second.progress) == [(64, 100)]
        assert engine.sampled == {"p": [100]}

    @pytest.mark.parametrize(
        ("count", "expected"),
        [
            (1, [(0, 1, True)]),
            (15, [(0, 1, True)]),
            (16, [(0, 1, True)]),
            (17, [(0, 2, True)]),
            (63, [(0, 4, True)]),
            (64, [(0, 4, True)]),
            (65, [(0, 4, False), (4, 1, True)]),
            (80, [(0, 4, False), (4, 1, True)]),
            (128, [(0, 4, False), (4, 4, True)]),
            (129, [(0, 4, False), (4, 4, False), (8, 1, True)]),
        ],
    )
    def test_every_block_leaves_once_and_the_last_one_says_so(
        self, make_engine: MakeEngine, count: int, expected: list[tuple[int, int, bool]]
    ) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(count))
        sent = []
        for _ in range(len(expected)):
            sent += [one for one in sources(engine.step()) if one.block_ids]
        assert [(one.first_index, len(one.block_ids), one.last) for one in sent] == expected
        assert sources(engine.step()) == []

    def test_chunks_smaller_than_a_block_send_nothing_until_it_is_whole(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(chunk=10)
        engine.add("p", PREFILL, prompt=prompt_of(35))
        steps = [engine.step() for _ in range(4)]
        lengths = [[len(one.block_ids) for one in sources(step)] for step in steps]
        assert lengths == [[0], [1], [], [2]]
        assert cut([step.progress[0] for step in steps]) == [(0, 10), (10, 20), (20, 30), (30, 35)]

    def test_cached_blocks_leave_before_the_forward(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        engine.add("a", LOCAL, prompt=prompt, max_tokens=1)
        engine.step()
        engine.step()
        engine.add("p", PREFILL, prompt=[*prompt[:80], *prompt_of(20, first=7)])
        step = engine.step()
        blocks = engine.blocks_of("p")
        ready = [one for one in step.ready_blocks if one.block_ids]
        (computed,) = step.computed_blocks
        assert [(one.first_index, one.block_ids) for one in ready] == [(0, tuple(blocks[:5]))]
        assert (computed.first_index, computed.last) == (5, True)
        (progress,) = step.progress
        assert (progress.start, progress.end, progress.cached_token_count) == (80, 100, 80)

    def test_its_blocks_stay_until_they_are_reported_as_sent(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        request = engine.add("p", PREFILL, prompt=prompt_of(60))
        engine.step()
        assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
        assert engine.free_block_count == free - 4
        step = engine.step()
        assert step.aborted_sources == []
        assert engine.output is not None
        assert engine.output.finished_req_ids == {"p"}
        assert engine.free_block_count == free - 4
        engine.step(sent={"p"})
        assert engine.free_block_count == free
        assert "p" not in engine.scheduler.requests


class TestLeavingAPrefillJob:
    def test_before_its_prompt_was_begun(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        engine.add("busy", LOCAL, prompt=prompt_of(100))
        engine.add("p", PREFILL, prompt=prompt_of(50, first=9))
        first = engine.step()
        assert [one.key for one in first.ready_blocks] == ["p/0"], "a ticket may come early"
        engine.abort("p")
        step = engine.step()
        assert step.aborted_sources == ["p/0"]
        engine.step(sent={"p"})
        assert "p" not in engine.scheduler.requests
        engine.abort("busy")
        engine.step()
        assert engine.free_block_count == free

    def test_between_two_chunks(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        engine.add("p", PREFILL, prompt=prompt_of(100))
        assert not engine.step().is_empty
        engine.abort("p")
        step = engine.step()
        assert step.aborted_sources == ["p/0"]
        assert sources(step) == []
        assert engine.free_block_count < free, "a peer may be reading them"
        engine.step(sent={"p"})
        assert engine.free_block_count == free


class TestDecodeJobs:
    def test_blocks_are_reserved_and_named_at_once(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.add("d", DECODE, prompt=prompt_of(100))
        step = engine.step()
        (target,) = step.opened_targets
        assert (target.key, target.request_id, target.source) == ("d/0", "d", SOURCE)
        assert target.first_index == 0
        assert target.block_ids == tuple(engine.blocks_of("d")[:7])
        assert engine.output is not None
        assert engine.output.total_num_scheduled_tokens == 0
        assert step.is_empty, "so the worker half may wait for news"
        assert engine.step().opened_targets == [], "once"

    @pytest.mark.parametrize("count", [1, 16, 33, 64, 100])
    def test_with_the_first_token_exactly_one_position_is_computed(
        self, make_engine: MakeEngine, count: int
    ) -> None:
        engine = make_engine()
        prompt = prompt_of(count)
        request = engine.add("d", DECODE, prompt=prompt, max_tokens=4)
        engine.step()
        engine.step(received={"d": 77})
        assert list(request.all_token_ids) == [*prompt, 77]
        step = engine.step()
        assert engine.output is not None
        assert engine.output.num_scheduled_tokens == {"d": 1}
        assert cut(step.progress) == [(count, count)], "no prompt position"
        assert list(request.output_token_ids) == [100]
        engine.step()
        engine.step()
        assert list(request.all_token_ids) == [*prompt, 77, 100, 101, 102]
        assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED, "4 tokens, the first is 77"

    def test_what_the_prefix_cache_holds_is_not_asked_for(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        engine.add("a", LOCAL, prompt=prompt[:70], max_tokens=1)
        engine.step()
        engine.step()
        engine.add("d", DECODE, prompt=prompt)
        (target,) = engine.step().opened_targets
        assert target.first_index == 4
        assert target.block_ids == tuple(engine.blocks_of("d")[4:7])
        engine.step(received={"d": 77})
        (progress,) = engine.step().progress
        assert (progress.start, progress.end, progress.cached_token_count) == (100, 100, 64)

    def test_what_was_received_serves_the_next_request(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        engine.add("d", DECODE, prompt=prompt, max_tokens=2)
        engine.step()
        engine.step(received={"d": 77})
        engine.step()
        engine.add("next", LOCAL, prompt=[*prompt, 77], max_tokens=1)
        (progress,) = engine.step().progress
        assert (progress.start, progress.cached_token_count) == (96, 96)

    def test_a_request_that_waits_for_blocks_delays_nobody(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.add("d", DECODE, prompt=prompt_of(100))
        other = engine.add("l", LOCAL, prompt=prompt_of(20, first=50), max_tokens=2)
        engine.step()
        engine.step()
        assert list(other.output_token_ids) == [100, 101]


class TestAFailedLoad:
    def test_the_missing_part_is_computed_and_nothing_is_loaded_twice(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        request = engine.add("d", DECODE, prompt=prompt)
        engine.step()
        blocks = engine.blocks_of("d")
        engine.step(received={"d": 77}, bad_blocks={blocks[5]})
        steps = [engine.step(), engine.step()]
        assert [one.opened_targets for one in steps] == [[], []]
        assert cut(steps[0].progress) == [(80, 100)], "what did not arrive, and it shows"
        assert list(request.all_token_ids)[:101] == [*prompt, 77]
        assert next(iter(request.output_token_ids)) == 100

    def test_with_nothing_arrived_the_whole_prompt_is_computed(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        request = engine.add("d", DECODE, prompt=prompt)
        engine.step()
        blocks = engine.blocks_of("d")
        engine.step(received={"d": 77}, bad_blocks=set(blocks))
        steps = [engine.step() for _ in range(3)]
        assert all(step.opened_targets == [] for step in steps)
        assert cut([one for step in steps for one in step.progress]) == [(0, 64), (64, 100)]
        assert list(request.all_token_ids)[:102] == [*prompt, 77, 100]


class TestLeavingADecodeJob:
    def test_while_it_waits_for_blocks(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        request = engine.add("d", DECODE, prompt=prompt_of(100))
        engine.step()
        engine.abort("d")
        step = engine.step()
        assert step.cancelled_targets == ["d/0"]
        assert engine.free_block_count < free, "a peer may be writing into them"
        engine.step(received={"d": None})
        assert engine.free_block_count == free
        assert "d" not in engine.scheduler.requests
        assert request.num_prompt_tokens == 100

    def test_in_the_step_in_which_its_blocks_have_come(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        request = engine.add("d", DECODE, prompt=prompt_of(100))
        engine.step()
        engine.abort("d")
        engine.step(received={"d": 77})
        assert request.num_prompt_tokens == 100, "nobody needs the token"
        engine.step()
        assert engine.free_block_count == free

    def test_before_its_blocks_were_reserved(self, make_engine: MakeEngine) -> None:
        engine = make_engine(block_count=10)
        free = engine.free_block_count
        engine.add("busy", LOCAL, prompt=prompt_of(64), max_tokens=60)
        engine.add("d", DECODE, prompt=prompt_of(120, first=9))
        assert engine.step().opened_targets == []
        engine.abort("d")
        step = engine.step()
        assert step.cancelled_targets == ["d/0"], "its first token may have come"
        assert "d" not in engine.scheduler.requests
        engine.abort("busy")
        engine.step()
        assert engine.free_block_count == free

    def test_after_it_has_begun_to_generate(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        free = engine.free_block_count
        engine.add("d", DECODE, prompt=prompt_of(100), max_tokens=50)
        engine.step()
        engine.step(received={"d": 77})
        engine.step()
        engine.abort("d")
        step = engine.step()
        assert step.cancelled_targets == []
        assert engine.free_block_count == free


class TestCountingBlocks:
    def test_a_prefill_job_s_blocks_are_active_then_leased_then_cached(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(100))
        engine.step()
        assert engine.census() == {"active": 4}
        engine.step()
        assert engine.census() == {"leased": 7}
        engine.step()
        engine.step(sent={"p"})
        assert engine.census() == {"cached": 6}

    def test_blocks_of_a_cancelled_prefill_job_are_quarantined_until_nothing_reads_them(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(100))
        engine.step()
        engine.abort("p")
        assert engine.census() == {"quarantined": 4}
        engine.step(sent={"p"})
        assert engine.census() == {"cached": 4}

    def test_a_decode_job_leases_what_its_cache_does_not_hold(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("a", LOCAL, prompt=prompt_of(70), max_tokens=1)
        engine.step()
        engine.step()
        engine.add("d", DECODE, prompt=prompt_of(100), max_tokens=9)
        engine.step()
        assert engine.census() == {"active": 4, "leased": 3}
        engine.step(received={"d": 77})
        assert engine.census() == {"active": 7}

    def test_blocks_of_a_cancelled_decode_job_are_quarantined_until_nothing_writes_to_them(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("d", DECODE, prompt=prompt_of(100))
        engine.step()
        engine.abort("d")
        assert engine.census() == {"quarantined": 7}
        engine.step(received={"d": None})
        assert engine.census() == {}

    def test_a_lost_block_is_told_when_it_has_been_lost_for_a_second(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        now_s = 100.0
        engine.counter._clock = lambda: now_s
        engine.counter._leak_after = 1
        engine.add("l", LOCAL, prompt=prompt_of(20), max_tokens=1)
        censuses = []
        for _ in range(40):
            if not engine.scheduler.has_requests():
                break
            censuses.append(engine.finish(engine.scheduler.schedule()).census)
            now_s += 0.1
        told = [census for census in censuses if census is not None]
        assert [census.lost_count for census in told][-1] == 1
        assert told[
            -1
        ].fault == "1 of 39 KV blocks are lost, in use by nobody and not free: " + str(
            told[-1].lost_ids[0]
        )
        assert all(census.lost_count == 0 for census in told[:-1])
        assert 100.0 + 1.0 <= now_s < 100.0 + 2.0, "steps go on until it is sure, no longer"

    def test_a_block_that_comes_back_a_step_late_is_no_leak(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        now_s = 100.0
        engine.counter._clock = lambda: now_s
        pool = engine.scheduler.kv_cache_manager.block_pool
        for index in range(30):  # as vLLM's deferred_frees do, at every moment at which it counts
            engine.add(f"l{index}", LOCAL, prompt=prompt_of(20, first=index), max_tokens=1)
            late = pool.get_new_blocks(1)
            now_s += 0.9
            output = engine.scheduler.schedule()
            pool.free_blocks(late)
            census = engine.finish(output).census
            assert census is None or census.fault == ""

    def test_after_the_last_step_it_is_counted_once_more_and_then_left_alone(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(60))
        engine.step()
        engine.step()
        engine.step(sent={"p"})
        censuses = []
        while engine.scheduler.has_requests():
            censuses.append(engine.step().census)
        assert censuses, "a step is asked for"
        assert censuses[-1] is not None
        assert censuses[-1].held_count == 0
        assert len(censuses) <= 2


class TestTellingABlockTable:
    def test_of_a_job_that_runs_ends_and_is_sent(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(100))
        engine.step(asked=["p/0", "nobody/0"])
        blocks = engine.blocks_of("p")
        step = engine.step(asked=["p/0"])
        assert step.tables == {"p/0": engine.blocks_of("p"), "nobody/0": []}
        assert step.tables["p/0"][: len(blocks)] == blocks
        assert engine.step(asked=["p/0"]).tables == {"p/0": engine.blocks_of("p")}, "it has ended"
        engine.step(sent={"p"}, asked=["p/0"])
        assert engine.step().tables == {"p/0": []}
        assert engine.step().tables == {}, "once"

    def test_of_a_cancelled_decode_job_as_long_as_a_peer_may_write(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("d", DECODE, prompt=prompt_of(100))
        engine.step()
        blocks = engine.blocks_of("d")
        engine.abort("d")
        engine.step(asked=["d/0"])
        assert engine.step(received={"d": None}, asked=["d/0"]).tables == {"d/0": blocks}
        assert engine.step().tables == {"d/0": []}


class TestPreemption:
    def test_a_prefill_job_is_fenced_off_and_computed_again_without_a_transfer(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(chunk=8, block_count=12)
        free = engine.free_block_count
        engine.add("l", LOCAL, prompt=prompt_of(60), max_tokens=60)
        for _ in range(8):
            engine.step()
        engine.add("p", PREFILL, prompt=prompt_of(110, first=9))
        before = [engine.step()]
        while not before[-1].preempted_sources:
            before.append(engine.step())
            assert len(before) < 60, "nobody was preempted"
        assert engine.output is not None
        assert engine.output.preempted_req_ids == {"p"}
        sent = [one for step in before for one in sources(step) if one.block_ids]
        assert sum(len(one.block_ids) for one in sent) >= 4
        assert not any(one.last for one in sent)
        assert sources(before[-1]) == []

        engine.abort("l")
        after = [engine.step() for _ in range(20)]
        assert all(sources(step) == [] for step in after)
        assert all(step.preempted_sources == [] for step in after)
        progress = [one for step in after for one in step.progress]
        assert progress[-1].end == 110
        assert "p" in engine.scheduler.requests, "until it is reported as sent"
        engine.step(sent={"p"})
        assert engine.free_block_count == free

    def test_and_resumed_in_one_step_it_sends_nothing_after_the_fence(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        engine.add("p", PREFILL, prompt=prompt_of(100))
        engine.step()
        engine.scheduler._preempt_request(engine.scheduler.running.pop(), 0.0)
        step = engine.step()
        assert step.preempted_sources == ["p/0"]
        assert sources(step) == []
        assert sources(engine.step()) == []

    def test_a_decode_job_is_computed_again_and_never_loads_twice(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        prompt = prompt_of(100)
        request = engine.add("d", DECODE, prompt=prompt, max_tokens=6)
        engine.step()
        engine.step(received={"d": 77})
        engine.step()
        engine.scheduler._preempt_request(engine.scheduler.running.pop(), 0.0)
        steps = [engine.step() for _ in range(6)]
        assert all(step.opened_targets == [] for step in steps)
        assert all(step.progress == [] for step in steps), "its prompt was computed already"
        assert list(request.all_token_ids)[:102] == [*prompt, 77, 100]
        assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.32.0", "0.320.0"])
def test_a_vllm_that_it_was_not_written_for_is_refused(version: str) -> None:
    with pytest.raises(RuntimeError, match=rf"vLLM {re.escape(version)} is installed"):
        facade._check_version(version)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cpu", "0.33.0"])
def test_a_vllm_that_it_was_written_for_is_accepted(version: str) -> None:
    facade._check_version(version)


def test_a_request_of_somebody_else_passes_through(make_engine: MakeEngine) -> None:
    engine = make_engine()
    free = engine.free_block_count
    request = engine.add("x", None, prompt=prompt_of(40), max_tokens=2)
    steps = [engine.step() for _ in range(3)]
    assert list(request.output_token_ids) == [100, 101]
    assert all(sources(one) == [] and one.progress == [] for one in steps)
    assert engine.free_block_count == free


def test_progress_counts_every_prompt_position_once_and_none_beyond(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(chunk=24)
    counts = {"a": 7, "b": 100, "c": 48, "d": 65}
    for name, count in counts.items():
        kind = PREFILL if name in "ab" else LOCAL
        engine.add(name, kind, prompt=prompt_of(count, first=3 + ord(name) % 50), max_tokens=3)
    seen: dict[str, list[tuple[int, int]]] = {f"{name}/0": [] for name in counts}
    for _ in range(20):
        for one in engine.step().progress:
            seen[one.key].append((one.start, one.end))
            assert one.end <= one.prompt_token_count == counts[one.key[0]]
    for name, count in counts.items():
        position = 0
        for start, end in seen[f"{name}/0"]:
            assert start == position
            position = end
        assert position == count
    assert BLOCK_SIZE == 16
