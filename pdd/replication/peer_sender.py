"""The stream to one peer: dial, greet, send what is queued, dial again.

    DIALLING --hello accepted--> SENDING --stream breaks--> (100 to 300 ms) --> DIALLING

One task per peer. What waits in the queue when a stream breaks is dropped: it is stale by the time
of the next one. A peer that refuses the hello is asked again all the same, at the longest interval:
the operator may be about to correct it.
"""

from __future__ import annotations

import asyncio
import random

import grpc.aio
import structlog

from pdd.raft.config import RaftConfig
from pdd.raft.values import NodeId
from pdd.replication.grpc_options import (
    CHANNEL_OPTIONS,
    CONNECT_TIMEOUT_S,
    RECONNECT_MAX_S,
    RECONNECT_MIN_S,
)
from pdd.replication.hello import HelloRefusedError, check_hello, make_hello
from pdd.replication.peer_queue import PeerQueue
from pdd.rpc.v1.raft_pb2 import DeliverRequest, DeliverResponse
from pdd.rpc.v1.raft_pb2_grpc import RaftStub
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

LINGER_S = 0.02


class PeerSender:
    def __init__(
        self,
        config: RaftConfig,
        peer: NodeId,
        address: str,
        *,
        rng: random.Random,
        security: Security = PLAIN,
    ) -> None:
        self.peer = peer
        self.address = address
        self.queue = PeerQueue()
        self.is_connected = False
        self._config = config
        self._rng = rng
        self._security = security
        self._has_news = asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None
        self._last_fault = ""

    def send(self, message: bytes, *, can_wait: bool = False) -> None:
        """Queue one message; at the bound it is dropped and counted (`peer_queue`).

        One that ``can_wait`` gives the next message LINGER_S to share its write: a commit index
        that rides on the next batch of entries halves the messages of a busy group.
        """
        self.queue.put(message)
        if not can_wait:
            self._has_news.set()
        elif not self._has_news.is_set() and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._end_linger)

    def _end_linger(self) -> None:
        self._linger = None
        self._has_news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            version = self._security.version()
            async with self._security.channel(self.address, options=CHANNEL_OPTIONS) as channel:
                stub = RaftStub(channel)
                while self._security.version() is version:
                    fault = await self._stream(stub)
                    self.is_connected = False
                    self.queue.clear()
                    self._report(fault)
                    await asyncio.sleep(self._rng.uniform(RECONNECT_MIN_S, RECONNECT_MAX_S))

    async def _stream(self, stub: RaftStub) -> str:
        """One life of the stream; why it ended."""
        call = stub.Deliver()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await call.write(DeliverRequest(hello=make_hello(self._config)))
                response = await call.read()
            if response is grpc.aio.EOF:
                return f"closed the stream: {await call.details()}"
            self._check_answer(response)
            self.is_connected = True
            self._report("")
            await self._pump(call)
        except TimeoutError:
            return f"gave no answer for {CONNECT_TIMEOUT_S} s"
        except HelloRefusedError as error:
            return str(error)
        except asyncio.InvalidStateError:
            return "ended the call while it was being written to"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
        return "closed the stream"

    def _check_answer(self, response: DeliverResponse) -> None:
        check_hello(response.hello, self._config)
        if response.hello.replica != self.peer:
            raise HelloRefusedError(
                f"{self.address} is {response.hello.replica!r}, expected {self.peer!r}: check the "
                "addresses of the replicas"
            )

    async def _pump(self, call: grpc.aio.StreamStreamCall) -> None:
        """Write until the stream ends. The peer says nothing more, so reading waits for the end:
        an idle sender notices it as well as a busy one."""
        end = asyncio.ensure_future(_next_answer(call))
        end.add_done_callback(lambda _: self._has_news.set())
        try:
            while not end.done():
                batch = self.queue.take()
                if batch:
                    await call.write(DeliverRequest(messages=batch))
                    continue
                self._has_news.clear()
                await self._has_news.wait()
            await end
        finally:
            end.cancel()

    def _report(self, fault: str) -> None:
        """Each change once; a peer that is down for an hour fills no log."""
        if fault == self._last_fault:
            return
        self._last_fault = fault
        if fault:
            log.warning("raft_peer_lost", peer=self.peer, address=self.address, reason=fault)
        else:
            log.info("raft_peer_connected", peer=self.peer, address=self.address)


async def _next_answer(call: grpc.aio.StreamStreamCall) -> object:
    return await call.read()
