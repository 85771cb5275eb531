"""The transfers of an engine's sequences: one transfer engine per rank, one fate per job.

A prefill job has a *source* from the moment it comes until every rank has released its blocks; a
decode job has a *target* from its reservation until every rank's transfer has ended and, if the
job lives, its first token is here. The batch hears ``transfer_quiet`` exactly when no rank can
touch the blocks of a sequence that is gone.

A prefill job that pulls a prefix has a target too, until that is here or will not come. What it
pulls the decode job *lends*, out of its own reservation: so the blocks cannot be evicted, and
nobody else is asked to hold them. The loan ends with the decode job's own transfer, at the latest:
by then the prefill node has all it needed. ::

    prefill node                                decode node
    target: blocks reserved, ticket  ─────────► loan: the cached blocks of the decode job
         ◄───────────────── blocks ────────────    │ it holds fewer: those are sent, and with the
    computes the rest                              │ last that there are no more (out_of_range)
    source: all finished blocks      ─────────► target: those that it lacks
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from pdd.connector.params import JobKind, SourceNode
from pdd.core.identity import NodeIdentity, NodeName
from pdd.engine.port import PeerControl
from pdd.engine.synthetic.batch import Batch
from pdd.engine.synthetic.kv_rows import Pool
from pdd.engine.synthetic.sequence import Sequence, SequencePhase
from pdd.transfer.engine import TransferEngine
from pdd.transfer.pairing import RankConnection, RankLink
from pdd.transfer.pool import BlockPool
from pdd.transfer.reshard import pair_key
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import (
    Peer,
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)

log = structlog.get_logger(__name__)

_EARLY_FIRST_TOKENS_MAX = 4096
"""First tokens whose job has not come yet. At the bound the oldest is dropped; its job then runs
into its deadline and is planned anew."""

_DIGEST_COUNTER = "digest_mismatches"

UNREACHABLE = "unreachable"
"""Why nothing comes from a node that was not introduced, or has left."""


_RankKey = tuple[int, str]
"""A rank here, and the key of one of its transfers: the job's own where blocks travel whole, else
``pair_key``'s, one for each rank of the peer that sends or gets a part."""


@dataclass(slots=True, kw_only=True)
class Target:
    """The transfers into a loading job's blocks. ``first_bad_index``: the first prompt block that
    some rank did not get, and ``failed_reason`` why. ``lent``: transfers out of them, of a decode
    job that lends its cached prefix."""

    sequence: Sequence
    open: set[_RankKey]
    lent: set[_RankKey]
    transferred_bytes: int = 0
    transfer_s: float = 0.0
    first_bad_index: int | None = None
    failed_reason: str = ""

    @property
    def is_quiet(self) -> bool:
        """Nothing touches its blocks any more."""
        return not self.open and not self.lent


@dataclass(slots=True, kw_only=True)
class _Source:
    sequence: Sequence
    open: set[_RankKey]


class SequenceTransfers:
    """All transfers of one engine. Everything is called on the event loop.

    Args:
        wake: called on the event loop whenever ``take_events`` may have something.
    """

    def __init__(
        self,
        *,
        pools: list[Pool],
        identity: NodeIdentity,
        settings: TransferSettings,
        batch: Batch,
        block_size: int,
        wake: Callable[[], None],
    ) -> None:
        self._batch = batch
        self._block_size = block_size
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._send_control: Callable[[PeerControl], None] | None = None
        self._ranks = [
            TransferEngine(
                pool=BlockPool.contiguous(pool.reshape(-1), block_bytes=pool.shape[1]),
                identity=identity,
                rank=rank,
                settings=settings,
                send_control=self._control_sender(rank),
                on_event=self._on_event,
            )
            for rank, pool in enumerate(pools)
        ]
        self._links: dict[tuple[str, int], dict[tuple[int, int], RankLink]] = {}
        self._sources: dict[str, _Source] = {}
        self._targets: dict[str, Target] = {}
        self._first_tokens: OrderedDict[str, Mapping[int, int]] = OrderedDict()
        self._damage_seen = Counter[int]()

    def reaches(self, source: SourceNode) -> bool:
        """Whether blocks can be had from that node: it is cut as this one is, or was introduced."""
        is_known = (source.uuid, source.boot_epoch) in self._links
        return is_known or len(source.ucx_addresses) == len(self._ranks)

    async def start(self) -> tuple[bytes, ...]:
        """Start every rank; their UCX addresses. Raises KVTransferError."""
        return tuple([await asyncio.to_thread(rank.start) for rank in self._ranks])

    @property
    def fingerprint(self) -> dict[str, str]:
        """The transfer engines' part of the node's, once started: the same for every rank."""
        return self._ranks[0].fingerprint

    async def close(self) -> None:
        """Stop every rank; open transfers get no further event. Idempotent."""
        for rank in self._ranks:
            await asyncio.to_thread(rank.close)

    # --- a prefill job's blocks --------------------------------------------------------------

    def open_source(self, sequence: Sequence) -> None:
        """Known from the job's arrival on, so that a ticket which comes while the prompt waits its
        turn is kept until the request's own deadline.

        Who will fetch the blocks is not known yet: they are offered in every cut that some peer
        has. What nobody fetches is released when the scheduler cancels the job, at the latest by
        its deadline.
        """
        sequence.source_open = True
        keys = self._source_keys(sequence.key)
        self._sources[sequence.key] = _Source(sequence=sequence, open=set(keys))
        for number, key in keys:
            self._ranks[number].source_open(key, deadline_s=sequence.job.deadline_s)

    def offer(self, sequence: Sequence) -> None:
        """Give a prompt's finished blocks to its transfer; the last, partial one with its end."""
        if not sequence.source_open:
            return
        last = sequence.computed >= sequence.given_count
        size = self._block_size
        count = -(-sequence.given_count // size) if last else sequence.computed // size
        if count > sequence.sent_block_count:
            for number, key in sorted(self._sources[sequence.key].open):
                self._ranks[number].source_append(
                    key,
                    first_index=sequence.sent_block_count,
                    block_ids=sequence.blocks[sequence.sent_block_count : count],
                    last=last,
                )
            sequence.sent_block_count = count

    def abort_source(self, key: str, reason: str) -> None:
        """Nobody will fetch this job's blocks. Unknown keys are ignored."""
        if key in self._sources:
            self._batch.quarantine(key)
            for number, rank_key in sorted(self._sources[key].open):
                self._ranks[number].source_abort(rank_key, reason)

    # --- a decode job's blocks, a prefill job's pulled prefix ----------------------------------

    def open_target(self, sequence: Sequence) -> None:
        """Have the reserved blocks filled that the prefix cache did not have, and offer those that
        it had if they are to be lent. From a node that has left, nothing comes."""
        job, pull = sequence.job, sequence.job.pull
        source = job.source if pull is None else pull.source
        assert source is not None, "checked when the job came"
        first_index = sequence.loads_from_index
        if not self.reaches(source):  # it has left while the job waited its turn
            self._targets[sequence.key] = Target(
                sequence=sequence,
                open=set(),
                lent=set(),
                first_bad_index=first_index,
                failed_reason=UNREACHABLE,
            )
            return
        peers = self._source_ranks(sequence.key, source)
        target = Target(sequence=sequence, open=set(peers), lent=set())
        self._targets[sequence.key] = target
        if job.lends:
            target.lent.update(self._loan_keys(sequence.key, source))
        for number, key in sorted(target.lent):
            self._ranks[number].source_open(key, deadline_s=job.deadline_s)
            lent = sequence.blocks[: sequence.lent_block_count]
            self._ranks[number].source_append(key, first_index=0, block_ids=lent, last=True)
        for (number, key), peer in peers.items():
            self._ranks[number].target_open(
                key,
                source=peer,
                first_index=first_index,
                block_ids=sequence.blocks[first_index:],
                deadline_s=job.deadline_s if pull is None else pull.wait_s,
            )

    def cancel_target(self, key: str) -> None:
        """A loading sequence has ended. Its blocks come back when every rank says so."""
        target = self._targets[key]
        for number, rank_key in sorted(target.open):
            self._ranks[number].target_cancel(rank_key)
        self._end_loan(target)
        self._forget_if_quiet(key, target)

    def first_tokens(self, key: str, token_ids: Mapping[int, int]) -> None:
        """Output token 0 of a decode job's choices; may come before the job."""
        self._first_tokens[key] = token_ids
        while len(self._first_tokens) > _EARLY_FIRST_TOKENS_MAX:
            self._first_tokens.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop a first token that nobody will ask for."""
        self._first_tokens.pop(key, None)

    def has_arrived(self, key: str) -> bool:
        """Whether a decode job's blocks are final, first token or not."""
        target = self._targets.get(key)
        return target is not None and target.is_quiet

    def take_loaded(self) -> Iterator[Target]:
        """Jobs whose blocks are final, and of decode jobs those whose first tokens are here; the
        sequence joins the batch, with the first token of an only choice appended."""
        done = [
            key
            for key, target in self._targets.items()
            if target.is_quiet
            and (target.sequence.job.kind is JobKind.PREFILL or key in self._first_tokens)
        ]
        for key in done:
            target = self._targets.pop(key)
            sequence, token_ids = target.sequence, self._first_tokens.pop(key, {})
            if sequence.choice is None:
                sequence.first_tokens = token_ids
            elif token_ids:
                sequence.tokens.append(token_ids[sequence.choice.index])
            self._batch.loaded(sequence, first_bad_index=target.first_bad_index)
            yield target

    # --- both --------------------------------------------------------------------------------

    def take_events(self) -> None:
        """Obey what the ranks have told. Raises KVTransferError when one of them has died."""
        for number, rank in enumerate(self._ranks):
            events = rank.poll()
            for event in events:
                match event:
                    case SourceReleased():
                        self._on_source_released(number, event)
                    case TargetCompleted() | TargetFailed() | TargetCancelled():
                        self._on_target_ended(number, event)
            if events:
                self._note_damage(number, rank)

    def stats(self) -> Counter[str]:
        """The ranks' counters, added up."""
        total: Counter[str] = Counter()
        for rank in self._ranks:
            total.update(rank.stats())
        return total

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        """Where messages to peers go."""
        self._send_control = send

    def deliver_control(self, message: PeerControl) -> None:
        """A message has come in. One for a rank that is not here is from a peer with another
        number of ranks, whose ticket will be refused."""
        if message.own_rank < len(self._ranks):
            self._ranks[message.own_rank].deliver_control(
                Peer(
                    identity=message.peer,
                    rank=message.peer_rank,
                    control_address=message.peer_address,
                    ucx_address=message.peer_ucx_address,
                ),
                message.payload,
            )

    def connect(self, links: Iterable[RankLink]) -> None:
        """See ``Engine.connect``."""
        for link in links:
            peer = link.peer
            known = self._links.setdefault((peer.identity.uuid, peer.identity.boot_epoch), {})
            known[link.own_rank, peer.rank] = link
            rank = self._ranks[link.own_rank]
            if link.send is not None or link.receive is not None:
                rank.set_shares(link.peer, send=link.send, receive=link.receive)
            rank.connect(link.peer)

    def disconnect(self, links: Iterable[RankLink]) -> None:
        """See ``Engine.disconnect``."""
        for link in links:
            identity = link.peer.identity
            self._links.pop((identity.uuid, identity.boot_epoch), None)
            self._ranks[link.own_rank].disconnect(link.peer)

    def connections(self) -> tuple[RankConnection, ...]:
        """See ``Engine.connections``."""
        return tuple(
            RankConnection(own_rank=number, connection=connection)
            for number, rank in enumerate(self._ranks)
            for connection in rank.connections()
        )

    # --- inside ------------------------------------------------------------------------------

    def _on_source_released(self, number: int, event: SourceReleased) -> None:
        job_key = _job_key(event.key)
        source = self._sources.get(job_key)
        if source is None:
            target = self._targets[job_key]
            target.lent.discard((number, event.key))
            self._forget_if_quiet(job_key, target)
            return
        source.open.discard((number, event.key))
        if not source.open:
            del self._sources[job_key]
            source.sequence.source_open = False  # nothing reads its blocks, should it still run
            if job_key not in self._targets:
                self._batch.transfer_quiet(job_key)

    def _on_target_ended(
        self, number: int, event: TargetCompleted | TargetFailed | TargetCancelled
    ) -> None:
        job_key = _job_key(event.key)
        target = self._targets[job_key]
        target.open.discard((number, event.key))
        match event:
            case TargetCompleted():
                target.transferred_bytes += event.transferred_bytes
                target.transfer_s = max(target.transfer_s, event.duration_s)
            case TargetFailed():
                target.transferred_bytes += event.transferred_bytes
                target.failed_reason = target.failed_reason or event.reason.value
                bad = min(event.bad_indices, default=target.sequence.loads_from_index)
                known = target.first_bad_index
                target.first_bad_index = bad if known is None else min(bad, known)
            case TargetCancelled():
                pass
        if not target.open:
            self._end_loan(target)
        self._forget_if_quiet(job_key, target)

    def _forget_if_quiet(self, key: str, target: Target) -> None:
        if target.is_quiet and target.sequence.phase is SequencePhase.ENDED:
            del self._targets[key]
            if key not in self._sources:
                self._batch.transfer_quiet(key)

    def _end_loan(self, target: Target) -> None:
        """Nobody needs what it lends any more: void where that was fetched."""
        for number, rank_key in sorted(target.lent):
            self._ranks[number].source_abort(rank_key, "the loan is over")

    def _loan_keys(self, key: str, target: SourceNode) -> list[_RankKey]:
        """The transfers by which a decode job's prefix is lent to the node that computes the rest
        of its prompt."""
        links = self._links.get((target.uuid, target.boot_epoch))
        if links is None:
            return [(number, key) for number in range(len(self._ranks))]
        return [
            (link.own_rank, _key_to(link, key))
            for link in links.values()
            if _is_whole(link) or link.send is not None
        ]

    def _source_keys(self, key: str) -> list[_RankKey]:
        """The transfers by which a job's blocks are offered."""
        links = [link for peer in self._links.values() for link in peer.values()]
        if not links:
            return [(number, key) for number in range(len(self._ranks))]
        keys = [
            (link.own_rank, _key_to(link, key))
            for link in links
            if _is_whole(link) or link.send is not None
        ]
        return list(dict.fromkeys(keys))

    def _source_ranks(self, key: str, source: SourceNode) -> dict[_RankKey, Peer]:
        """The transfers by which a decode job's blocks come, and from whom."""
        links = self._links.get((source.uuid, source.boot_epoch))
        if links is not None:
            return {
                (link.own_rank, _key_from(link, key)): link.peer
                for link in links.values()
                if _is_whole(link) or link.receive is not None
            }
        identity = NodeIdentity(
            name=NodeName(source.name), uuid=source.uuid, boot_epoch=source.boot_epoch
        )
        return {
            (number, key): Peer(
                identity=identity,
                rank=number,
                control_address=source.control_address,
                ucx_address=source.ucx_addresses[number],
            )
            for number in range(len(self._ranks))
        }

    def _note_damage(self, number: int, rank: TransferEngine) -> None:
        count = int(rank.stats().get(_DIGEST_COUNTER, 0))
        if count > self._damage_seen[number]:
            self._damage_seen[number] = count
            log.warning(
                "kv_digest_mismatched",
                rank=number,
                chunk_count=count,
                action="asked for the bytes again; at the second time this node computes them",
            )

    def _control_sender(self, number: int) -> Callable[[Peer, bytes], None]:
        def hand_over(peer: Peer, payload: bytes) -> None:  # in the transfer thread
            message = PeerControl(
                own_rank=number,
                peer=peer.identity,
                peer_rank=peer.rank,
                peer_address=peer.control_address,
                peer_ucx_address=peer.ucx_address,
                payload=payload,
            )
            self._call_from_thread(lambda: self._control_out(message))

        return hand_over

    def _control_out(self, message: PeerControl) -> None:
        if self._send_control is not None:  # else lost on the way: the transfer repeats it
            self._send_control(message)

    def _on_event(self) -> None:  # in the transfer thread
        self._call_from_thread(self._wake)

    def _call_from_thread(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


def _is_whole(link: RankLink) -> bool:
    return link.send is None and link.receive is None


def _key_to(link: RankLink, key: str) -> str:
    if _is_whole(link):
        return key
    return pair_key(key, source_rank=link.own_rank, target_rank=link.peer.rank)


def _key_from(link: RankLink, key: str) -> str:
    if _is_whole(link):
        return key
    return pair_key(key, source_rank=link.peer.rank, target_rank=link.own_rank)


def _job_key(key: str) -> str:
    """The job of a transfer. A job's own key ends with its generation, a number."""
    head, _, tail = key.rpartition("/")
    return head if ">" in tail else key
