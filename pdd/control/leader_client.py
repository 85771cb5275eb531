"""A scheduler's stream to the one that leads: ask, be told, ask the next one."""

import asyncio
from typing import Any, Protocol

import grpc
import structlog

from pdd.control.both_ways import first_end
from pdd.control.group_convert import GROUP_VERSION
from pdd.control.leader_server import SILENCE_S, fitting
from pdd.control.outbox import Outbox, OutboxOverflow
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.rpc.v1 import decisions_pb2, decisions_pb2_grpc
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_PAUSE_S = 0.1
_PAUSE_S_MAX = 1.0
_WELCOME_TIMEOUT_S = 2.0


class LeaderNews(Protocol):
    """Who is told what the leader decides. All calls come on the event loop."""

    def leader_attached(self, link: "LeaderLink") -> None:
        """Tell it now what is held."""
        ...

    def leader_said(self, link: "LeaderLink", item: decisions_pb2.LeaderItem) -> None:
        """A decision. Raises ValueError: it cannot be read."""
        ...

    def leader_lost(self, link: "LeaderLink", reason: str) -> None:
        """Until ``leader_attached`` nothing can be told."""
        ...


class LeaderLink:
    """To one scheduler that is believed to lead. ``run`` never ends by itself; cancel it when
    another one leads."""

    def __init__(
        self,
        *,
        scheduler: str,
        leader: str,
        address: str,
        news: LeaderNews,
        security: Security = PLAIN,
    ) -> None:
        """``scheduler``: this one's name; ``leader``: the other's."""
        self.leader = leader
        self._scheduler = scheduler
        self._address = address
        self._news = news
        self._security = security
        self._outbox: Outbox[decisions_pb2.HolderItem] = Outbox()

    def send(self, item: decisions_pb2.HolderItem) -> None:
        """Queue for the present stream; void when it breaks: all is told anew on the next."""
        self._outbox.put(item)

    async def run(self) -> None:
        """Keep asking, with a growing pause between attempts."""
        pause_s = _PAUSE_S
        while True:
            attached, reason = await self._ask_once()
            if attached:
                pause_s = _PAUSE_S
            log.info("leader_not_reached", leader=self.leader, attached=attached, reason=reason)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def _ask_once(self) -> tuple[bool, str]:
        """``(was attached, why it ended)``."""
        attached = False
        reason = "the leader closed the stream"
        async with self._security.channel(self._address, options=CHANNEL_OPTIONS) as channel:
            call = decisions_pb2_grpc.DecisionsStub(channel).Ask()
            try:
                hello = decisions_pb2.HolderHello(scheduler=self._scheduler, version=GROUP_VERSION)
                await call.write(
                    decisions_pb2.AskRequest(items=[decisions_pb2.HolderItem(hello=hello)])
                )
                async with asyncio.timeout(_WELCOME_TIMEOUT_S):
                    first = await call.read()
                if first is grpc.aio.EOF or not first.items:
                    return False, "closed before the welcome"
                self._outbox = Outbox()
                attached = True
                self._news.leader_attached(self)
                reason = await self._talk(call)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                reason = f"no welcome within {_WELCOME_TIMEOUT_S:g} s"
            finally:
                call.cancel()
                if attached:
                    self._news.leader_lost(self, reason)
        return attached, reason

    async def _talk(self, call: Any) -> str:
        """Both directions until either ends; why it ended."""
        fault = await first_end(
            self._read(call),
            self._write(call),
            self._outbox.wait_overflow(),
            faults=(OutboxOverflow, asyncio.InvalidStateError, ValueError, TimeoutError),
        )
        if isinstance(fault, TimeoutError):
            return f"it has been silent for {SILENCE_S:g} s"
        return "the leader closed the stream" if fault is None else str(fault)

    async def _read(self, call: Any) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S):
                message = await call.read()
            if message is grpc.aio.EOF:
                return
            for item in message.items:
                if item.WhichOneof("item") != "alive":
                    self._news.leader_said(self, item)

    async def _write(self, call: Any) -> None:
        while True:
            waiting = await self._outbox.take()
            while waiting:
                count = fitting(waiting)
                await call.write(decisions_pb2.AskRequest(items=waiting[:count]))
                del waiting[:count]
