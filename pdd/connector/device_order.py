"""When a computed block may be read: after the device has done what it has been asked for so far.

On a CPU a step's results are in memory when vLLM's hook is called. On a GPU they are only queued on
the compute stream then, and bytes sent at once would be those of before the step, with a digest
that fits them. So each action waits for an event recorded at that moment, in a thread of its own:
the model's thread never waits for the GPU. Not run on a GPU yet.
"""

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

_CLOSE_TIMEOUT_S = 1.0
Action = Callable[[], None]


class DeviceEvent(Protocol):
    """A point in the device's work, as ``torch.cuda.Event``."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""


class DeviceOrder(Protocol):
    """Runs actions in the order in which they are given. From any thread, one call at a time."""

    def computed(self, action: Action) -> None:
        """Run ``action`` when all that this thread has asked the device for is done."""

    def then(self, action: Action) -> None:
        """Run ``action`` after the earlier ones, whatever the device does."""

    def close(self) -> None:
        """Forget what has not run. Idempotent."""


class AtOnce:
    """For a CPU: the work is done already."""

    def computed(self, action: Action) -> None:
        """See ``DeviceOrder``."""
        action()

    def then(self, action: Action) -> None:
        """See ``DeviceOrder``."""
        action()

    def close(self) -> None:
        """See ``DeviceOrder``."""


class AfterEvents:
    """For a GPU: ``record`` marks the current point of the compute stream.

    The queue holds a few entries per step that vLLM has in flight, which it bounds.
    """

    def __init__(self, record: Callable[[], DeviceEvent]) -> None:
        self._record = record
        self._waiting: queue.SimpleQueue[tuple[DeviceEvent | None, Action] | None] = (
            queue.SimpleQueue()
        )
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kv-ready", daemon=True)
        self._thread.start()

    def computed(self, action: Action) -> None:
        """See ``DeviceOrder``.

        Raises:
            RuntimeError: the device or an earlier action has failed; nothing runs any more.
        """
        self._put(self._record(), action)

    def then(self, action: Action) -> None:
        """See ``DeviceOrder``; raises as ``computed`` does."""
        self._put(None, action)

    def _put(self, event: DeviceEvent | None, action: Action) -> None:
        if self._failure is not None:
            raise RuntimeError("waiting for the device has failed") from self._failure
        self._waiting.put((event, action))

    def close(self) -> None:
        """See ``DeviceOrder``."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while (entry := self._waiting.get()) is not None and not self._closed:
                event, action = entry
                if event is not None:
                    event.synchronize()
                if not self._closed:
                    action()
        except BaseException as error:  # raised again by the next action's giver
            self._failure = error


def order_of(device: "torch.device") -> DeviceOrder:
    """The order for a KV cache on ``device``."""
    if device.type == "cpu":
        return AtOnce()
    import torch

    def record() -> DeviceEvent:
        event: DeviceEvent = torch.cuda.Event(blocking=True)  # who waits sleeps
        torch.cuda.current_stream(device).record_event(event)
        return event

    return AfterEvents(record)
