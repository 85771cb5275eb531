"""The half that lives in ``VLLM::Worker``, beside the paged KV cache.

It feeds the transfer engine with what the scheduler half saw, and reports to vLLM. Three threads
meet here: the model thread (vLLM's hooks), the transfer engine's own thread, and the link's
thread. State below is guarded by one lock, held for microseconds only.

When a request is reported to vLLM (each exactly once; vLLM asserts on a second time):

* *sent*, a prefill job: the transfer engine says that nothing reads its blocks any more **and**
  vLLM has announced the request as finished **and** nothing writes a pulled prefix to them.
* *received*, a decode job: every block is verified or given up, nothing can write to them any
  more, nothing reads what it lends **and** the first token is known (or the request was cancelled
  meanwhile); a prefill job that pulls: as a decode job, but there is no first token to wait for.

A *loan* is the cached prefix of a decode job that waits for its blocks. It ends with that wait.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pdd.connector.device_order import AtOnce, DeviceOrder, order_of
from pdd.connector.fingerprint import pool_fingerprint
from pdd.connector.link_client import LinkClient
from pdd.connector.link_messages import (
    AskConnections,
    AskTable,
    Blocks,
    Connections,
    ConnectRank,
    Control,
    Counters,
    DisconnectRank,
    DropSource,
    FirstToken,
    Hello,
    LinkMessage,
    LoadFailed,
    Progress,
    Pulled,
    Ready,
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
from pdd.core.blocks import NAMED_COUNT_MAX, BlockCensus
from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.engine import TransferEngine
from pdd.transfer.settings import TransferFaults, TransferSettings
from pdd.transfer.values import (
    Connection,
    Peer,
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
    TransferEvent,
)

if TYPE_CHECKING:
    import torch

_EARLY_FIRST_TOKENS_MAX = 4096
"""First tokens whose decode job has not reserved blocks yet. At the bound the oldest is dropped;
its job then runs into its deadline and is planned anew."""

_GONE_TARGETS_MAX = 4096
"""Decode jobs that are over, remembered so that a late first token is not kept for them. At the
bound the oldest is forgotten; a token that is later still counts among the early ones."""

_ASKED_KEYS_MAX = 64
"""Block tables asked for in one step. At the bound the oldest question stays unanswered."""

_SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms lets a busy model thread delay each post by that much."""

_FENCE_TIMEOUT_S = 15.0
"""Longer than the transfer engine takes to force the end of a read (``quiesce_timeout_s``, then it
closes the endpoint)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the daemon passes through ``kv_connector_extra_config["pdd"]``."""

    socket_name: str
    secret: str
    identity: NodeIdentity
    transfer: TransferSettings

    def to_extra_config(self) -> dict[str, Any]:
        """Plain values only: vLLM hashes and pickles its configuration."""
        return {
            "socket_name": self.socket_name,
            "secret": self.secret,
            "name": self.identity.name,
            "uuid": self.identity.uuid,
            "boot_epoch": self.identity.boot_epoch,
            "transfer": asdict(self.transfer),
        }

    @classmethod
    def from_extra_config(cls, extra: dict[str, Any]) -> "WorkerSettings":
        """Inverse of ``to_extra_config``."""
        return cls(
            socket_name=extra["socket_name"],
            secret=extra["secret"],
            identity=NodeIdentity(
                name=NodeName(extra["name"]), uuid=extra["uuid"], boot_epoch=extra["boot_epoch"]
            ),
            transfer=TransferSettings(
                **{**extra["transfer"], "faults": TransferFaults(**extra["transfer"]["faults"])}
            ),
        )


_Outcome = TargetCompleted | TargetFailed | TargetCancelled


@dataclass(slots=True)
class _Target:
    request_id: str
    first_index: int
    block_ids: tuple[int, ...]
    is_pull: bool
    opened_s: float
    outcome: _Outcome | None = None
    cancelled: bool = False


@dataclass(slots=True)
class _Source:
    request_id: str
    is_loan: bool = False
    released: bool = False
    finished: bool = False


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
        self._sources: dict[str, _Source] = {}
        self._source_keys: dict[str, str] = {}
        self._targets: dict[str, _Target] = {}
        self._first_tokens: OrderedDict[str, int] = OrderedDict()
        self._gone_targets: OrderedDict[str, None] = OrderedDict()
        self._reported_tokens: dict[str, int] = {}
        self._failed_blocks: set[int] = set()
        self._asked_keys: list[str] = []
        self._held_prompt_count = 0
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
                self._send(_blocks_of(step.census))
            for key, block_ids in step.tables.items():
                self._send(Table(key=key, block_ids=block_ids))
        for opened in step.opened_targets:
            self._open_target(opened)
        for key in step.cancelled_targets:
            with self._lock:
                target = self._targets.get(key)
                if target is not None:
                    target.cancelled = True
                self._forget_first_token(key)
            if target is not None:
                self._transfer.target_cancel(key)
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
        """Engine request ids to report as sent, and as received."""
        events = self._transfer.poll()
        reports: list[tuple[_Target, _Outcome]] = []
        with self._lock:
            for request_id in finished_request_ids:
                key = self._source_keys.get(request_id)
                if key is not None:
                    self._sources[key].finished = True
            for event in events:
                self._note(event)
            received = self._take_received(reports)
            sent = self._take_sent()
        for target, outcome in reports:
            self._report_outcome(target, outcome)
        if self._rank == 0:
            self._report_counters()
        return sent, received

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

    def _unreleased(self, keys: list[str]) -> list[str]:
        self._news.clear()
        events = self._transfer.poll()
        with self._lock:
            for event in events:
                self._note(event)
            return [key for key in keys if key in self._sources and not self._sources[key].released]

    @property
    def _transfer(self) -> TransferEngine:
        assert self._engine is not None, "hook called before register_kv_caches"
        return self._engine

    def _open_target(self, target: TargetBlocks) -> None:
        with self._lock:
            self._gone_targets.pop(target.key, None)
            self._targets[target.key] = _Target(
                request_id=target.request_id,
                first_index=target.first_index,
                block_ids=target.block_ids,
                is_pull=target.is_pull,
                opened_s=time.monotonic(),
            )
            if target.lent_block_ids is not None:
                self._sources[target.key] = _Source(request_id=target.request_id, is_loan=True)
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
        """Nobody needs it any more: void where it was fetched, or nothing was lent."""
        source = self._sources.get(key)
        if source is not None and source.is_loan and not source.released:
            self._abort_source(key, "the loan is over")

    def _source_blocks(self, batches: Iterable[SourceBlocks]) -> None:
        for blocks in batches:
            if blocks.opens:
                with self._lock:
                    self._sources[blocks.key] = _Source(request_id=blocks.request_id)
                    self._source_keys[blocks.request_id] = blocks.key
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

    def _note(self, event: TransferEvent) -> None:
        match event:
            case SourceReleased():
                source = self._sources.get(event.key)
                if source is not None:
                    source.released = True
            case TargetCompleted() | TargetFailed() | TargetCancelled():
                target = self._targets.get(event.key)
                if target is not None and target.outcome is None:
                    target.outcome = event
                    self._end_loan(event.key)

    def _take_sent(self) -> set[str]:
        done = [
            key
            for key, source in self._sources.items()
            if source.released and source.finished and key not in self._targets
        ]
        sent = set()
        for key in done:
            request_id = self._sources.pop(key).request_id
            del self._source_keys[request_id]
            sent.add(request_id)
        return sent

    def _take_received(self, reports: "list[tuple[_Target, _Outcome]]") -> set[str]:
        received = set()
        for key, target in list(self._targets.items()):
            if target.outcome is None:
                continue
            if target.is_pull:
                del self._targets[key]
                received.add(target.request_id)
                if not target.cancelled:
                    reports.append((target, target.outcome))
                continue
            loan = self._sources.get(key)
            if loan is not None and not loan.released:
                continue
            # A cancelled job needs only quiescence, which every outcome means; one may have been
            # on its way when the cancellation came.
            if not target.cancelled and key not in self._first_tokens:
                continue
            del self._targets[key]
            if loan is not None:
                del self._sources[key]
            token = self._forget_first_token(key)
            received.add(target.request_id)
            if token is not None and not target.cancelled:
                self._reported_tokens[target.request_id] = token
                reports.append((target, target.outcome))
        return received

    def _forget_first_token(self, key: str) -> int | None:
        """The token, if it is known; one that comes later is not kept."""
        self._gone_targets[key] = None
        while len(self._gone_targets) > _GONE_TARGETS_MAX:
            self._gone_targets.popitem(last=False)
        return self._first_tokens.pop(key, None)

    def _report_outcome(self, target: _Target, outcome: "_Outcome") -> None:
        if isinstance(outcome, TargetFailed):
            self._failed_blocks.update(
                target.block_ids[index - target.first_index] for index in outcome.bad_indices
            )
        if target.is_pull:
            self._report_pulled(target, outcome)
            return
        match outcome:
            case TargetFailed():
                self._send(
                    LoadFailed(
                        key=outcome.key,
                        reason=outcome.reason,
                        transferred_bytes=outcome.transferred_bytes,
                    )
                )
            case TargetCompleted():
                self._send(
                    Ready(
                        key=outcome.key,
                        transferred_bytes=outcome.transferred_bytes,
                        transfer_s=outcome.duration_s,
                    )
                )
            case TargetCancelled():
                pass

    def _report_pulled(self, target: _Target, outcome: "_Outcome") -> None:
        if isinstance(outcome, TargetCancelled):
            return
        block_count, failed_reason = len(target.block_ids), ""
        if isinstance(outcome, TargetFailed):
            block_count = min(outcome.bad_indices) - target.first_index
            failed_reason = outcome.reason
        self._send(
            Pulled(
                key=outcome.key,
                block_count=block_count,
                size_bytes=outcome.transferred_bytes,
                pull_s=time.monotonic() - target.opened_s,
                failed_reason=failed_reason,
            )
        )

    def _on_link_message(self, message: LinkMessage) -> None:
        match message:
            case Control():
                self._transfer.deliver_control(_peer_of(message), message.payload)
            case ConnectRank():
                self._transfer.connect(_peer_of(message))
            case DisconnectRank():
                self._transfer.disconnect(_peer_of(message))
            case AskConnections():
                self._transfer.look(lambda found: self._send(_connections_of(found)))
            case AskTable():
                with self._lock:
                    self._asked_keys = [*self._asked_keys[-_ASKED_KEYS_MAX + 1 :], message.key]
            case FirstToken():
                with self._lock:
                    if message.key in self._gone_targets:
                        return
                    self._first_tokens[message.key] = message.token_id
                    while len(self._first_tokens) > _EARLY_FIRST_TOKENS_MAX:
                        self._first_tokens.popitem(last=False)
            case DropSource():
                with self._lock:
                    source = self._sources.get(message.key)
                    is_held = source is not None and not source.released
                if is_held:  # else nothing is left to free, and an abort would be counted
                    self._abort_source(message.key, message.reason)
            case _:
                raise AssertionError(f"the daemon sent {type(message).__name__} to a worker")

    def _send_control(self, peer: Peer, payload: bytes) -> None:
        self._send(
            Control(
                peer_name=peer.identity.name,
                peer_uuid=peer.identity.uuid,
                peer_boot_epoch=peer.identity.boot_epoch,
                peer_rank=peer.rank,
                peer_address=peer.control_address,
                peer_ucx_address=peer.ucx_address,
                payload=payload,
            )
        )

    def _send(self, message: LinkMessage) -> None:
        if self._link is not None:
            self._link.send(message)

    def _report_counters(self) -> None:
        counters = {name: float(value) for name, value in self._transfer.stats().items()}
        counters["held_prompts"] = float(self._held_prompt_count)
        if counters != self._counters:
            self._counters = counters
            self._send(Counters(values=counters))


def _peer_of(message: Control | ConnectRank | DisconnectRank) -> Peer:
    return Peer(
        identity=NodeIdentity(
            name=NodeName(message.peer_name),
            uuid=message.peer_uuid,
            boot_epoch=message.peer_boot_epoch,
        ),
        rank=message.peer_rank,
        control_address=message.peer_address,
        ucx_address=message.peer_ucx_address,
    )


def _blocks_of(census: BlockCensus) -> Blocks:
    told = {**asdict(census)}
    for name in ("lost_ids", "doubled_ids"):
        told[name] = told[name][:NAMED_COUNT_MAX]
    return Blocks(**told)


def _connections_of(connections: tuple[Connection, ...]) -> Connections:
    return Connections(
        peer_uuids=[one.peer.uuid for one in connections],
        peer_boot_epochs=[one.peer.boot_epoch for one in connections],
        peer_ranks=[one.peer.rank for one in connections],
        lanes=[",".join(one.lanes) for one in connections],
        received_bytes=[one.received_bytes for one in connections],
        bytes_per_s=[one.bytes_per_s for one in connections],
    )
