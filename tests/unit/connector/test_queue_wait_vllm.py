"""vLLM's own shared-memory queue, between two threads."""

import threading
import time
import warnings
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, SpinCondition

from pdd.connector import queue_wait
from pdd.connector.queue_wait import NAP_S, QueueNaps


class Queue:
    """With a reader that says how it waits. Made before the naps, as vLLM makes its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SpinCondition, "wait", SpinCondition.wait)  # put back at the end
        self.writer = MessageQueue(
            n_reader=1, n_local_reader=1, max_chunk_bytes=1 << 12, max_chunks=2
        )
        self.reader = MessageQueue.create_from_handle(self.writer.export_handle(), 0)
        ready = threading.Thread(target=self.writer.wait_until_ready)
        ready.start()
        self.reader.wait_until_ready()
        ready.join()
        self.naps = QueueNaps()
        self.waits: list[str] = []
        self.waited = threading.Event()
        monkeypatch.setattr(shm_broadcast, "sched_yield", lambda: self.note("spin"))
        clock = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda seconds: self.note(f"nap of {seconds}")
        )
        monkeypatch.setattr(queue_wait, "time", clock)
        self.reader._spin_condition.busy_loop_s = 3600.0  # a busy machine is no idle reader
        monkeypatch.setattr(self.reader._spin_condition, "poller", self)

    def note(self, how: str) -> None:
        self.waits.append(how)
        self.waited.set()

    def poll(self, timeout: int | None = None) -> list[object]:
        self.note("sleep")
        return []

    def hand_over(self, message: object) -> set[str]:
        """How the reader waited for it."""
        self.waits.clear()
        self.waited.clear()
        got: list[object] = []
        reading = threading.Thread(target=lambda: got.append(self.reader.dequeue(timeout=30)))
        reading.start()
        assert self.waited.wait(30)
        self.writer.enqueue(message)
        reading.join()
        assert got == [message]
        return set(self.waits)


def test_a_reader_naps_while_steps_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    assert queue.hand_over("a step") == {"spin"}
    queue.naps.is_step_empty = True
    assert queue.hand_over("an empty one") == {f"nap of {NAP_S}"}
    queue.naps.is_step_empty = False
    assert queue.hand_over("a step") == {"spin"}


def test_an_idle_reader_sleeps_until_it_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    queue.naps.is_step_empty = True
    queue.reader._spin_condition.busy_loop_s = -1.0  # as if the last message were long ago
    assert queue.hand_over("the first for long") == {"sleep"}


def test_a_second_one_in_a_process_stands_in_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch)
    queue.naps.is_step_empty = True
    second = QueueNaps()
    assert queue.hand_over("a step") == {"spin"}
    second.is_step_empty = True
    assert queue.hand_over("an empty one") == {f"nap of {NAP_S}"}
