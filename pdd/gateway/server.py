"""Making a front door and listening for its clients."""

import asyncio
import ssl
import time
from collections.abc import Callable

from pdd.core.ports import Clock, Inference
from pdd.gateway.answer import Serving
from pdd.gateway.app import make_app
from pdd.gateway.door import Door
from pdd.gateway.elsewhere import Elsewhere
from pdd.gateway.front import Front
from pdd.gateway.http_connection import HttpConnection
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.runs import Runs, Seek
from pdd.gateway.served import Health, ServedModel
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.tokenizer import Tokenizer

_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted; more wait at the client."""

_LAST_BYTES_S = 1.0
"""At shutdown, after all requests were ended: how long clients may take to read the rest."""


def make_runs(
    *,
    inference: Inference,
    settings: GatewaySettings,
    clock: Clock,
    seek: Seek | None = None,
    elsewhere: Elsewhere | None = None,
) -> Runs:
    """The runs of one scheduler process, which HTTP and gRPC share. ``seek``, ``elsewhere``: see
    ``Runs``."""
    return Runs(
        seek=seek,
        elsewhere=elsewhere,
        inference=inference,
        clock=clock,
        age_s=settings.resume_age_s,
        linger_s=settings.resume_grace_s,
        wait_s=settings.resume_wait_s,
    )


def make_front(
    *,
    inference: Inference,
    runs: Runs,
    tokenizer: Tokenizer,
    model: ServedModel,
    settings: GatewaySettings,
    health: Callable[[], Health],
    metrics: GatewayMetrics,
    clock: Clock = time.monotonic,
) -> Front:
    """The front door of one scheduler process."""
    open_requests = OpenRequests(limit=settings.max_running_requests)
    return Front(
        serving=Serving(
            inference=inference,
            metrics=metrics,
            settings=settings,
            open_requests=open_requests,
            runs=runs,
            clock=clock,
        ),
        door=Door(model=model, tokenizer=tokenizer),
        app=make_app(
            model=model,
            health=health,
            metrics=metrics,
            open_requests=open_requests,
            max_body_bytes=settings.max_body_bytes,
        ),
        clock=clock,
    )


class FrontServer:
    """A front door that listens."""

    def __init__(self, front: Front, server: asyncio.Server) -> None:
        self._front = front
        self._server = server
        self._stopped: asyncio.Task[None] | None = None
        self.port = int(server.sockets[0].getsockname()[1])
        """Where it listens; it was perhaps asked for port 0."""

    async def stop(self) -> None:
        """Refuse new clients, end open requests, close all connections. Idempotent."""
        if self._stopped is None:
            self._stopped = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        self._server.close()
        await self._front.stop()
        empty = asyncio.Event()
        self._front.when_empty(empty.set)
        try:
            async with asyncio.timeout(_LAST_BYTES_S):
                await empty.wait()
        except TimeoutError:
            for connection in list(self._front.connections):
                connection.abort()
            await empty.wait()


async def serve(
    front: Front, *, host: str, port: int, tls: ssl.SSLContext | None = None
) -> FrontServer:
    """Start listening; the one place where that is done.

    Raises:
        OSError: the address is taken or not this machine's.
    """
    loop = asyncio.get_running_loop()
    await front.framework.start()
    try:
        server = await loop.create_server(
            lambda: HttpConnection(front), host, port, backlog=_BACKLOG, ssl=tls
        )
    except OSError:
        await front.framework.stop()
        raise
    return FrontServer(front, server)
