"""What ``long_turns`` decides, said to vLLM's scheduler in its own process.

vLLM reads these anew in each ``schedule`` (v1/core/sched/scheduler.py, 0.32), so they are set
between two of them, after a step is scheduled and when a request comes:

* ``scheduler_config.long_prefill_token_threshold``: the chunk of one prompt among several requests;
* ``scheduler_config.max_num_batched_tokens``: the step, for the one request that is alone;
* ``Request.next_decode_eligible_step``: a running request is left out of the steps before that one,
  with its blocks. vLLM itself sets it where decoding is pipelined, which a prefill job never does.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pdd.connector.long_turns import LongTurns

if TYPE_CHECKING:
    from vllm.config import SchedulerConfig
    from vllm.v1.request import Request

_NEVER = 1 << 62


class StepLimiter:
    """One per engine."""

    def __init__(self, config: "SchedulerConfig") -> None:
        """``config``: the scheduler's own. A chunk limit that an operator has set there stays, and
        with it steps are as they are; where prompts are never cut, none counts as long."""
        step_tokens = (
            config.max_num_batched_tokens if config.enable_chunked_prefill else sys.maxsize
        )
        self.turns = LongTurns(step_tokens=step_tokens)
        self._config = config
        self._is_off = config.long_prefill_token_threshold > 0 or not config.enable_chunked_prefill
        self._paused: dict[str, Request] = {}

    def step_scheduled(self) -> None:
        """vLLM has decided a step."""
        self.turns.step_ended(paused=bool(self._paused))

    def limit_next(self, requests: "Mapping[str, Request]") -> None:
        """Set the limits of the next step. ``requests``: those that have not ended."""
        if self._is_off:
            return
        limits = self.turns.limits()
        self._config.long_prefill_token_threshold = limits.chunk_tokens
        self._config.max_num_batched_tokens = limits.step_tokens
        for request in self._paused.values():
            request.next_decode_eligible_step = 0
        self._paused.clear()
        if limits.pauses:
            self._paused = {key: requests[key] for key in self.turns.begun_keys}
            for request in self._paused.values():
                request.next_decode_eligible_step = _NEVER
