"""Asks other schedulers for keys and requests: the Runs service from the other side."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio
import structlog

from pdd.control.convert import frame_from_proto, request_from_submit
from pdd.control.group_convert import plan_from_proto
from pdd.control.retiring_channels import RetiringChannels
from pdd.control.run_convert import end_from_proto, error_from_proto
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.core.errors import PddError, SchedulerStopping
from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import GenerateRequest
from pdd.rpc.v1 import runs_pb2, runs_pb2_grpc
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_CLAIM_TIMEOUT_S = 1.0
_PROBE_TIMEOUT_S = 0.3
"""Below the time in which whoever asks the leader for a key wants its answer."""
FIRST_ITEM_TIMEOUT_S = 1.5
"""A scheduler that says nothing for so long is taken for lost. It may have to tokenise first."""
END_TIMEOUT_S = 1.5


class SchedulerUnreachable(PddError):
    """Another scheduler does not answer, or is of a release that has no such service."""

    def __init__(self, message: str, *, is_older: bool = False) -> None:
        super().__init__(message)
        self.is_older = is_older


class FollowedRun:
    """A request of another scheduler, as ``Inference``: started once, by whoever shows it here."""

    def __init__(
        self,
        *,
        holder: str,
        request: GenerateRequest,
        channel: grpc.aio.Channel,
        call: Any,
        items: list[runs_pb2.FollowItem],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """``channel``: of this call alone. ``items``: that came with the request. ``crashed``: told
        of a bug in what is shown."""
        self.holder = holder
        self.request = request
        self._channel = channel
        self._call = call
        self._items = items
        self._crashed = crashed
        self._showing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        """Show it to a sink. If its scheduler is lost, that fails with SchedulerStopping."""
        self._showing = asyncio.create_task(self._show(sink))
        self._showing.add_done_callback(self._on_shown)

    def cancel(self, request_id: RequestId) -> None:
        """Nobody looks any more: the other scheduler sees it as a client that has left. Idempotent,
        and void once all was shown."""
        if self._showing is None:
            self._close()
        else:
            self._showing.cancel()

    def _on_shown(self, task: asyncio.Task[None]) -> None:
        """Also if it was cancelled before its first step."""
        self._close()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    def _close(self) -> None:
        """A call that anybody refers to keeps its connection, also when its channel is closed; and
        whoever shows this may be kept for long."""
        if self._closing is None:
            self._call.cancel()
            self._call = None
            self._closing = asyncio.create_task(self._channel.close())

    async def _show(self, sink: Sink) -> None:
        reason = "it closed the stream"
        try:
            while True:
                for item in self._items:
                    if _show_one(item, sink):
                        return
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    break
                self._items = list(message.items)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            reason = "gRPC has cancelled the call"  # nobody has cancelled this task
        except ValueError as error:
            reason = f"what it says cannot be read here: {error}"
        log.warning(
            "holder_lost", scheduler=self.holder, request_id=self.request.request_id, reason=reason
        )
        sink.failed(SchedulerStopping(f"scheduler {self.holder}, which has it, was lost: {reason}"))


def _show_one(item: runs_pb2.FollowItem, sink: Sink) -> bool:
    """True: it was the last one. Raises ValueError: it cannot be read."""
    match item.WhichOneof("item"):
        case "plan":
            sink.planned(plan_from_proto(item.plan))
        case "frame":
            sink.tokens(frame_from_proto(item.frame))
        case "end":
            sink.ended(end_from_proto(item.end))
            return True
        case "failed":
            sink.failed(error_from_proto(item.failed))
            return True
        case other:
            raise ValueError(f"unknown item {other!r}")
    return False


class RunsClient:
    """Of one scheduler. A channel per other scheduler for short calls, kept from first use on;
    and one for each request that is followed, of which clients of this scheduler are the bound."""

    def __init__(
        self,
        *,
        scheduler: str,
        addresses: Mapping[str, str],
        crashed: Callable[[BaseException], None],
        security: Security = PLAIN,
    ) -> None:
        """``scheduler``: this one's name. ``addresses``: of all schedulers, by name. ``crashed``:
        see ``FollowedRun``."""
        self._scheduler = scheduler
        self._addresses = addresses
        self._crashed = crashed
        self._security = security
        self._version = security.version()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._retiring = RetiringChannels(grace_s=_CLAIM_TIMEOUT_S)

    @property
    def others(self) -> list[str]:
        """All schedulers but this one."""
        return [name for name in self._addresses if name != self._scheduler]

    async def claim(self, leader: str, key: bytes, *, released_by: str) -> str:
        """Who has a key, as the leader says. Raises SchedulerUnreachable; it may not lead."""
        request = runs_pb2.ClaimRequest(
            scheduler=self._scheduler, resume_key=key, released_by=released_by
        )
        try:
            response = await self._stub(leader).Claim(request, timeout=_CLAIM_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _unreachable(leader, error) from error
        return str(response.holder)

    async def remember(self, scheduler: str, key: bytes) -> None:
        """Tell another scheduler that this one leads and is about to run a key.

        Raises:
            SchedulerUnreachable: it does not answer in time, or follows another leader.
        """
        request = runs_pb2.RememberRequest(scheduler=self._scheduler, resume_key=key)
        try:
            await self._stub(scheduler).Remember(request, timeout=_CLAIM_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _unreachable(scheduler, error) from error

    async def follow(self, holder: str, wanted: runs_pb2.FollowRequest) -> FollowedRun:
        """A request of another scheduler: ``wanted`` names it by its id, or by its key.

        Raises:
            SchedulerUnreachable: it does not answer in time.
            PddError: what it says of the request: none is there, or it is refused.
        """
        wanted.scheduler = self._scheduler
        channel = self._security.channel(self._address_of(holder), options=CHANNEL_OPTIONS)
        call = runs_pb2_grpc.RunsStub(channel).Follow(wanted)
        followed = None
        try:
            async with asyncio.timeout(FIRST_ITEM_TIMEOUT_S):
                first = await call.read()
            if first is grpc.aio.EOF or not first.items:
                raise SchedulerUnreachable(f"scheduler {holder} closed the stream at once")
            head, *items = first.items
            if head.WhichOneof("item") != "job":
                raise error_from_proto(head.failed)
            followed = FollowedRun(
                holder=holder,
                request=request_from_submit(head.job),
                channel=channel,
                call=call,
                items=items,
                crashed=self._crashed,
            )
        except grpc.aio.AioRpcError as error:
            raise _unreachable(holder, error) from error
        except TimeoutError as error:
            raise SchedulerUnreachable(
                f"scheduler {holder} says nothing for {FIRST_ITEM_TIMEOUT_S:g} s"
            ) from error
        finally:
            if followed is None:
                call.cancel()
                await channel.close()
        return followed

    async def end(self, holder: str, request_id: RequestId, *, tenant: str) -> None:
        """Have a request of another scheduler cancelled.

        Raises:
            SchedulerUnreachable: it does not answer within END_TIMEOUT_S.
            PddError: what it says: there is none, or it is over.
        """
        request = runs_pb2.EndRequest(
            scheduler=self._scheduler, request_id=request_id, tenant=tenant
        )
        try:
            response = await self._stub(holder).End(request, timeout=END_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _unreachable(holder, error) from error
        if response.HasField("failed"):
            raise error_from_proto(response.failed)

    async def is_gone(self, scheduler: str) -> bool:
        """Whether nobody listens at its address: the process that did is over. False where that
        cannot be told: it stands still, or is cut off, or its host is down."""
        host, _, port = self._address_of(scheduler).rpartition(":")
        writer = None
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                # A proxy that finds nobody behind it takes the connection and ends it at once.
                return not await reader.read(1)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()

    async def close(self) -> None:
        """At the end of the process."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        await self._retiring.wait_closed()

    def _address_of(self, scheduler: str) -> str:
        """Raises SchedulerUnreachable: the log may name one that is none of the group any more."""
        address = self._addresses.get(scheduler)
        if address is None:
            raise SchedulerUnreachable(
                f"scheduler {scheduler} is not in raft.schedulers here, which names "
                f"{', '.join(sorted(self._addresses))}"
            )
        return address

    def _stub(self, scheduler: str) -> Any:
        version = self._security.version()
        if version is not self._version:
            self._version = version
            for channel in self._channels.values():
                self._retiring.add(channel)
            self._channels.clear()
        channel = self._channels.get(scheduler)
        if channel is None:
            address = self._address_of(scheduler)
            channel = self._security.channel(address, options=CHANNEL_OPTIONS)
            self._channels[scheduler] = channel
        return runs_pb2_grpc.RunsStub(channel)


def _unreachable(scheduler: str, error: grpc.aio.AioRpcError) -> SchedulerUnreachable:
    return SchedulerUnreachable(
        f"scheduler {scheduler}: {error.code().name}: {error.details()}",
        is_older=error.code() is grpc.StatusCode.UNIMPLEMENTED,
    )
