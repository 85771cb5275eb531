"""What clients and operators ask of this replica: the server side of `Replica`.

Over TLS only schedulers submit; an operator's certificate (role client) looks and steers, and a
node's does neither.

Bounds: ASKED_MAX unanswered submissions on one stream; beyond it a submission is answered
REJECTED (inbox_full) at once. Of a caller that does not fetch its answers nothing is read any more
once UNFETCHED_MAX wait for it: gRPC then holds it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import structlog

from pdd.raft.core import Refusal
from pdd.raft.proposals import OutcomeKind
from pdd.raft.values import NodeId
from pdd.replication.driver import Driver
from pdd.replication.submissions import (
    INBOX_FULL,
    Answer,
    CommandSubmission,
    QuerySubmission,
)
from pdd.replication.watching import WatchedMachine, Watcher, WatchOverrunError
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import ReplicaServicer
from pdd.tls.claims import PeerRefused, check_role
from pdd.tls.identity import CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

ASKED_MAX = 4096
UNFETCHED_MAX = 2 * ASKED_MAX
"""Above ASKED_MAX, so that one who asks too much and fetches the answers hears so."""
WATCH_MESSAGE_BYTES = 1024 * 1024
OPERATORS = (CertificateRole.SCHEDULER, CertificateRole.CLIENT)

KINDS = {
    OutcomeKind.OK: pb.OUTCOME_KIND_OK,
    OutcomeKind.REJECTED: pb.OUTCOME_KIND_REJECTED,
    OutcomeKind.UNKNOWN: pb.OUTCOME_KIND_UNKNOWN,
}


class ClientService(ReplicaServicer):
    def __init__(
        self, driver: Driver, watched: WatchedMachine, *, security: Security = PLAIN
    ) -> None:
        self._driver = driver
        self._watched = watched
        self._security = security

    async def _admit(self, context: grpc.aio.ServicerContext, *roles: CertificateRole) -> None:
        try:
            check_role(self._security.caller(context), roles)
        except PeerRefused as error:
            log.warning("raft_caller_refused", peer=context.peer(), reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def Submit(
        self,
        request_iterator: AsyncIterator[pb.SubmitRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.SubmitResponse]:
        await self._admit(context, CertificateRole.SCHEDULER)
        stream = _Stream()
        reading = asyncio.create_task(self._read(request_iterator, stream))
        reading.add_done_callback(lambda _: stream.wake.set())
        try:
            while True:
                await stream.wake.wait()
                stream.wake.clear()
                response = stream.take()
                if response.outcomes:
                    yield response
                    stream.fetched(len(response.outcomes))
                if reading.done():
                    fault = reading.result()
                    if fault:
                        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
                    if stream.asked_count == 0:
                        return
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[pb.SubmitRequest], stream: _Stream) -> str:
        """What is wrong with the stream; empty when it just ended."""
        async for request in requests:
            for submission in request.submissions:
                if stream.asked_count >= UNFETCHED_MAX:
                    await stream.until_room()
                stream.asked_count += 1
                ticket = _Ticket(stream, submission.submission_id)
                if stream.asked_count > ASKED_MAX:
                    ticket.answer(Answer(kind=OutcomeKind.REJECTED, reason=INBOX_FULL))
                    continue
                match submission.WhichOneof("body"):
                    case "command":
                        sent = submission.command
                        self._driver.submit(
                            CommandSubmission(ticket, sent.session_id, sent.sequence, sent.body)
                        )
                    case "query":
                        self._driver.submit(QuerySubmission(ticket, submission.query))
                    case "stale_query":
                        result = self._driver.stale_query(submission.stale_query)
                        ticket.answer(Answer(OutcomeKind.OK, result))
                    case _:
                        return f"submission {submission.submission_id} has no body"
        return ""

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchResponse]:
        await self._admit(context, CertificateRole.SCHEDULER)
        watcher = self._watched.watch()
        try:
            while True:
                for response in await _next_responses(watcher):
                    yield response
        except WatchOverrunError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._watched.forget(watcher)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        await self._admit(context, *OPERATORS)
        status = self._driver.status()
        return pb.GetStatusResponse(
            replica=status.node,
            role=status.role,
            term=status.term,
            leader=status.leader or "",
            leader_address=self._driver.leader_address,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            last_index=status.last_index,
            snapshot_index=status.snapshot_index,
            state_hash=status.state_hash,
            longest_pause_us=int(status.longest_pause_s * 1e6),
            dropped_message_count=status.dropped_message_count,
        )

    async def TransferLeadership(
        self, request: pb.TransferLeadershipRequest, context: grpc.aio.ServicerContext
    ) -> pb.TransferLeadershipResponse:
        await self._admit(context, *OPERATORS)
        refusal = self._driver.transfer_leadership(NodeId(request.target))
        if refusal is Refusal.UNKNOWN_TARGET:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"target {request.target!r} is no other voter"
            )
        if refusal is not None:
            leader = self._driver.leader_address or "not known here"
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"{refusal}; the leader is {leader}"
            )
        return pb.TransferLeadershipResponse()

    async def TakeSnapshot(
        self, request: pb.TakeSnapshotRequest, context: grpc.aio.ServicerContext
    ) -> pb.TakeSnapshotResponse:
        await self._admit(context, *OPERATORS)
        return pb.TakeSnapshotResponse(snapshot_index=await self._driver.take_snapshot())


async def _next_responses(watcher: Watcher) -> list[pb.WatchResponse]:
    """Several entries share a message, up to about WATCH_MESSAGE_BYTES."""
    responses: list[pb.WatchResponse] = []
    size_bytes = 0
    for seen in await watcher.take():
        if seen.snapshot is not None:
            responses.append(pb.WatchResponse(snapshot=seen.snapshot))
            size_bytes = WATCH_MESSAGE_BYTES
            continue
        if not responses or size_bytes >= WATCH_MESSAGE_BYTES:
            responses.append(pb.WatchResponse())
            size_bytes = 0
        responses[-1].entries.append(pb.WatchedEntry(index=seen.index, body=seen.body))
        size_bytes += seen.size_bytes
    return responses


class _Stream:
    """Answers that wait for the next write."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.asked_count = 0
        """Submissions that were read and whose outcomes the caller has not fetched."""
        self._has_room = asyncio.Event()
        self._answers: list[tuple[int, Answer]] = []

    def put(self, submission_id: int, answer: Answer) -> None:
        self._answers.append((submission_id, answer))
        if len(self._answers) == 1:
            self.wake.set()

    def fetched(self, count: int) -> None:
        self.asked_count -= count
        self._has_room.set()

    async def until_room(self) -> None:
        """Until the caller has fetched some outcomes."""
        while self.asked_count >= UNFETCHED_MAX:
            self._has_room.clear()
            await self._has_room.wait()

    def take(self) -> pb.SubmitResponse:
        """What has been answered since; it may be nothing."""
        response = pb.SubmitResponse()
        for submission_id, answer in self._answers:
            outcome = response.outcomes.add()
            outcome.submission_id = submission_id
            outcome.kind = KINDS[answer.kind]
            outcome.result = answer.result
            if answer.kind is not OutcomeKind.OK:
                outcome.reason = answer.reason
                outcome.leader_address = answer.leader_address
        self._answers.clear()
        return response


class _Ticket:
    """Where one answer goes. The stream may be gone by then; its list goes with it."""

    __slots__ = ("_stream", "_submission_id")

    def __init__(self, stream: _Stream, submission_id: int) -> None:
        self._stream = stream
        self._submission_id = submission_id

    def answer(self, answer: Answer) -> None:
        self._stream.put(self._submission_id, answer)
