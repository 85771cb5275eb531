"""A node's end of its stream to one scheduler: attach, stay attached, attach again."""

import asyncio
from typing import Any, Protocol

import grpc
import structlog

from pdd.control.both_ways import first_end
from pdd.control.convert import Said, messages_of
from pdd.control.outbox import Outbox, OutboxOverflow, coalesce
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.core.frames import Frame
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_BACKOFF_S_MIN = 0.1
_BACKOFF_S_MAX = 1.0
_REFUSED_BACKOFF_S = 5.0
_WELCOME_TIMEOUT_S = 10.0
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)
"""A misfit, or a certificate that is not this node's: no retry mends it."""


class SchedulerHandler(Protocol):
    """Who is told what the scheduler says. All calls come on the event loop."""

    def hello(self) -> cluster_pb2.Hello:
        """The node as it is now."""
        ...

    def scheduler_attached(self, link: "SchedulerLink", welcome: cluster_pb2.Welcome) -> None:
        """The scheduler has welcomed this node."""
        ...

    def scheduler_said(self, link: "SchedulerLink", message: cluster_pb2.SchedulerMessage) -> None:
        """Any message after the welcome."""
        ...

    def scheduler_lost(self, link: "SchedulerLink", reason: str) -> None:
        """That scheduler hears nothing any more."""
        ...


class SchedulerLink:
    """One scheduler. ``run`` never ends by itself; cancel it to detach."""

    def __init__(
        self, *, address: str, handler: SchedulerHandler, security: Security = PLAIN
    ) -> None:
        self.address = address
        self._handler = handler
        self._security = security
        self._unreached_reason = ""
        self._outbox: Outbox[cluster_pb2.NodeMessage | Said] = Outbox()

    def send(self, message: cluster_pb2.NodeMessage) -> None:
        """Queue a message for the present stream; void when the stream breaks."""
        self._outbox.put(message)

    def send_frame(self, frame: Frame, generation: int) -> None:
        """Queue a frame. Every token of this node goes through here."""
        self._outbox.put((frame, generation))

    async def wait_sent(self) -> None:
        """Until nothing waits that was queued; at once if the stream has broken."""
        await self._outbox.wait_empty()

    async def run(self) -> None:
        """Keep attached, with a growing pause between attempts."""
        backoff_s = _BACKOFF_S_MIN
        while True:
            attached, refused, reason = await self._attach_once()
            if refused:
                log.error("join_refused", scheduler=self.address, reason=reason)
                backoff_s = _REFUSED_BACKOFF_S
            elif attached:
                log.warning("scheduler_lost", scheduler=self.address, reason=reason)
                backoff_s = _BACKOFF_S_MIN
            else:
                self._note_unreached(reason)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    def _note_unreached(self, reason: str) -> None:
        """A scheduler that is not up yet is no news; one that shakes no hands may be for ever."""
        if not self._security.is_plain and reason != self._unreached_reason:
            self._unreached_reason = reason
            log.warning(
                "scheduler_not_reached",
                scheduler=self.address,
                reason=reason,
                advice="if it is up, it refuses this certificate: compare 'pdd certs show' of both",
            )

    async def _attach_once(self) -> tuple[bool, bool, str]:
        """``(was attached, was refused, why it ended)``."""
        attached = False
        # A channel per attempt: a renewed certificate is used at the next one.
        async with self._security.channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stub = cluster_pb2_grpc.ClusterStub(channel)
            call = stub.Attach()
            try:
                await call.write(cluster_pb2.NodeMessage(hello=self._handler.hello()))
                # Not wait_for: Python 3.11's forgets a cancellation that comes with the answer.
                async with asyncio.timeout(_WELCOME_TIMEOUT_S):
                    welcome = await call.read()
                if welcome is grpc.aio.EOF:
                    return False, False, "closed before the welcome"
                self._outbox = Outbox()
                attached = True
                self._handler.scheduler_attached(self, welcome.welcome)
                reason = await self._talk(call)
            except grpc.aio.AioRpcError as error:
                refused = error.code() in _REFUSALS
                reason = f"{error.code().name}: {error.details()}"
                if attached:
                    self._handler.scheduler_lost(self, reason)
                return attached, refused, reason
            except TimeoutError:
                return False, False, f"no welcome within {_WELCOME_TIMEOUT_S} s"
            except asyncio.CancelledError:
                if attached:
                    self._handler.scheduler_lost(self, "this node is stopping")
                raise
            finally:
                self._outbox.close()
                call.cancel()
            self._handler.scheduler_lost(self, reason)
            return True, False, reason

    async def _talk(self, call: Any) -> str:
        """Both directions until either ends; why it ended."""
        fault = await first_end(
            self._read(call),
            self._write(call),
            self._outbox.wait_overflow(),
            faults=(OutboxOverflow, asyncio.InvalidStateError),
        )
        return "the scheduler closed the stream" if fault is None else str(fault)

    async def _read(self, call: Any) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            self._handler.scheduler_said(self, message)

    async def _write(self, call: Any) -> None:
        while True:
            # One message per engine step.
            for message in coalesce(messages_of(await self._outbox.take()), kinds=("frames",)):
                await call.write(message)
