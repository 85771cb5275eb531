"""The leader's end of the other schedulers' streams: the Decisions service."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import grpc
import structlog

from pdd.control.both_ways import first_end
from pdd.control.group_convert import GROUP_VERSION
from pdd.control.outbox import Outbox, OutboxOverflow
from pdd.control.versions import BATCH_BYTES_MAX, accepted_versions
from pdd.rpc.v1 import decisions_pb2, decisions_pb2_grpc
from pdd.tls.claims import PeerRefused, check_claim
from pdd.tls.identity import CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

BEAT_INTERVAL_S = 0.5
SILENCE_S = 3.0
"""A leader that says nothing for so long is lost."""
_HELLO_TIMEOUT_S = 5.0


class NotLeading(Exception):
    """This scheduler does not lead, or knows no scheduler of that name. The message says more."""


class HolderSession:
    """One scheduler that asks. ``send`` may be called from the event loop at any time."""

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        self.outbox: Outbox[decisions_pb2.LeaderItem] = Outbox()
        self.closed = asyncio.Event()
        self.close_reason = ""

    def send(self, item: decisions_pb2.LeaderItem) -> None:
        """Queue a decision."""
        self.outbox.put(item)

    def close(self, reason: str) -> None:
        """End the stream from this side. Idempotent."""
        self.close_reason = self.close_reason or reason
        self.closed.set()


class LeaderHandler(Protocol):
    """Who is told what the others hold. All calls come on the event loop, in stream order."""

    def holder_attached(self, session: HolderSession) -> None:
        """Raises NotLeading."""
        ...

    def holder_said(self, session: HolderSession, item: decisions_pb2.HolderItem) -> None:
        """Any item after the hello. Raises ValueError: it cannot be read."""
        ...

    def holder_detached(self, session: HolderSession, reason: str) -> None:
        """The stream is over."""
        ...


class DecisionsServicer(decisions_pb2_grpc.DecisionsServicer):
    """grpc.aio servicer; see decisions.proto. Over TLS a scheduler asks, under its own name, and
    nobody else does."""

    def __init__(self, handler: LeaderHandler, *, security: Security = PLAIN) -> None:
        self._handler = handler
        self._security = security

    async def Ask(self, request_iterator: Any, context: Any) -> None:
        """One scheduler's stream, from hello to end."""
        items, session = await self._join(context)
        reason = "its stream broke"
        try:
            welcome = decisions_pb2.LeaderItem(
                welcome=decisions_pb2.LeaderWelcome(version=GROUP_VERSION)
            )
            await context.write(decisions_pb2.AskResponse(items=[welcome]))
            for item in items:
                self._handler.holder_said(session, item)
            reason = await self._talk(session, context)
        except asyncio.CancelledError:
            reason = "connection lost"
            raise
        finally:
            self._handler.holder_detached(session, reason)
        if session.closed.is_set():
            await context.abort(grpc.StatusCode.ABORTED, reason)

    async def _join(self, context: Any) -> tuple[list[decisions_pb2.HolderItem], HolderSession]:
        first = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                first = await context.read()
        if first is None or first is grpc.aio.EOF or not first.items:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no hello came")
        assert first is not None  # abort raised
        hello, *items = first.items
        if hello.WhichOneof("item") != "hello":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the first item must be hello")
        said = hello.hello
        try:
            check_claim(
                self._security.caller(context),
                name=said.scheduler,
                roles=(CertificateRole.SCHEDULER,),
            )
        except PeerRefused as error:
            log.warning("caller_refused", peer=context.peer(), reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        if said.version not in accepted_versions(GROUP_VERSION):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{said.scheduler} speaks version {said.version} of decisions, this scheduler "
                f"{GROUP_VERSION}: upgrade one release at a time",
            )
        session = HolderSession(said.scheduler)
        try:
            self._handler.holder_attached(session)
        except NotLeading as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return items, session

    async def _talk(self, session: HolderSession, context: Any) -> str:
        """Both directions until either ends; why it ended."""
        fault = await first_end(
            session.closed.wait(),
            _beat(session),
            self._read(session, context),
            self._write(session, context),
            session.outbox.wait_overflow(),
            faults=(grpc.RpcError, grpc.aio.UsageError, OutboxOverflow, ValueError),
        )
        if fault is not None:
            return f"stream broke: {fault}"
        return session.close_reason or "the scheduler closed its stream"

    async def _read(self, session: HolderSession, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            for item in message.items:
                self._handler.holder_said(session, item)

    async def _write(self, session: HolderSession, context: Any) -> None:
        while True:
            waiting = await session.outbox.take()
            while waiting:
                count = fitting(waiting)
                await context.write(decisions_pb2.AskResponse(items=waiting[:count]))
                del waiting[:count]


async def _beat(session: HolderSession) -> None:
    """gRPC's keepalive takes ten seconds to notice a process that was stopped."""
    while True:
        session.send(decisions_pb2.LeaderItem(alive=decisions_pb2.LeaderAlive()))
        await asyncio.sleep(BEAT_INTERVAL_S)


def fitting(items: Sequence[decisions_pb2.LeaderItem | decisions_pb2.HolderItem]) -> int:
    """How many of the first items share a message; at least one."""
    size_bytes = 0
    for count, item in enumerate(items):
        size_bytes += item.ByteSize()
        if count and size_bytes > BATCH_BYTES_MAX:
            return count
    return len(items)
