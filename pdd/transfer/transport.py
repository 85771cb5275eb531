"""The small interface between the driver and whatever moves the bytes.

One thread calls everything here except ``wake``. Nothing blocks except ``wait``.

There is no NIXL beside UCX. NIXL moves bytes one-sidedly (READ and WRITE into registered regions,
whose keys open the whole pool) and cannot cancel what is on its way (ai-dynamo/nixl#2067), so that
it can neither refuse a late write by having no receive posted nor promise that after ``abort`` all
is final; and it would need a second protocol for descriptors and a second UCX in the process, which
does not work. On RDMA, a UCX built with verbs gives the same path under this interface (see
``rdma``).
"""

from typing import Any, Protocol

from pdd.transfer.values import PeerId


class Transport(Protocol):
    """Tagged messages between ranks."""

    def open(self) -> bytes:
        """Start; returns this rank's address.

        Raises:
            KVTransferError: it cannot start; the message says what to install or set.
        """
        ...

    def version(self) -> str:
        """What moves the bytes, as far as both sides must agree on it; once open."""
        ...

    def connect(self, peer: PeerId, address: bytes) -> None:
        """Have an endpoint to ``peer``. A failure shows as a lost peer.

        While a lost endpoint to the same peer has not been reported, nothing is done and messages
        are refused: the report must not be taken for one about the new endpoint.
        """
        ...

    def has(self, peer: PeerId) -> bool:
        """Whether there is an endpoint that is not lost."""
        ...

    def is_leaving(self, peer: PeerId) -> bool:
        """Whether an endpoint to ``peer`` is closed or lost, and ``take_lost`` has not said so."""
        ...

    def post_receive(
        self, peer: PeerId, tag: int, buffer: Any, token: object, *, discard: bool = False
    ) -> None:
        """Receive one message into ``buffer``. ``token`` comes back in ``take_finals``.

        ``discard``: the buffer may be shorter than the message; the rest is thrown away.
        """
        ...

    def send(self, peer: PeerId, tag: int, buffer: Any, token: object) -> None:
        """Send ``buffer`` as one message; it must not change until ``token`` comes back."""
        ...

    def abort(self, peer: PeerId) -> None:
        """Close the endpoint: all its messages become final, then the peer is reported lost."""
        ...

    def progress(self, budget_s: float) -> bool:
        """Work for about ``budget_s`` at most. True when anything was done."""
        ...

    def take_finals(self) -> list[tuple[object, bool]]:
        """``(token, ok)`` of messages that have become final since the last call."""
        ...

    def take_lost(self) -> list[PeerId]:
        """Peers whose endpoint is gone and whose messages have all been taken as final."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something may have happened, ``wake`` was called, or the time is over."""
        ...

    def wake(self) -> None:
        """End a ``wait``, now or the next. From any thread."""
        ...

    def lanes(self, peer: PeerId) -> tuple[str, ...]:
        """What the connection to ``peer`` runs on, as ``transport/device``; empty if unknown."""
        ...

    def in_flight(self) -> int:
        """Messages that are not final."""
        ...

    def close(self) -> None:
        """Give everything back, whatever is in flight."""
        ...
