"""Long prompts beside short ones in vLLM's real scheduler, at modelled times: nothing waits."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd.connector.params import JobKind

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from pdd.connector import facade
    from pdd.connector.long_turns import SHORT_MEMORY_STEPS
    from tests.unit.connector.vllm_scheduler import BLOCK_SIZE, PlayedEngine, make_vllm_config

PREFILL, LOCAL = JobKind.PREFILL, JobKind.LOCAL
CHUNK = 64
SHARE = CHUNK // 4
STEP_S, TOKEN_S = 0.03, 0.0047
"""As SmolLM2-135M's on one CPU core, where a step of 512 tokens takes 0.3 s; here it has 64."""

MakeEngine = Callable[..., PlayedEngine]


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    # It would tie this test process to its parent's life.
    monkeypatch.setattr(facade, "die_with_parent", lambda: None)

    def make(*, chunk_limit: int = 0, block_count: int = 40) -> PlayedEngine:
        config = make_vllm_config(
            tmp_path, chunk=CHUNK, max_model_len=8192, chunk_limit=chunk_limit
        )
        return PlayedEngine(config, block_count=block_count)

    return make


def prompt_of(count: int, *, first: int = 3) -> list[int]:
    return [first + index % 200 for index in range(count)]


def scheduled(engine: PlayedEngine, **received: int | None) -> dict[str, int]:
    """The next step's tokens of each request."""
    engine.step(received=received or None)
    assert engine.output is not None
    return engine.output.num_scheduled_tokens


def ttfts_s(
    engine: PlayedEngine, seed: int, *, rate_per_s: float, long: list[int]
) -> tuple[list[float], list[float]]:
    """Of 100 short prompts, and of long ones that come within two seconds beside them."""
    rng = random.Random(seed)
    arrivals: list[tuple[float, str, int]] = []
    at_s = 0.0
    for index in range(100):
        at_s += rng.expovariate(rate_per_s)
        arrivals.append((at_s, f"short {index}", rng.randint(8, 12)))
    rng = random.Random(seed + 1)
    for index, tokens in enumerate(long):
        arrivals.append((0.3 + 0.1 * index, f"long {index}", tokens))
    arrivals.sort(reverse=True)
    arrived_s: dict[str, float] = {}
    waits: dict[str, list[float]] = {"short": [], "long": []}
    sent: set[str] = set()
    now_s = 0.0
    while arrivals or arrived_s:
        while arrivals and arrivals[-1][0] <= now_s:
            at_s, key, tokens = arrivals.pop()
            prompt = [rng.randrange(3, 250) for _ in range(tokens)]
            engine.add(key, PREFILL, prompt=prompt, max_tokens=1)
            arrived_s[key] = at_s
        if not arrived_s:
            now_s = arrivals[-1][0]
            continue
        output = engine.scheduler.schedule()
        if count := output.total_num_scheduled_tokens:
            now_s += STEP_S + TOKEN_S * count
        engine.finish(output, sent=sent)
        sent = {key for key, tokens in engine.sampled.items() if tokens}
        for key in sent:
            waits[key.partition(" ")[0]].append(now_s - arrived_s.pop(key))
    return waits["short"], waits["long"]


def p99(values: list[float]) -> float:
    return sorted(values)[-(-len(values) * 99 // 100) - 1]


class TestFairness:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize(
        "long",
        [[190] * 20, [4000], [90 * (index % 5 + 1) for index in range(20)]],
        ids=["20 alike", "one of 62 steps", "20 mixed"],
    )
    def test_long_prompts_leave_the_ttft_of_100_short_ones_within_twice(
        self, make_engine: MakeEngine, seed: int, long: list[int]
    ) -> None:
        """Busy for half the time without the long ones."""
        alone, _ = ttfts_s(make_engine(block_count=2000), seed, rate_per_s=8.0, long=[])
        beside, waits = ttfts_s(make_engine(block_count=2000), seed, rate_per_s=8.0, long=long)
        print(f"seed {seed}: p99 {p99(alone) * 1e3:.0f} -> {p99(beside) * 1e3:.0f} ms")
        assert (len(beside), len(waits)) == (100, len(long))
        assert p99(beside) <= 2 * p99(alone)

    def test_an_operators_own_limit_leaves_the_steps_as_they_are(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(chunk_limit=20)
        engine.add("a", PREFILL, prompt=prompt_of(100))
        engine.add("short", PREFILL, prompt=prompt_of(10, first=9))
        assert scheduled(engine) == {"a": 20, "short": 10}


class TestTurns:
    def test_long_prompts_are_computed_one_after_the_other_the_shortest_first(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(block_count=200)
        for index, tokens in enumerate((300, 200, 250, 150)):
            engine.add(f"p{index}", PREFILL, prompt=prompt_of(tokens, first=5 + index))
        order: list[str] = []
        for _ in range(20):
            engine.step()
            order += [key for key, tokens in engine.sampled.items() if tokens]
        assert order[:4] == ["p0", "p3", "p1", "p2"]

    def test_a_short_prompt_has_a_step_for_itself(self, make_engine: MakeEngine) -> None:
        engine = make_engine(block_count=200)
        engine.add("a", PREFILL, prompt=prompt_of(400))
        engine.add("b", PREFILL, prompt=prompt_of(400, first=9))
        scheduled(engine)
        assert scheduled(engine) == {"a": CHUNK}
        engine.add("short", PREFILL, prompt=prompt_of(10, first=17), max_tokens=1)
        assert scheduled(engine) == {"short": 10}
        for _ in range(5):
            assert scheduled(engine) == {"a": SHARE}

    def test_so_it_has_when_the_long_one_is_alone(self, make_engine: MakeEngine) -> None:
        engine = make_engine(block_count=200)
        engine.add("a", PREFILL, prompt=prompt_of(1500))
        assert scheduled(engine) == {"a": CHUNK}
        engine.add("short", PREFILL, prompt=prompt_of(10, first=17), max_tokens=1)
        assert scheduled(engine) == {"short": 10}
        for _ in range(SHORT_MEMORY_STEPS - 1):
            assert scheduled(engine) == {"a": SHARE}
        assert scheduled(engine) == {"a": CHUNK}, "no other has come"

    def test_what_decodes_here_goes_on_meanwhile(self, make_engine: MakeEngine) -> None:
        """A node whose duty was another one a moment ago."""
        engine = make_engine(block_count=200)
        engine.add("stream", LOCAL, prompt=prompt_of(5), max_tokens=50)
        scheduled(engine)
        engine.add("a", PREFILL, prompt=prompt_of(400))
        engine.add("b", PREFILL, prompt=prompt_of(400, first=9))
        assert scheduled(engine) == {"stream": 1, "a": CHUNK // 2}
        assert scheduled(engine) == {"stream": 1, "a": CHUNK - 1}
        engine.add("short", PREFILL, prompt=prompt_of(10, first=17), max_tokens=1)
        assert scheduled(engine) == {"stream": 1, "short": 10}

    def test_only_prefill_jobs_wait_for_turns(self, make_engine: MakeEngine) -> None:
        engine = make_engine(block_count=200)
        for key in "abc":
            engine.add(key, LOCAL, prompt=prompt_of(20, first=ord(key)))
        assert set(scheduled(engine)) == {"a", "b", "c"}


class TestHeld:
    def make_held(self, make_engine: MakeEngine, **changes: int) -> PlayedEngine:
        engine = make_engine(**changes)
        engine.add("a", PREFILL, prompt=prompt_of(300), max_tokens=1)
        engine.add("b", PREFILL, prompt=prompt_of(300, first=9), max_tokens=1)
        engine.step()
        return engine

    def test_one_waits_in_vllm_without_blocks_and_is_told(self, make_engine: MakeEngine) -> None:
        engine = self.make_held(make_engine)
        assert engine.scheduler.get_request_counts() == (1, 1)
        assert engine.blocks_of("b") == []
        assert engine.step().held_prompt_count == 1

    def test_its_ticket_is_kept_from_the_first_step_on(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        engine.add("a", PREFILL, prompt=prompt_of(300), max_tokens=1)
        engine.add("b", PREFILL, prompt=prompt_of(300, first=9), max_tokens=1)
        opened = [one for one in engine.step().ready_blocks if one.key == "b/0"]
        assert [(one.opens, one.block_ids) for one in opened] == [(True, ())]

    def test_one_that_is_aborted_leaves_nothing(self, make_engine: MakeEngine) -> None:
        engine = self.make_held(make_engine)
        engine.abort("b")
        step = engine.step(sent={"b"})
        assert step.aborted_sources == ["b/0"]
        assert step.held_prompt_count == 0
        engine.abort("a")
        engine.step(sent={"a"})
        assert engine.census() == {"cached": engine.census()["cached"]}

    def test_one_that_is_aborted_while_it_is_paused_leaves_nothing(
        self, make_engine: MakeEngine
    ) -> None:
        engine = self.make_held(make_engine)
        engine.add("short", PREFILL, prompt=prompt_of(10, first=17), max_tokens=1)
        assert scheduled(engine) == {"short": 10}
        engine.add("short 2", PREFILL, prompt=prompt_of(10, first=27), max_tokens=1)
        engine.abort("a")
        assert scheduled(engine) == {"short 2": 10, "b": CHUNK // 4}

    def test_what_is_to_be_pulled_is_not_counted(self, make_engine: MakeEngine) -> None:
        engine = self.make_held(make_engine, block_count=100)
        engine.add("p", PREFILL, prompt=prompt_of(300, first=33), pulled_tokens=288)
        step = engine.step()
        (target,) = step.opened_targets
        assert target.key == "p/0", "12 tokens are short"
        assert scheduled(engine, p=None)["a"] == CHUNK // 4
        assert scheduled(engine) == {"p": 12}

    def test_a_long_rest_waits_before_it_pulls(self, make_engine: MakeEngine) -> None:
        engine = self.make_held(make_engine, block_count=100)
        engine.add("p", PREFILL, prompt=prompt_of(700, first=33), pulled_tokens=288)
        for _ in range(8):  # until the shorter b has a part of a step to spare
            assert engine.step().opened_targets == []
        (target,) = [one for _ in range(4) for one in engine.step().opened_targets]
        assert len(target.block_ids) == 288 // BLOCK_SIZE

    def test_one_that_is_preempted_computes_again(self, make_engine: MakeEngine) -> None:
        engine = make_engine(block_count=24)
        engine.add("a", PREFILL, prompt=prompt_of(300), max_tokens=1, priority=1)
        engine.step()
        engine.step()
        engine.add("urgent", LOCAL, prompt=prompt_of(10, first=9), max_tokens=260)
        steps = 0
        while not (engine.sampled.get("a") or steps > 400):
            engine.step()
            steps += 1
        assert engine.sampled.get("a"), f"not computed after {steps} steps"
