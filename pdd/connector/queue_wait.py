"""How vLLM's processes wait for each other's messages while an engine computes nothing.

A reader of vLLM's shared-memory queues spins (``sched_yield``) for a second after each message, and
nothing configures that (vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition,
0.32). Beside a worker that computes on the same core this costs next to nothing and wakes up at
once, so it stays. While a decode node waits for blocks nobody computes: both processes of its
engine spun, and slowed a prefill node on the next core of the same processor. There the reader naps
instead.

It cannot sleep until it is told: the socket that tells drops what follows another message within a
millisecond, and vLLM then looks again after 5 s.
"""

import time
from typing import Any

NAP_S = 0.0003
"""How much later a message is seen at most."""
_OF_VLLM = "of_vllm"
"""Of what stands in for vLLM's function: that function."""


class QueueNaps:
    """One per process: what it sets holds for every queue, and the latest one alone is asked.
    ``is_step_empty``: the latest step computes nothing."""

    def __init__(self) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

        self.is_step_empty = False
        spin_or_sleep = getattr(SpinCondition.wait, _OF_VLLM, SpinCondition.wait)

        def wait(condition: Any, timeout_ms: int | None = None) -> None:
            spins = time.monotonic() <= condition.last_read + condition.busy_loop_s
            if self.is_step_empty and spins:
                time.sleep(NAP_S)
            else:
                spin_or_sleep(condition, timeout_ms)

        setattr(wait, _OF_VLLM, spin_or_sleep)
        SpinCondition.wait = wait
