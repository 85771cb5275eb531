"""The scheduler's block directory: what nodes say of their caches goes in, decisions ask it.

    nodes' messages ──check──> operations ──one entry every _INTERVAL_S──> DirectoryMachine.apply
                                                 └─> BlocksEvicted, CacheCleared ──> scheduler core

A node that joins is in the directory at once and its former life out of it. What it says is
believed of itself alone, within bounds; anything else is dropped, counted, and healed by a snapshot
like everything that was missed. Snapshots are asked for a few at a time, with a pause per node that
grows, so that a fleet which comes back does not stop decisions.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from pdd.control.node_session import NodeSession
from pdd.control.versions import CACHE_SINCE_VERSION
from pdd.core.identity import NodeIdentity, NodeName
from pdd.core.ports import Clock
from pdd.daemon.cache_messages import MessageFault, read_delta, read_part, read_position
from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)
from pdd.directory.keys import KEY_SIZE_BYTES
from pdd.directory.machine import DirectoryMachine, read_result
from pdd.directory.status import Status
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.events import BlocksEvicted, CacheCleared

log = structlog.get_logger(__name__)

_INTERVAL_S = 0.05
"""News of so long are applied together: an entry costs some 180 us, however few keys are in it, and
running streams alone fill enough blocks for one in every interval. A prompt that comes sooner than
this after the blocks that it could use does not find them."""
_PENDING_SIZE_BYTES_MAX = 65_536 * KEY_SIZE_BYTES
"""Of keys. At so many the entry is applied at once, in about 50 ms."""
_LOOK_INTERVAL_S = 1.0
_ASKED_COUNT_MAX = 4
"""Snapshots on their way at a time."""
_ANSWER_TIMEOUT_S = 5.0
_ASK_PAUSE_S_MIN, _ASK_PAUSE_S_MAX = 1.0, 60.0

CacheNews = BlocksEvicted | CacheCleared


class _Follower:
    """One attached node. ``asked_s``: when its snapshot was asked for, None if it is not due."""

    def __init__(self, session: NodeSession) -> None:
        self.session = session
        self.asked_s: float | None = None
        self.ask_from_s = 0.0
        self.pause_s = _ASK_PAUSE_S_MIN
        self.has_erred = False


class DirectoryFeed:
    """Implements ``PrefixDirectory``. Everything is called on the event loop; ``run`` it."""

    def __init__(self, *, machine: DirectoryMachine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock
        self._tell: Callable[[CacheNews], None] = lambda news: None
        self._followed: dict[NodeName, _Follower] = {}
        self._pending: list[Operation] = []
        self._pending_size_bytes = 0
        self._changed = asyncio.Event()
        self._is_anyone_behind = False
        self._entry_count = 0
        self._asked_keys = b""
        self._match: dict[NodeName, int] = {}
        self.refused_message_count = 0
        """Messages of nodes that were dropped because they could not be true."""
        self.asked_snapshot_count = 0

    @property
    def machine(self) -> DirectoryMachine:
        """To read. What is not applied yet is not in it."""
        return self._machine

    def on_news(self, tell: Callable[[CacheNews], None]) -> None:
        """Whom to tell what nodes no longer hold."""
        self._tell = tell

    # --- for decisions -----------------------------------------------------------------------

    def is_known(self, node: NodeName) -> bool:
        """See ``PrefixDirectory``."""
        return self._machine.is_known(node)

    def matches(self, keys: bytes) -> Mapping[NodeName, int]:
        """See ``PrefixDirectory``. One look-up serves every question about the same prompt."""
        if keys != self._asked_keys:
            self._asked_keys = keys
            self._match = {
                NodeName(name): held
                for name, held in self._machine.longest_prefixes(keys).by_node.items()
                if self._machine.is_known(name)
            }
        return self._match

    # --- for the driver ----------------------------------------------------------------------

    def attached(self, session: NodeSession) -> None:
        """A node has joined or is back; whatever a former life held is gone with this."""
        name = session.identity.name
        if session.hello.protocol_version < CACHE_SINCE_VERSION:
            self.forget(name)
            return
        self._followed[name] = _Follower(session)
        self._add(
            NodeJoined(
                node=name,
                uuid=session.identity.uuid,
                boot_epoch=session.identity.boot_epoch,
                block_count=session.hello.block_count,
            )
        )
        self._apply()

    def detached(self, session: NodeSession) -> None:
        """Its stream broke: what it held is kept, for it may come back with it."""
        follower = self._followed.get(session.identity.name)
        if follower is not None and follower.session is session:
            del self._followed[session.identity.name]

    def forget(self, node: NodeName) -> None:
        """It is gone for good."""
        self._apply()
        self._followed.pop(node, None)
        boot_epoch = self._machine.boot_epoch(node)
        if boot_epoch is not None:
            self._add(NodeLeft(node=node, boot_epoch=boot_epoch))
            self._apply()

    def said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        """One of the cache messages has come in."""
        follower = self._followed.get(session.identity.name)
        if follower is None or follower.session is not session:
            return
        if self._machine.boot_epoch(session.identity.name) is None:
            return  # more nodes than the directory takes: this one's cache is guessed
        try:
            self._take(follower, message)
        except MessageFault as fault:
            self.refused_message_count += 1
            if not follower.has_erred:  # once per stream: it may do this all day
                follower.has_erred = True
                log.warning("cache_message_refused", node=session.identity.name, reason=str(fault))
            self._note_behind(session.identity)

    def _take(self, follower: _Follower, message: cluster_pb2.NodeMessage) -> None:
        identity = follower.session.identity
        block_count = follower.session.hello.block_count
        match message.WhichOneof("message"):
            case "cache_position":
                self._apply()
                told = read_position(message.cache_position)
                if told != self._machine.next_sequence(identity.name) - 1:
                    self._note_behind(identity)
                self._is_anyone_behind = True  # it may have left with a gap
            case "cache_delta":
                delta = read_delta(message.cache_delta, identity)
                stored_count = len(delta.stored) // KEY_SIZE_BYTES
                held_count = self._machine.held_count(identity.name)
                if not delta.is_cleared and held_count + stored_count > 2 * block_count:
                    raise MessageFault(
                        f"it would hold {held_count + stored_count} blocks, its pool has "
                        f"{block_count}"
                    )
                self._add(delta)
            case "cache_snapshot":
                part = read_part(message.cache_snapshot, identity, block_count=block_count)
                if part.part_index + 1 == part.part_count:
                    follower.asked_s = None
                    self._is_anyone_behind = True  # others may be asked now
                self._add(part)

    # --- inside ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Apply what comes and ask for what is missing, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_INTERVAL_S):
                    await self._changed.wait()
                await asyncio.sleep(_INTERVAL_S)
            self._apply()
            self._ask()

    def _add(self, operation: Operation) -> None:
        self._pending.append(operation)
        if isinstance(operation, BlockDelta):
            self._pending_size_bytes += len(operation.removed) + len(operation.stored)
        elif isinstance(operation, SnapshotPart):
            self._pending_size_bytes += len(operation.keys)
        self._changed.set()
        if self._pending_size_bytes >= _PENDING_SIZE_BYTES_MAX:
            self._apply()

    def _apply(self) -> None:
        self._changed.clear()
        if not self._pending:
            return
        operations, self._pending, self._pending_size_bytes = self._pending, [], 0
        entry = DirectoryEntry(operations=tuple(operations))
        self._entry_count += 1
        statuses = read_result(self._machine.apply(self._entry_count, entry.encode()))
        self._forget_answer()
        for operation, status in zip(operations, statuses, strict=True):
            if status not in (Status.APPLIED, Status.DUPLICATE, Status.STALE):
                self._is_anyone_behind = True
            if isinstance(operation, BlockDelta):
                self._tell_gone(operation)

    def _forget_answer(self) -> None:
        self._asked_keys, self._match = b"", {}

    def _tell_gone(self, delta: BlockDelta) -> None:
        follower = self._followed.get(NodeName(delta.node))
        if follower is None:
            return
        identity = follower.session.identity
        if delta.is_cleared:
            self._tell(CacheCleared(identity=identity))
        if delta.removed:
            self._tell(BlocksEvicted(identity=identity, keys=delta.removed))

    def _note_behind(self, identity: NodeIdentity) -> None:
        self._machine.note_lost(identity.name)
        self._forget_answer()
        self._is_anyone_behind = True
        self._changed.set()

    def _ask(self) -> None:
        if not self._is_anyone_behind:
            return
        now_s = self._clock()
        wanting = [
            self._followed[NodeName(name)]
            for name in self._machine.nodes_wanting_snapshot()
            if name in self._followed
        ]
        self._is_anyone_behind = bool(wanting)
        due = [
            follower
            for follower in self._followed.values()
            if follower.asked_s is not None and now_s - follower.asked_s < _ANSWER_TIMEOUT_S
        ]
        room = _ASKED_COUNT_MAX - len(due)
        for follower in wanting:
            if room <= 0:
                return
            if follower in due or now_s < follower.ask_from_s:
                continue
            room -= 1
            follower.asked_s = now_s
            follower.ask_from_s = now_s + follower.pause_s
            follower.pause_s = min(2 * follower.pause_s, _ASK_PAUSE_S_MAX)
            self.asked_snapshot_count += 1
            follower.session.ask_cache_snapshot()
