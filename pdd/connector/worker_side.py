"""The half that lives in ``VLLM::Worker``, beside the paged KV cache.

It feeds the transfer engine with what the scheduler half saw, and reports to vLLM. Three threads
meet here: the model thread (vLLM's hooks), the transfer engine's own thread, and the link's
thread. What is known of the jobs is in a book (``worker_book``), guarded by one lock that is held
for microseconds only.
"""

import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from pdd.connector.device_order import AtOnce, DeviceOrder, order_of
from pdd.connector.fingerprint import pool_fingerprint
from pdd.connector.link_client import LinkClient
from pdd.connector.link_messages import (
    AskConnections,
    AskTable,
    ConnectRank,
    Control,
    Counters,
    DisconnectRank,
    DropSource,
    FirstToken,
    Hello,
    LinkMessage,
    Progress,
    Table,
)
from pdd.connector.metadata import (
    METADATA_VERSION,
    SourceBlocks,
    StepMetadata,
    TargetBlocks,
    WorkerMetadata,
)
from pdd.connector.pool import pool_of
from pdd.connector.worker_book import Outcome, Received, Target, WorkerBook
from pdd.connector.worker_messages import (
    blocks_of,
    connections_of,
    control_message,
    outcome_message,
    peer_of,
)
from pdd.connector.worker_settings import WorkerSettings
from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.engine import TransferEngine
from pdd.transfer.values import Peer, TargetFailed, TransferEvent

if TYPE_CHECKING:
    import torch

_ASKED_KEYS_MAX = 64
"""Block tables asked for in one step. At the bound the oldest question stays unanswered."""

_SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms lets a busy model thread delay each post by that much."""

_EMPTY_STEP_S = 0.004
"""Longest wait for news in a step that computes nothing. vLLM takes one such step after another, a
millisecond apart, as long as blocks are on their way; each costs the engine's processes and the
daemon half a millisecond, and a neighbour on the same processor its cache. A request that comes
meanwhile waits so much longer at most."""

_FENCE_TIMEOUT_S = 15.0
"""Longer than the transfer engine takes to force the end of a read (``quiesce_timeout_s``, then it
closes the endpoint)."""


class WorkerSide:
    """One per rank."""

    def __init__(self, *, settings: WorkerSettings, rank: int) -> None:
        self._settings = settings
        self._rank = rank
        self._engine: TransferEngine | None = None
        self._order: DeviceOrder = AtOnce()
        self._link: LinkClient | None = None
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._book = WorkerBook()
        self._reported_tokens: dict[str, int] = {}
        self._failed_blocks: set[int] = set()
        self._asked_keys: list[str] = []
        self._held_prompt_count = 0
        self._is_step_empty = False
        self._counters: dict[str, float] = {"held_prompts": 0.0}  # as told

    def register(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        """Start transfer engine and link; raises if either cannot start."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        pool = pool_of(kv_caches)
        self._order = order_of(next(iter(kv_caches.values())).device)
        self._engine = TransferEngine(
            pool=pool,
            identity=self._settings.identity,
            rank=self._rank,
            settings=self._settings.transfer,
            send_control=self._send_control,
            on_event=self._news.set,
        )
        ucx_address = self._engine.start()
        self._link = LinkClient(
            socket_name=self._settings.socket_name,
            hello=Hello(
                secret=self._settings.secret,
                rank=self._rank,
                block_count=pool.block_count,
                block_bytes=pool.block_bytes,
                ucx_address=ucx_address,
                fingerprint={**pool_fingerprint(kv_caches), **self._engine.fingerprint},
            ),
            on_message=self._on_link_message,
        )

    def close(self) -> None:
        """End transfer engine and link. Idempotent."""
        self._order.close()
        if self._engine is not None:
            self._engine.close()
        if self._link is not None:
            self._link.close()

    # --- one engine step ---------------------------------------------------------------------

    def begin_step(self, step: StepMetadata) -> None:
        """Before the forward."""
        if step.version != METADATA_VERSION:
            raise RuntimeError(
                f"scheduler half speaks metadata version {step.version}, worker half "
                f"{METADATA_VERSION}: two installations of pdd are mixed"
            )
        self._held_prompt_count = step.held_prompt_count
        self._is_step_empty = step.is_empty
        for progress in step.progress:
            if self._rank == 0:
                self._send(
                    Progress(
                        key=progress.key,
                        start=progress.start,
                        end=progress.end,
                        prompt_token_count=progress.prompt_token_count,
                        cached_token_count=progress.cached_token_count,
                    )
                )
        if self._rank == 0:
            if step.census is not None:
                self._send(blocks_of(step.census))
            for key, block_ids in step.tables.items():
                self._send(Table(key=key, block_ids=block_ids))
        for opened in step.opened_targets:
            self._open_target(opened)
        for key in step.cancelled_targets:
            with self._lock:
                is_waiting, lends = self._book.cancel_target(key), self._book.lends(key)
            if is_waiting:
                self._transfer.target_cancel(key)
            if lends:
                self._end_loan(key)
        self._source_blocks(step.ready_blocks)

    def fence_preempted(self, step: StepMetadata) -> None:
        """Blocks of preempted prefill jobs will be overwritten: nothing may read them any more.

        Called in every step; blocks only when a prefill job was preempted with blocks on their
        way. Aborted jobs are not waited for: vLLM keeps their blocks until they are released.
        """
        for key in step.preempted_sources:
            self._abort_source(key, "prefill was preempted")
        deadline_s = time.monotonic() + _FENCE_TIMEOUT_S
        while unreleased := self._unreleased(step.preempted_sources):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._news.wait(left_s):
                raise RuntimeError(
                    f"blocks of {unreleased} are still being read {_FENCE_TIMEOUT_S} s after "
                    "their sequences were preempted; ending this engine rather than sending "
                    "wrong bytes"
                )

    def end_step(self, step: StepMetadata) -> None:
        """After the forward: the step's blocks are final."""
        self._source_blocks(step.computed_blocks)
        for key in step.aborted_sources:
            self._abort_source(key, "prefill was aborted")

    def results(self, finished_request_ids: set[str]) -> tuple[set[str], set[str]]:
        """Engine request ids to report as sent, and as received.

        An empty step with nothing to report waits for news, ``_EMPTY_STEP_S`` at most.
        """
        self._news.clear()  # before the look: what comes after it ends the wait
        sent, received, may_wait = self._ended(finished_request_ids)
        if may_wait and self._news.wait(_EMPTY_STEP_S):
            sent, received, _ = self._ended(set())
        self._reported_tokens.update(received.first_tokens)
        for target, outcome in received.outcomes:
            self._report_outcome(target, outcome)
        if self._rank == 0:
            self._report_counters()
        return sent, received.request_ids

    def take_failed_blocks(self) -> set[int]:
        """Blocks that did not arrive, since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_metadata(self) -> WorkerMetadata | None:
        """First tokens of requests reported as received and keys asked for since the last call."""
        tokens, self._reported_tokens = self._reported_tokens, {}
        with self._lock:
            keys, self._asked_keys = self._asked_keys, []
        return WorkerMetadata(first_tokens=tokens, asked_keys=keys) if tokens or keys else None

    # --- inside ------------------------------------------------------------------------------

    def _ended(self, finished_request_ids: set[str]) -> tuple[set[str], Received, bool]:
        """Sent and received since the last call, and whether it is worth waiting for more."""
        events = self._transfer.poll()
        with self._lock:
            self._book.finished(finished_request_ids)
            self._note(events)
            received = self._book.take_received()
            sent = self._book.take_sent()
            nothing = not (sent or received.request_ids or self._asked_keys)
            return sent, received, nothing and self._is_step_empty and self._book.is_waiting

    def _unreleased(self, keys: list[str]) -> list[str]:
        self._news.clear()
        events = self._transfer.poll()
        with self._lock:
            self._note(events)
            return [key for key in keys if self._book.is_read(key)]

    @property
    def _transfer(self) -> TransferEngine:
        assert self._engine is not None, "hook called before register_kv_caches"
        return self._engine

    def _open_target(self, target: TargetBlocks) -> None:
        with self._lock:
            self._book.open_target(target, now_s=time.monotonic())
        if target.lent_block_ids is not None:
            self._order.computed(partial(self._lend, target, target.lent_block_ids))
        source = target.source
        self._transfer.target_open(
            target.key,
            source=Peer(
                identity=NodeIdentity(
                    name=NodeName(source.name), uuid=source.uuid, boot_epoch=source.boot_epoch
                ),
                rank=self._rank,
                control_address=source.control_address,
                ucx_address=source.ucx_addresses[self._rank],
            ),
            first_index=target.first_index,
            block_ids=target.block_ids,
            deadline_s=target.deadline_s,
        )

    def _lend(self, target: TargetBlocks, block_ids: tuple[int, ...]) -> None:
        """The device has computed these blocks. If they are none, whoever asks is told at once."""
        self._transfer.source_open(target.key, deadline_s=target.deadline_s)
        self._transfer.source_append(target.key, first_index=0, block_ids=block_ids, last=True)

    def _end_loan(self, key: str) -> None:
        """Nobody needs it any more: void where it was fetched."""
        self._abort_source(key, "the loan is over")

    def _source_blocks(self, batches: Iterable[SourceBlocks]) -> None:
        for blocks in batches:
            if blocks.opens:
                with self._lock:
                    self._book.open_source(blocks.key, blocks.request_id)
            self._order.computed(partial(self._offer, blocks))

    def _offer(self, blocks: SourceBlocks) -> None:
        """The device has computed these blocks: they may be read."""
        if blocks.opens:
            self._transfer.source_open(blocks.key, deadline_s=blocks.deadline_s)
        if blocks.block_ids:
            self._transfer.source_append(
                blocks.key,
                first_index=blocks.first_index,
                block_ids=blocks.block_ids,
                last=blocks.last,
            )

    def _abort_source(self, key: str, reason: str) -> None:
        """In the same order as the offers, so that none comes after it."""
        self._order.then(partial(self._transfer.source_abort, key, reason))

    def _note(self, events: Iterable[TransferEvent]) -> None:
        for event in events:
            loan_key = self._book.note(event)
            if loan_key is not None:
                self._end_loan(loan_key)

    def _report_outcome(self, target: Target, outcome: Outcome) -> None:
        if isinstance(outcome, TargetFailed):
            self._failed_blocks.update(
                target.block_ids[index - target.first_index] for index in outcome.bad_indices
            )
        message = outcome_message(target, outcome, now_s=time.monotonic())
        if message is not None:
            self._send(message)

    def _on_link_message(self, message: LinkMessage) -> None:
        match message:
            case Control():
                self._transfer.deliver_control(peer_of(message), message.payload)
            case ConnectRank():
                self._transfer.connect(peer_of(message))
            case DisconnectRank():
                self._transfer.disconnect(peer_of(message))
            case AskConnections():
                self._transfer.look(lambda found: self._send(connections_of(found)))
            case AskTable():
                with self._lock:
                    self._asked_keys = [*self._asked_keys[-_ASKED_KEYS_MAX + 1 :], message.key]
                self._news.set()
            case FirstToken():
                with self._lock:
                    self._book.first_token(message.key, message.token_id)
                self._news.set()
            case DropSource():
                with self._lock:
                    is_read = self._book.is_read(message.key)
                if is_read:  # else nothing is left to free, and an abort would be counted
                    self._abort_source(message.key, message.reason)
            case _:
                raise AssertionError(f"the daemon sent {type(message).__name__} to a worker")

    def _send_control(self, peer: Peer, payload: bytes) -> None:
        self._send(control_message(peer, payload))

    def _send(self, message: LinkMessage) -> None:
        if self._link is not None:
            self._link.send(message)

    def _report_counters(self) -> None:
        counters = {name: float(value) for name, value in self._transfer.stats().items()}
        counters["held_prompts"] = float(self._held_prompt_count)
        if counters != self._counters:
            self._counters = counters
            self._send(Counters(values=counters))
