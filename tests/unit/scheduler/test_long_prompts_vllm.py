"""Long prompts beside short ones, from their arrival on, at modelled times: nothing waits.

The real scheduler core gives places, vLLM's real scheduler computes prompts; a decode node that
runs eight sequences is played. What short prompts wait for is a place as much as a step.
"""

import heapq
import random
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pdd.connector.params import JobKind
from pdd.core.frames import FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.effects import Complete, GiveFirstToken, Submit
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FirstTokenSampled,
    RequestArrived,
    SequenceFinished,
    Tick,
)
from pdd.scheduler.settings import EstimateSettings
from tests.builders import Cluster, make_finish, make_joined, make_request

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from pdd.connector import facade
    from tests.unit.connector.vllm_scheduler import PlayedEngine, make_vllm_config

CHUNK, LONG_TOKENS, OUTPUT_TOKENS = 64, 190, 4
PREFILL_STEP_S, PREFILL_TOKEN_S = 0.03, 0.0047
"""As SmolLM2-135M's on one CPU core, where a step of 512 tokens takes 0.3 s; here it has 64."""
HANDOVER_S, DECODE_STEP_S, TICK_S = 0.02, 0.04, 0.05
P, D = NodeName("prefill-0"), NodeName("decode-0")


class World:
    """One prefill node, one decode node; events by time."""

    def __init__(self, folder: Path) -> None:
        config = make_vllm_config(folder, chunk=CHUNK, max_model_len=8192)
        self.engine = PlayedEngine(config, block_count=2000)
        self.cluster = Cluster(
            make_joined(P, block_count=2001, max_num_seqs=8),
            make_joined(D, block_count=2001, max_num_seqs=8),
            estimates=EstimateSettings(prefill_tokens_per_s=160.0),
            node_silence_s=1e9,
        )
        self.start_s = self.now_s = self.cluster.now_s
        self.arrived_s: dict[str, float] = {}
        self.first_s: dict[str, float] = {}
        self._tokens_left: dict[str, int] = {}
        self._busy: set[str] = set()
        self._sent: set[str] = set()
        self._serial = count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def arrive(self, name: str, tokens: int, *, at_s: float) -> None:
        rng = random.Random(name)
        prompt = tuple(rng.randrange(3, 250) for _ in range(tokens))

        def come() -> None:
            self.arrived_s[name] = self.now_s
            request = make_request(name, prompt_token_ids=prompt, max_tokens=OUTPUT_TOKENS)
            self._tell(RequestArrived(request=request))

        self._after(at_s, come)

    def run(self) -> None:
        """Until every request has ended."""
        expected = len(self._later)
        self._after(TICK_S, self._tick)
        self.ended: list[str] = []
        while len(self.ended) < expected:
            self.now_s, _, do = heapq.heappop(self._later)
            do()
            self._work()

    # --- inside ------------------------------------------------------------------------------

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now_s + seconds, next(self._serial), do))

    def _tick(self) -> None:
        self._tell(Tick())
        self._after(TICK_S, self._tick)

    def _tell(self, event: Event) -> None:
        for effect in self.cluster.core.step(event, now_s=self.now_s):
            match effect:
                case Submit(kind="prefill", request=request):
                    prompt = list(request.prompt_token_ids)
                    self.engine.add(
                        request.request_id, JobKind.PREFILL, prompt=prompt, max_tokens=1
                    )
                case GiveFirstToken(request_id=name):
                    self._after(HANDOVER_S, lambda name=name: self._ready(name))
                case Complete(request_id=name):
                    self.ended.append(name)
                case _:
                    assert not isinstance(effect, Submit) or effect.kind == "decode", effect

    def _ready(self, name: str) -> None:
        self._tokens_left[name] = OUTPUT_TOKENS - 1
        self._tell(DecodeReady(request_id=RequestId(name), generation=0))

    def _work(self) -> None:
        """Begin a step on each node that has something to do and does nothing."""
        has_prompts = self.engine.scheduler.get_request_counts() != (0, 0) or self._sent
        if P not in self._busy and has_prompts:
            output = self.engine.scheduler.schedule()
            tokens = output.total_num_scheduled_tokens
            self._busy.add(P)
            step_s = PREFILL_STEP_S + PREFILL_TOKEN_S * tokens if tokens else 0.001
            self._after(step_s, lambda: self._prefill_done(output))
        if D not in self._busy and self._tokens_left:
            names = list(self._tokens_left)
            self._busy.add(D)
            self._after(DECODE_STEP_S, lambda: self._decode_done(names))

    def _prefill_done(self, output: Any) -> None:
        self._busy.remove(P)
        self.engine.finish(output, sent=self._sent)
        self._sent = {name for name, tokens in self.engine.sampled.items() if tokens}
        for name in sorted(self._sent):
            self.first_s[name] = self.now_s
            tokens = len(self.cluster.core.requests[RequestId(name)].request.prompt_token_ids)
            finish = make_finish(FinishReason.HANDOVER, computed_prompt_tokens=tokens)
            self._tell(
                FirstTokenSampled(
                    request_id=RequestId(name), generation=0, node=P, token_id=7, finish=finish
                )
            )

    def _decode_done(self, names: list[str]) -> None:
        self._busy.remove(D)
        for name in names:
            self._tokens_left[name] -= 1
            if not self._tokens_left[name]:
                del self._tokens_left[name]
                finish = make_finish(FinishReason.LENGTH)
                self._tell(
                    SequenceFinished(
                        request_id=RequestId(name),
                        generation=0,
                        node=D,
                        finish=finish,
                        output_token_count=OUTPUT_TOKENS,
                    )
                )


def ttfts_s(folder: Path, seed: int, *, long_count: int) -> list[float]:
    """Of 100 short prompts at 3 a second, sorted; beside them come long ones within 2 s."""
    world, rng, at_s = World(folder), random.Random(seed), 0.0
    for index in range(100):
        at_s += rng.expovariate(3.0)
        world.arrive(f"short {index}", rng.randint(8, 12), at_s=at_s)
    for index in range(long_count):
        world.arrive(f"long {index}", LONG_TOKENS, at_s=0.3 + 0.1 * index)
    world.run()
    short = [name for name in world.first_s if name.startswith("short")]
    return sorted(world.first_s[name] - world.arrived_s[name] for name in short)


@pytest.mark.parametrize("seed", range(2))
def test_20_long_prompts_leave_the_ttft_p99_of_100_short_ones_within_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # It would tie this test process to its parent's life.
    monkeypatch.setattr(facade, "die_with_parent", lambda: None)
    alone = ttfts_s(tmp_path, seed, long_count=0)
    beside = ttfts_s(tmp_path, seed, long_count=20)
    print(f"seed {seed}: p99 {alone[98] * 1e3:.0f} -> {beside[98] * 1e3:.0f} ms")
    assert len(alone) == len(beside) == 100
    assert beside[98] <= 2 * alone[98]
