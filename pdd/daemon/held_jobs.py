"""Jobs whose scheduler is gone: how long and how much of them is held for the one that takes over.

::

    running ──scheduler lost──► held, generating ──bound──► held, stopped
       │                             │    │                    │
       └──ends──► held, ended ◄──────┘    └─────────┬──────────┘
                       └────────────────────────────┴──► claimed; after ``grace_s``: gone

What has ended is held whoever asked for it: its scheduler may die before its client has the end.

Bounds, and what happens there:

* ``grace_s`` after the loss (or the end) nobody has claimed it: it is cancelled and forgotten.
* ``sequence_tokens_max`` tokens after the loss: it is stopped, its blocks come back, and what it
  has said is held on; whoever claims it has the rest computed anew.
* ``tokens_max`` tokens of prompts and outputs, and log probabilities, in all: those that have ended
  are forgotten, the oldest first; if there are none, whoever wants to put out one more is stopped.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pdd.core.identity import RequestId

JobT = TypeVar("JobT")


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldLimits:
    """See the module."""

    grace_s: float = 30.0
    sequence_tokens_max: int = 4096
    tokens_max: int = 1_000_000


@dataclass(slots=True)
class Held(Generic[JobT]):
    """``has_ended``: by itself, so that only its end has to be told. ``size``: tokens and log
    probabilities. ``grown_token_count``: tokens since it is held."""

    job: JobT
    has_ended: bool
    size: int
    timer: asyncio.TimerHandle
    grown_token_count: int = 0


class HeldJobs(Generic[JobT]):
    """The book. It keeps no job alive and ends none: ``drop`` is told which one to end."""

    def __init__(self, limits: HoldLimits, *, drop: Callable[[RequestId], None]) -> None:
        """``drop``: this request's time is over."""
        self._limits = limits
        self._drop = drop
        self._held: OrderedDict[RequestId, Held[JobT]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size(self) -> int:
        """Tokens of prompts and outputs, and log probabilities, that are held."""
        return self._size

    def jobs(self) -> list[JobT]:
        """All of them, oldest first."""
        return [held.job for held in self._held.values()]

    def get(self, request_id: RequestId) -> JobT | None:
        held = self._held.get(request_id)
        return None if held is None else held.job

    def hold(
        self,
        request_id: RequestId,
        job: JobT,
        *,
        has_ended: bool,
        prompt_token_count: int,
        output_size: int,
    ) -> None:
        """From now on, for ``grace_s``. What was held under that id is forgotten.

        ``output_size``: tokens and log probabilities so far.
        """
        self.forget(request_id)
        timer = asyncio.get_running_loop().call_later(self._limits.grace_s, self._drop, request_id)
        self._held[request_id] = Held(
            job=job,
            has_ended=has_ended,
            size=prompt_token_count + output_size,
            timer=timer,
        )
        self._size += prompt_token_count + output_size
        self._forget_ended()

    def grew(self, request_id: RequestId, token_count: int, *, size: int) -> bool:
        """It has put out so many more tokens, of that size with their log probabilities; False: it
        is at a bound and is to be stopped. What it has said is held on until its time is over."""
        held = self._held[request_id]
        held.grown_token_count += token_count
        held.size += size
        self._size += size
        if held.grown_token_count > self._limits.sequence_tokens_max:
            return False
        return self._forget_ended()

    def forget(self, request_id: RequestId) -> None:
        """Claimed, cancelled, or its time is over. Idempotent."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held.timer.cancel()
            self._size -= held.size

    def _forget_ended(self) -> bool:
        """Keep the bound on all; False if that takes more than to forget ended ones."""
        if self._size > self._limits.tokens_max:
            for request_id, held in list(self._held.items()):
                if self._size <= self._limits.tokens_max:
                    break
                if held.has_ended:
                    self.forget(request_id)
        return self._size <= self._limits.tokens_max
