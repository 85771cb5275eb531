"""Where KV blocks are.

Those of a running request: its nodes are asked, for nobody else knows all of it. Of one that
another scheduler has, that scheduler is asked (``holder_of``); if it does not answer, its nodes
are, as it has last said which they are. One by its key: the block directory tells which nodes hold
it, as far as they have told of their caches.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pdd.cell.sequences import SequenceRow, SequenceTable
from pdd.control.cluster_ports import TooManyAsk, UnknownRequest
from pdd.control.node_session import NodeSession
from pdd.core.identity import NodeName, RequestId
from pdd.daemon.request_stream import RequestStream
from pdd.directory.keys import BlockKey, parse_key, split_keys
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.requests import Phase, Request

_ANSWER_TIMEOUT_S = 2.0
_ASKED_COUNT_MAX = 64
"""Questions without an answer yet. One more is refused; each is over after the timeout."""

_Question = tuple[NodeName, str, int]


class BlockLocator:
    """Reads the scheduler's state, never changes it."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        sessions: Mapping[NodeName, NodeSession],
        streams: Mapping[RequestId, RequestStream],
        holders: Callable[[BlockKey], tuple[str, ...]],
        now: Callable[[], float],
        table: SequenceTable,
    ) -> None:
        """
        Args:
            holders: the nodes that hold a block, by its key.
            table: what other schedulers have; empty where there is none.
        """
        self._core = core
        self._sessions = sessions
        self._streams = streams
        self._holders = holders
        self._now = now
        self._table = table
        self._asked: dict[_Question, list[asyncio.Future[cluster_pb2.BlocksHeld]]] = {}

    def holder_of(self, what: str) -> str | None:
        """The scheduler that has this request, if it runs and is not held here."""
        request = self._core.requests.get(RequestId(what))
        row = self._table.get(what)
        if (
            row is None
            or row.ended
            or row.is_adrift
            or (request is not None and not request.holder)
        ):
            return None
        return row.holder

    async def locate(self, what: str) -> cluster_pb2.LocateBlocksResponse:
        """A request by its id, whose nodes are asked; else a block by its key's 32 hexadecimal
        digits.

        Raises:
            UnknownRequest: it does not run, or nobody holds the block.
            TooManyAsk: try again.
        """
        request = self._core.requests.get(RequestId(what))
        if request is not None:
            return await self._ask_nodes(
                _of_request(request, self._streams.get(request.id)),
                prefill=request.prefill,
                decode=request.decode,
            )
        if (key := parse_key(what)) is not None:
            return self._by_key(key)
        row = self._table.get(what)
        if row is None or row.ended:
            raise UnknownRequest(self._why_unknown(what, row))
        return await self._ask_nodes(
            cluster_pb2.LocateBlocksResponse(
                request_id=what, generation=row.generation, tenant=row.tenant, scheduler=row.holder
            ),
            prefill=NodeName(row.prefill) if row.prefill else None,
            decode=NodeName(row.decode) if row.decode else None,
        )

    async def _ask_nodes(
        self,
        told: cluster_pb2.LocateBlocksResponse,
        *,
        prefill: NodeName | None,
        decode: NodeName | None,
    ) -> cluster_pb2.LocateBlocksResponse:
        request_id = told.request_id
        names = list(dict.fromkeys(filter(None, (prefill, decode))))
        if len(self._asked) + len(names) > _ASKED_COUNT_MAX:
            raise TooManyAsk(f"{len(self._asked)} nodes are being asked already: try again")
        leases = [
            node.leases.get(RequestId(request_id), 0) if (node := self._core.nodes.get(name)) else 0
            for name in names
        ]
        answers = [self._ask(name, request_id, told.generation) for name in names]
        try:
            if answers:
                await asyncio.wait(answers, timeout=_ANSWER_TIMEOUT_S)
        finally:
            for name, answer in zip(names, answers, strict=True):
                self._withdraw((name, request_id, told.generation), answer)
        for name, lease, answer in zip(names, leases, answers, strict=True):
            is_answered = answer.done() and not answer.cancelled()
            told.nodes.add(
                node=name,
                role="prefill" if name == prefill else "decode",
                leased_block_count=lease,
                is_answered=is_answered,
                ranks=answer.result().ranks if is_answered else (),
            )
        return told

    def _by_key(self, key: BlockKey) -> cluster_pb2.LocateBlocksResponse:
        holders = self._holders(key)
        if not holders:
            raise UnknownRequest(
                f"no node is known to hold block {key.hex()}: it was evicted, or its tenant, salt "
                "or model is another one"
            )
        return cluster_pb2.LocateBlocksResponse(key=key, holders=holders)

    def answered(self, node: NodeName, held: cluster_pb2.BlocksHeld) -> None:
        """A node's answer; one that nobody waits for any more is dropped."""
        for answer in self._asked.pop((node, held.request_id, held.generation), ()):
            if not answer.done():
                answer.set_result(held)

    def _ask(
        self, node: NodeName, request_id: str, generation: int
    ) -> "asyncio.Future[cluster_pb2.BlocksHeld]":
        answer: asyncio.Future[cluster_pb2.BlocksHeld]
        answer = asyncio.get_running_loop().create_future()
        self._asked.setdefault((node, request_id, generation), []).append(answer)
        session = self._sessions.get(node)
        if session is None:
            answer.cancel()  # it is lost; the scheduler is about to place the request anew
        else:
            session.ask_blocks(request_id, generation)
        return answer

    def _withdraw(
        self, question: _Question, answer: "asyncio.Future[cluster_pb2.BlocksHeld]"
    ) -> None:
        answers = self._asked.get(question)
        if answers is not None and answer in answers:
            answers.remove(answer)
            if not answers:
                del self._asked[question]

    def _why_unknown(self, request_id: str, row: SequenceRow | None) -> str:
        if row is not None:
            nodes = ", ".join(filter(None, (row.prefill, row.decode))) or "no node"
            ended = datetime.fromtimestamp(row.at_ms / 1000, tz=UTC).isoformat(timespec="seconds")
            return (
                f"request {request_id!r} has ended at {ended} ({row.ended}), on {nodes}, at "
                f"scheduler {row.holder}; what it left in caches is found by the hash of a block"
            )
        decisions = self._core.why(RequestId(request_id), now_s=self._now())
        if not decisions:
            return f"no request {request_id!r}: it is too long ago, or it never was"
        return (
            f"request {request_id!r} has ended: no block is held for it any more, what it left in "
            "caches is found by the hash of a block; 'pdd why' tells where it was"
        )


def _of_request(request: Request, stream: RequestStream | None) -> cluster_pb2.LocateBlocksResponse:
    output_tokens = 0 if stream is None else stream.token_count
    takes_over = request.phase is Phase.DECODING or request.prefill is None
    owner = request.decode if takes_over else request.prefill
    return cluster_pb2.LocateBlocksResponse(
        request_id=request.id,
        generation=request.generation,
        phase=request.phase.value,
        path="" if request.plan is None or request.phase is Phase.QUEUED else request.path().value,
        owner="" if request.phase is Phase.QUEUED else owner or request.prefill or "",
        watermark_tokens=len(request.request.prompt_token_ids) + output_tokens,
        output_tokens=output_tokens,
        tenant=request.request.tenant,
        scheduler=request.holder,
        prompt_keys=split_keys(request.keys),
    )
