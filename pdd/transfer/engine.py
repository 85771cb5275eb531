"""The way in: one ``TransferEngine`` per rank, used by the model's thread, served by its own.

::

    model thread                              transfer thread (owns UCX)
    source_open/append/abort  --commands-->   driver: protocols, staging, transport
    target_open/cancel        --commands-->       |
    deliver_control (any thread) --------->       |  send_control(peer, bytes)
    poll()                    <---events----------+  on_event()

No call of the model thread blocks. The transfer thread sleeps in epoll when nothing moves, so an
idle engine costs no CPU. A bug in the transfer thread ends it and is raised by the next ``poll``.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from pdd.core.errors import KVTransferError
from pdd.core.identity import NodeIdentity
from pdd.transfer.driver import TransferDriver
from pdd.transfer.join import transfer_fingerprint
from pdd.transfer.pool import BlockPool
from pdd.transfer.protocol_values import (
    SourceAborted,
    SourceAppended,
    SourceOpened,
    TargetCancelRequested,
    TargetOpened,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.shared import SharedSlots
from pdd.transfer.transport import Transport
from pdd.transfer.values import Connection, Peer, SourceReleased, TransferEvent
from pdd.wire.address import RankAddress, pack_address

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0
Command = Callable[[TransferDriver], None]


class TransferEngine:
    """Moves blocks of ``pool`` to and from other ranks' pools.

    Args:
        pool: this rank's registered memory.
        identity, rank: who this is in tickets.
        settings: limits, times, faults.
        send_control: called in the transfer thread with small payloads; must not block. It may
            fail silently; an ``OSError`` counts as a lost message.
        on_event: called in the transfer thread after each new event for ``poll``.
        transport: the mover of bytes; UCX unless a test brings its own.
    """

    def __init__(
        self,
        *,
        pool: BlockPool,
        identity: NodeIdentity,
        rank: int,
        settings: TransferSettings,
        send_control: Callable[[Peer, bytes], None],
        on_event: Callable[[], None] | None = None,
        transport: Transport | None = None,
    ) -> None:
        if pool.on_device and settings.digest and pool.device_digest is None:
            raise ValueError(
                "settings.digest is on for a pool in GPU memory without a device_digest, and the"
                " CPU cannot read it; give the pool one, or set digest=False"
            )
        self._pool = pool
        self._identity = identity
        self._rank = rank
        self._settings = settings
        self._send_control = send_control
        self._on_event = on_event
        self._transport = transport
        self._commands: deque[Command] = deque()
        self._events: deque[TransferEvent] = deque()
        self._counters: Counter[str] = Counter()
        self._source_keys: set[str] = set()
        self._target_keys: set[str] = set()
        self._ready = threading.Event()
        self._stopping = False
        self._failure: BaseException | None = None
        self._address = b""
        self._fingerprint: dict[str, str] = {}
        self._connections: tuple[Connection, ...] = ()
        self._gauges: dict[str, int | float] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Lock()  # ``wake`` must not touch a descriptor closed meanwhile

    # ------------------------------------------------------------------------------ life

    def start(self) -> bytes:
        """Start the transfer thread; returns this rank's address for ``Peer.ucx_address``.

        Raises:
            KVTransferError: UCX cannot be loaded or started.
        """
        assert self._thread is None, "an engine is started once"
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise KVTransferError(f"UCX did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            raise self._failure
        return self._address

    @property
    def fingerprint(self) -> dict[str, str]:
        """The transfer engine's part of a node's fingerprint, once started."""
        return self._fingerprint

    def close(self) -> None:
        """Stop. Transfers that are open get no further event. Idempotent."""
        self._stopping = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)

    # ------------------------------------------------------------------------------ source

    def source_open(self, key: str, *, deadline_s: float) -> None:
        """Offer a sequence's blocks for ``deadline_s`` from now to whoever has the ticket.

        Raises:
            ValueError: the key is open already.
        """
        if key in self._source_keys:
            raise ValueError(f"source transfer {key!r} is open already")
        self._source_keys.add(key)
        event = SourceOpened(key=key, deadline_at_s=time.monotonic() + deadline_s)
        self._command(lambda driver: driver.source(event))

    def source_append(
        self, key: str, *, first_index: int, block_ids: Sequence[int], last: bool
    ) -> None:
        """Blocks ``first_index``... are computed; in prompt order, without gaps.

        ``last``: no block will follow. Of no effect when the key's event is on its way.

        Raises:
            ValueError: a block id is outside the pool.
        """
        self._check_blocks(block_ids)
        event = SourceAppended(
            key=key, first_index=first_index, block_ids=tuple(block_ids), last=last
        )
        self._command(lambda driver: driver.source(event))

    def source_abort(self, key: str, reason: str) -> None:
        """The sequence is given up; ``SourceReleased`` follows when its blocks are read no more.

        ``reason`` is counted where somebody had asked for the blocks.
        """
        event = SourceAborted(key=key, reason=reason)
        self._command(lambda driver: driver.source(event))

    # ------------------------------------------------------------------------------ target

    def target_open(
        self,
        key: str,
        *,
        source: Peer,
        first_index: int,
        block_ids: Sequence[int],
        deadline_s: float,
    ) -> None:
        """Have reserved blocks filled with prompt blocks ``first_index``... within ``deadline_s``.

        The blocks must stay reserved until this key's terminal event.

        Raises:
            ValueError: the key is open already, or a block id is outside the pool or named twice.
        """
        if key in self._target_keys:
            raise ValueError(f"target transfer {key!r} is open already")
        self._check_blocks(block_ids)
        if len(set(block_ids)) != len(block_ids):
            raise ValueError(f"target transfer {key!r} names a block twice")
        self._target_keys.add(key)
        event = TargetOpened(
            key=key,
            peer=source.peer_id,
            first_index=first_index,
            block_ids=tuple(block_ids),
            deadline_at_s=time.monotonic() + deadline_s,
        )

        def command(driver: TransferDriver) -> None:
            driver.learn_peer(source)
            shared = driver.shares_memory_with(source.peer_id)
            driver.target(dataclasses.replace(event, shared=shared))

        self._command(command)

    def target_cancel(self, key: str) -> None:
        """Give a transfer up. Its terminal event follows, unless it is on its way already."""
        self._command(lambda driver: driver.target(TargetCancelRequested(key=key)))

    # ------------------------------------------------------------------------------ both

    def deliver_control(self, source: Peer, payload: bytes) -> None:
        """Hand in a control message that an authenticated peer sent to this rank. Any thread."""
        self._command(lambda driver: driver.control(source, payload))

    def connect(self, peer: Peer) -> None:
        """Set the connection to a peer up now, so that no transfer pays for it."""

        self._command(lambda driver: driver.join(peer))

    def set_shares(
        self,
        peer: Peer,
        *,
        send: Sequence[tuple[int, int]] | None = None,
        receive: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Exchange with ``peer`` only these ``(offset, bytes)`` of every packed block.

        For nodes that are cut differently; the ranges come from ``reshard.plan_reshard``, at join,
        before the first transfer with that peer. None: whole blocks.

        Raises:
            ValueError: a range is empty or leaves the block.
        """
        for ranges in (send, receive):
            if ranges is not None:
                self._pool.select(ranges)  # its faults are the caller's, so told here
        self._command(lambda driver: driver.set_shares(peer.peer_id, send=send, receive=receive))

    def disconnect(self, peer: Peer) -> None:
        """Close the connection to a peer: it has left, or is believed dead.

        Its transfers are resumed once, over a new connection, or fail.
        """
        self._command(lambda driver: driver.disconnect(peer.peer_id))

    def poll(self) -> list[TransferEvent]:
        """Events since the last call.

        Raises:
            KVTransferError: the transfer thread has died.
        """
        if self._failure is not None:
            raise KVTransferError("the transfer thread has died") from self._failure
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._events.popleft())
        for event in events:
            keys = self._source_keys if isinstance(event, SourceReleased) else self._target_keys
            keys.discard(event.key)
        return events

    def stats(self) -> dict[str, int | float]:
        """Counters since the start, and sizes of what is held now."""
        return {**dict(self._counters), **self._gauges}

    def connections(self) -> tuple[Connection, ...]:
        """Connected peers, as of the call before this one: each call has them looked at anew."""

        def keep(found: tuple[Connection, ...]) -> None:
            self._connections = found

        self.look(keep)
        return self._connections

    def look(self, answer: Callable[[tuple[Connection, ...]], None]) -> None:
        """Have ``answer`` called in the transfer thread with the connected peers; quickly."""
        self._command(lambda driver: answer(driver.connections()))

    # ------------------------------------------------------------------------------ inside

    def _check_blocks(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            if not 0 <= block_id < self._pool.block_count:
                raise ValueError(f"block {block_id} is not in 0..{self._pool.block_count - 1}")

    def _command(self, command: Command) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        with self._closing:
            if self._transport is not None and self._ready.is_set() and not self._ended:
                self._transport.wake()

    @property
    def _ended(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def _emit(self, event: TransferEvent) -> None:
        self._events.append(event)
        if self._on_event is not None:
            self._on_event()

    def _run(self) -> None:
        shared: SharedSlots | None = None
        try:
            transport = self._transport
            if transport is None:
                from pdd.transfer.ucx_transport import UcxTransport

                memory = (self._pool.address, self._pool.size_bytes)
                transport = self._transport = UcxTransport(memory=memory)
            ucx_address = transport.open()
            self._fingerprint = transfer_fingerprint(self._settings, transport.version())
            shared = self._make_shared()
            self._address = pack_address(
                shared.address(ucx_address) if shared else RankAddress(ucx_address=ucx_address)
            )
            driver = TransferDriver(
                pool=self._pool,
                identity=self._identity,
                settings=self._settings,
                transport=transport,
                address=self._address,
                shared=shared,
                send_control=self._send_control,
                emit=self._emit,
                counters=self._counters,
            )
            self._ready.set()
            self._loop(driver, transport)
        except BaseException as error:  # raised again by start() or poll()
            self._failure = error
        finally:
            self._ready.set()
            self._shut()
            if shared is not None:
                shared.close()

    def _make_shared(self) -> SharedSlots | None:
        settings = self._settings
        if not settings.shared_memory or self._pool.on_device:
            return None
        try:
            return SharedSlots(
                slot_bytes=max(settings.chunk_bytes, self._pool.block_bytes),
                slot_count=settings.shared_slots,
                per_peer=settings.window_chunks,
            )
        except OSError as error:
            log.warning(
                "shared memory cannot be had here (%s): blocks go over UCX, to nodes of this host"
                " too. A seccomp profile without memfd_create does this; where it is meant, set"
                ' transfer.transport = "tcp"',
                error,
            )
            return None

    def _loop(self, driver: TransferDriver, transport: Transport) -> None:
        while not self._stopping:
            busy = False
            while self._commands:
                self._commands.popleft()(driver)
                busy = True
            busy |= driver.step()
            if not busy:
                driver.tidy()
                self._gauges = {**driver.gauges(), "thread_cpu_s": time.thread_time()}
                sleep_s = driver.sleep_s()
                if sleep_s != 0.0 and not self._commands and not self._stopping:
                    transport.wait(sleep_s)

    def _shut(self) -> None:
        with self._closing:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
