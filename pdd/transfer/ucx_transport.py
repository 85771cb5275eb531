"""Tag-matched messages over UCX, through ucxx's request level. The only module that knows ucxx.

What was found out the hard way (ucxx 0.52, UCX 1.21), and is relied on here:

- The context has the features TAG and WAKEUP and no other: with RMA a peer could read memory that
  was never registered. No listener is opened; addresses are exchanged elsewhere.
- Endpoint error handling is on: without it the death of a peer leaves receives pending for ever
  (shared memory) or aborts this process (cma).
- There is no cancel of a single message. Closing the endpoint makes all its messages final.
- A receive buffer shorter than the message ends it as truncated, and the sender's send as done:
  that is how an unwanted message is taken off the wire without moving its bytes.
- ``progress()`` drains everything, for as long as a peer keeps sending; ``progress_once()`` in a
  loop with a budget lets commands through. Only ``progress()`` ends the requests of a closed
  endpoint, so it is called too while there are any.
- Idle costs nothing: ``arm()`` and then epoll on UCX's descriptor and an eventfd.
"""

import os
import select
import time
from typing import Any

import numpy as np

from pdd.core.errors import KVTransferError
from pdd.transfer.ucx_memory import MappedMemory
from pdd.transfer.ucx_query import endpoint_lanes, loaded_library, release_of
from pdd.transfer.values import PeerId
from pdd.wire.tag import HELLO_TAG

_OK = 0
_TRUNCATED = -9
_CLOSE_PERIOD_NS = 10_000_000
_CLOSE_ATTEMPTS = 100
_HELLO_RECEIVES = 8
_SETTLE_TURNS = 64
_SETTLE_QUIET_TURNS = 4


class _Endpoint:
    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.lost = False  # closed by us or by an error; no message may be added
        self.closed = False
        self.in_flight = 0


class _Posted:
    __slots__ = ("buffer", "discard", "endpoint", "request", "token")

    def __init__(
        self, request: Any, token: object, endpoint: _Endpoint, buffer: Any, discard: bool
    ) -> None:
        self.request = request
        self.token = token
        self.endpoint = endpoint
        self.buffer = buffer  # kept alive until the message is final
        self.discard = discard


class UcxTransport:
    """See ``transport.Transport``. ``memory``: address and bytes of a pool, registered once."""

    def __init__(self, *, memory: tuple[int, int] | None = None) -> None:
        self._memory = memory  # address and bytes of what is to be registered
        self._mapped: MappedMemory | None = None
        self._endpoints: dict[PeerId, _Endpoint] = {}
        self._leaving: list[tuple[PeerId, _Endpoint]] = []
        self._posted: list[_Posted] = []
        self._refused: list[object] = []  # tokens of messages that could not be posted
        self._look = False  # something may have become final
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._hellos: list[Any] = []
        self._context: Any = None
        self._worker: Any = None

    def open(self) -> bytes:
        try:
            import ucxx._lib.libucxx as lib
            from ucxx._lib.arr import Array
        except ImportError as error:
            raise KVTransferError(
                f"UCX cannot be loaded ({error}); install pdd[cpu] or pdd[cuda], which bring ucxx"
            ) from error
        self._lib = lib
        self._array = Array
        try:
            self._context = lib.UCXContext({}, feature_flags=(lib.Feature.TAG, lib.Feature.WAKEUP))
            self._worker = lib.UCXWorker(
                self._context, enable_delayed_submission=False, enable_python_future=False
            )
            self._worker.init_blocking_progress_mode()
        except Exception as error:  # ucxx raises one class per UCX status, with no common base
            raise KVTransferError(
                f"UCX cannot start ({type(error).__name__}: {error}); check UCX_TLS"
                f" ({os.environ.get('UCX_TLS', 'unset')}) and UCX_NET_DEVICES"
                f" ({os.environ.get('UCX_NET_DEVICES', 'unset')})"
            ) from error
        if self._memory is not None:
            address, size_bytes = self._memory
            self._mapped = MappedMemory(
                context=int(self._context.handle), address=address, size_bytes=size_bytes
            )
        self._epoll.register(self._worker.epoll_file_descriptor, select.EPOLLIN)
        self._hellos = [self._expect_hello() for _ in range(_HELLO_RECEIVES)]
        return bytes(self._worker.address)

    def version(self) -> str:
        library = loaded_library()
        if library is None:
            raise KVTransferError("libucp is not loaded in this process: its release is not known")
        major, minor, _ = release_of(library)
        return f"ucx {major}.{minor}"

    # ------------------------------------------------------------------------------ endpoints

    def connect(self, peer: PeerId, address: bytes) -> None:
        if peer in self._endpoints or self.is_leaving(peer):
            return
        lib = self._lib
        endpoint = _Endpoint(None)
        self._settle()
        try:
            remote = lib.UCXAddress.create_from_buffer(np.frombuffer(address, np.uint8))
            endpoint.handle = lib.UCXEndpoint.create_from_worker_address(
                self._worker, remote, endpoint_error_handling=True
            )
            endpoint.handle.set_close_callback(lambda: self._on_closed(endpoint))
        except Exception:  # one class per UCX status, or an address that is none
            endpoint.lost = endpoint.closed = True
        self._endpoints[peer] = endpoint
        if endpoint.lost:
            self._leave(peer, endpoint)
            return
        # UCX connects an endpoint when it first sends, and only a connected one notices the peer's
        # death: without this, a side that only receives would wait for its deadline.
        self.send(peer, HELLO_TAG, np.zeros(1, np.uint8), None)

    def has(self, peer: PeerId) -> bool:
        endpoint = self._endpoints.get(peer)
        return endpoint is not None and not endpoint.lost

    def is_leaving(self, peer: PeerId) -> bool:
        endpoint = self._endpoints.get(peer)
        if endpoint is not None:
            return endpoint.lost
        return any(leaving == peer for leaving, _ in self._leaving)

    def _on_closed(self, endpoint: _Endpoint) -> None:
        """UCX's callback, inside ``progress``: on our own close and on the peer's death."""
        endpoint.lost = True
        self._look = True

    def _leave(self, peer: PeerId, endpoint: _Endpoint) -> None:
        del self._endpoints[peer]
        self._leaving.append((peer, endpoint))
        self._look = True

    def abort(self, peer: PeerId) -> None:
        endpoint = self._endpoints.get(peer)
        if endpoint is not None:
            endpoint.lost = True
            self._leave(peer, endpoint)

    def take_lost(self) -> list[PeerId]:
        for peer, endpoint in [(p, e) for p, e in self._endpoints.items() if e.lost]:
            self._leave(peer, endpoint)
        gone: list[PeerId] = []
        if self._refused:  # a peer is lost only after all its finals have been taken
            return gone
        for peer, endpoint in list(self._leaving):
            if not endpoint.closed:
                self._close_endpoint(endpoint, attempts=_CLOSE_ATTEMPTS)
            if endpoint.in_flight:
                # Only the full call hands the cancelled requests their status.
                self._worker.progress()
                self._look = True
            else:
                self._leaving.remove((peer, endpoint))
                gone.append(peer)
        return gone

    def _close_endpoint(self, endpoint: _Endpoint, *, attempts: int) -> None:
        """Force an endpoint's messages to their end."""
        self._settle()
        endpoint.closed = True
        endpoint.handle.close_blocking(period=_CLOSE_PERIOD_NS, max_attempts=attempts)
        # Callback and endpoint refer to each other; the garbage collector must not be the one that
        # destroys an endpoint, later and in another thread.
        endpoint.handle.remove_close_callback()
        endpoint.handle = None

    def _expect_hello(self) -> Any:
        """Post a receive for the first message of some peer's connection."""
        array = self._array(np.zeros(1, np.uint8))
        lib = self._lib
        return self._worker.tag_recv(array, lib.UCXXTag(HELLO_TAG), lib.UCXXTagMaskFull), array

    def _settle(self) -> None:
        """Let UCX finish what it has begun, before an endpoint is made or closed.

        A peer connects to us and dies. One progress call takes its connection request and fails to
        answer; the failure itself is handled by the next call. An endpoint to that peer made in
        between takes the half-dead connection over, never fails, and crashes this process when it
        is closed (UCX 1.21, tcp; seen as a fault in uct_ep_pending_purge).
        """
        for turn in range(_SETTLE_TURNS):
            if not self._worker.progress_once() and turn >= _SETTLE_QUIET_TURNS:
                break
        self._look = True

    # ------------------------------------------------------------------------------ messages

    def post_receive(
        self, peer: PeerId, tag: int, buffer: Any, token: object, *, discard: bool = False
    ) -> None:
        lib = self._lib
        endpoint = self._endpoints.get(peer)
        if endpoint is None or endpoint.lost:
            self._refuse(token)
            return
        array = self._array(buffer)
        try:
            request = endpoint.handle.tag_recv(array, lib.UCXXTag(tag), lib.UCXXTagMaskFull)
        except Exception:  # one class per UCX status
            endpoint.lost = True
            self._refuse(token)
            return
        self._keep(_Posted(request, token, endpoint, array, discard))

    def send(self, peer: PeerId, tag: int, buffer: Any, token: object) -> None:
        endpoint = self._endpoints.get(peer)
        if endpoint is None or endpoint.lost:
            self._refuse(token)
            return
        array = self._array(buffer)
        try:
            request = endpoint.handle.tag_send(array, self._lib.UCXXTag(tag))
        except Exception:  # one class per UCX status
            endpoint.lost = True
            self._refuse(token)
            return
        self._keep(_Posted(request, token, endpoint, array, False))

    def _refuse(self, token: object) -> None:
        """It cannot be posted: final at once, and taken as such before its peer is lost."""
        self._refused.append(token)
        self._look = True

    def _keep(self, posted: _Posted) -> None:
        posted.endpoint.in_flight += 1
        self._posted.append(posted)
        self._look = True

    def progress(self, budget_s: float) -> bool:
        worker = self._worker
        if not worker.progress_once():
            return False
        end_s = time.perf_counter() + budget_s
        while worker.progress_once() and time.perf_counter() < end_s:
            pass
        self._look = True
        return True

    def take_finals(self) -> list[tuple[object, bool]]:
        if not self._look:
            return []
        self._look = False
        self._hellos = [
            self._expect_hello() if hello[0].completed else hello for hello in self._hellos
        ]
        finals: list[tuple[object, bool]] = [(token, False) for token in self._refused]
        self._refused.clear()
        still = []
        for posted in self._posted:
            if not posted.request.completed:
                still.append(posted)
                continue
            status = posted.request.status
            ok = status == _OK or (posted.discard and status == _TRUNCATED)
            posted.endpoint.in_flight -= 1
            if not ok:
                posted.endpoint.lost = True
            finals.append((posted.token, ok))
        self._posted = still
        return finals

    def lanes(self, peer: PeerId) -> tuple[str, ...]:
        endpoint = self._endpoints.get(peer)
        if endpoint is None or endpoint.lost:
            return ()
        return endpoint_lanes(int(endpoint.handle.handle))

    def in_flight(self) -> int:
        return len(self._posted)

    # ------------------------------------------------------------------------------ waiting

    def wait(self, timeout_s: float | None) -> None:
        if self._look or not self._worker.arm():
            return
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wakeup_fd:
                os.eventfd_read(self._wakeup_fd)

    def wake(self) -> None:
        os.eventfd_write(self._wakeup_fd, 1)

    def close(self) -> None:
        for endpoint in [*self._endpoints.values(), *(e for _, e in self._leaving)]:
            if not endpoint.closed:
                self._close_endpoint(endpoint, attempts=1)
        self._endpoints.clear()
        self._leaving.clear()
        if self._worker is not None:
            for _ in range(100):
                if not self._worker.progress_once():
                    break
        self._posted.clear()
        if self._worker is not None:
            self._worker.cancel_inflight_requests()
        self._hellos.clear()
        self._worker = None
        if self._mapped is not None:
            self._mapped.close()
        self._context = None
        self._epoll.close()
        os.close(self._wakeup_fd)
