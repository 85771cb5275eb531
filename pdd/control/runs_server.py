"""The Runs service: schedulers ask for a key, and follow each other's requests."""

from collections.abc import Sequence
from typing import Any, Protocol

import grpc
import structlog

from pdd.control.both_ways import first_end
from pdd.control.convert import frame_to_proto
from pdd.control.group_convert import plan_to_proto
from pdd.control.leader_server import NotLeading
from pdd.control.outbox import Outbox, OutboxOverflow
from pdd.control.run_convert import end_to_proto, error_to_proto, job_to_proto
from pdd.control.versions import BATCH_BYTES_MAX
from pdd.core.errors import PddError
from pdd.core.frames import Frame, token_frame
from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import Ended, GenerateRequest, Plan
from pdd.rpc.v1 import runs_pb2, runs_pb2_grpc
from pdd.tls.claims import PeerRefused, check_claim
from pdd.tls.identity import CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)


class Followed(Protocol):
    """A request that runs or ran here."""

    @property
    def request(self) -> GenerateRequest:
        """What was asked for."""
        ...

    def listen(self, sink: Sink, *, cuts: Sequence[int]) -> None:
        """Tell it all, in the frames that it came in, then what is new; no frame spans one of the
        ``cuts``, one for each choice or none. Raises PddError."""
        ...

    def leave(self, sink: Sink) -> None:
        """It wants to hear no more. Idempotent."""
        ...


class RunsHandler(Protocol):
    """What the daemon behind it answers. All calls come on the event loop."""

    async def claim_here(self, key: bytes, scheduler: str, *, released_by: str) -> str:
        """Who has a key. Raises NotLeading."""
        ...

    def remember_here(self, key: bytes, scheduler: str) -> None:
        """A scheduler leads and is about to run a key. Raises NotLeading: it does not lead."""
        ...

    async def find_here(self, request_id: RequestId, *, tenant: str) -> Followed:
        """A request by its id. Raises PddError: there is none, or it is refused."""
        ...

    async def find_by_key(self, path: str, tenant: str, key: str) -> Followed:
        """The one that its client gave that key. Raises likewise."""
        ...

    def end_here(self, request_id: RequestId, *, tenant: str) -> None:
        """Cancel a request that runs here. Raises PddError: there is none, or it is over."""
        ...


class RunsServicer(runs_pb2_grpc.RunsServicer):
    """grpc.aio servicer; see runs.proto. Over TLS a scheduler asks, under its own name, and nobody
    else does."""

    def __init__(self, handler: RunsHandler, *, security: Security = PLAIN) -> None:
        self._handler = handler
        self._security = security

    async def Claim(self, request: runs_pb2.ClaimRequest, context: Any) -> runs_pb2.ClaimResponse:
        """Who may run a key."""
        await self._admit(request.scheduler, context)
        try:
            holder = await self._handler.claim_here(
                request.resume_key, request.scheduler, released_by=request.released_by
            )
        except NotLeading as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # not reached: abort raised
        return runs_pb2.ClaimResponse(holder=holder)

    async def Remember(
        self, request: runs_pb2.RememberRequest, context: Any
    ) -> runs_pb2.RememberResponse:
        """Note what a leader has claimed."""
        await self._admit(request.scheduler, context)
        try:
            self._handler.remember_here(request.resume_key, request.scheduler)
        except NotLeading as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return runs_pb2.RememberResponse()

    async def Follow(self, request: runs_pb2.FollowRequest, context: Any) -> None:
        """Tell all of a request."""
        await self._admit(request.scheduler, context)
        try:
            followed = await self._find(request)
        except PddError as error:
            item = runs_pb2.FollowItem(failed=error_to_proto(error))
            await context.write(runs_pb2.FollowResponse(items=[item]))
            return
        teller = _Teller()
        teller.outbox.put(runs_pb2.FollowItem(job=job_to_proto(followed.request)))
        try:
            try:
                followed.listen(teller, cuts=tuple(request.known_token_counts))
            except PddError as error:
                teller.failed(error)
            fault = await first_end(
                self._write(teller, context),
                teller.outbox.wait_overflow(),
                faults=(grpc.RpcError, grpc.aio.UsageError, OutboxOverflow),
            )
        finally:
            followed.leave(teller)
        if fault is not None:
            log.info("follower_lost", scheduler=request.scheduler, reason=str(fault))

    async def End(self, request: runs_pb2.EndRequest, context: Any) -> runs_pb2.EndResponse:
        """Cancel a request."""
        await self._admit(request.scheduler, context)
        try:
            self._handler.end_here(RequestId(request.request_id), tenant=request.tenant)
        except PddError as error:
            return runs_pb2.EndResponse(failed=error_to_proto(error))
        return runs_pb2.EndResponse()

    async def _find(self, request: runs_pb2.FollowRequest) -> Followed:
        if request.idempotency_key:
            return await self._handler.find_by_key(
                request.path, request.tenant, request.idempotency_key
            )
        return await self._handler.find_here(RequestId(request.request_id), tenant=request.tenant)

    async def _write(self, teller: "_Teller", context: Any) -> None:
        while True:
            waiting = await teller.outbox.take()
            while waiting:
                size = fitting(waiting)
                await context.write(runs_pb2.FollowResponse(items=waiting[:size]))
                if waiting[size - 1].WhichOneof("item") in ("end", "failed"):
                    return
                del waiting[:size]

    async def _admit(self, scheduler: str, context: Any) -> None:
        try:
            check_claim(
                self._security.caller(context), name=scheduler, roles=(CertificateRole.SCHEDULER,)
            )
        except PeerRefused as error:
            log.warning("caller_refused", peer=context.peer(), reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))


class _Teller:
    """A sink. Bound: ``OUTBOX_LENGTH_MAX`` items, at which the follower is given up: to it this
    scheduler is lost then."""

    def __init__(self) -> None:
        self.outbox: Outbox[runs_pb2.FollowItem] = Outbox()

    def planned(self, plan: Plan) -> None:
        self.outbox.put(runs_pb2.FollowItem(plan=plan_to_proto(plan)))

    def tokens(self, frame: Frame) -> None:
        self.outbox.put(runs_pb2.FollowItem(frame=frame_to_proto(frame, generation=0)))

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        self.tokens(token_frame(request_id, index, token_id, text_offset, text))

    def ended(self, ended: Ended) -> None:
        self.outbox.put(runs_pb2.FollowItem(end=end_to_proto(ended)))

    def failed(self, error: PddError) -> None:
        self.outbox.put(runs_pb2.FollowItem(failed=error_to_proto(error)))


def fitting(items: Sequence[runs_pb2.FollowItem]) -> int:
    """How many of the first items share a message; at least one."""
    size_bytes = 0
    for count, item in enumerate(items):
        size_bytes += item.ByteSize()
        if count and size_bytes > BATCH_BYTES_MAX:
            return count
    return len(items)
