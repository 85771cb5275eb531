"""The way out to one client: bounded in bytes and in patience."""

import asyncio
from collections.abc import Mapping

from aiohttp import web

from pdd.gateway import sse
from pdd.gateway.settings import GatewaySettings


class ClientGone(Exception):
    """The connection is closed; there is nobody to tell."""


class ClientStalled(ClientGone):
    """The client took nothing for ``write_stall_s``; its connection was dropped."""


class _EventStream(web.StreamResponse):
    """A response whose headers leave with its first event: one write, one packet.

    If a later aiohttp does not know this attribute, they leave on their own, nothing worse.
    """

    _send_headers_immediately = False


class EventWriter:
    """Writes server-sent events to one client.

    Bound: when ``write_buffer_bytes`` wait in the transport (the kernel's socket buffer is full
    then too), ``send`` waits for the client and with it the request's iterator, so nothing grows
    but the scheduler's own bounded queue. A client that takes nothing for ``write_stall_s`` is
    disconnected.
    """

    def __init__(
        self, http: web.Request, *, headers: Mapping[str, str], settings: GatewaySettings
    ) -> None:
        self._http = http
        self._settings = settings
        self.response: web.StreamResponse = _EventStream(headers={**sse.HEADERS, **headers})

    @property
    def opened(self) -> bool:
        """Whether the headers have left, or are about to with the next write."""
        return self.response.prepared

    async def open_now(self) -> None:
        """Send the headers alone, because the first token takes long."""
        self.response._send_headers_immediately = True
        await self._prepare()

    async def send(self, events: bytes) -> None:
        """Write whole events.

        Raises:
            ClientGone: the connection is closed or was given up.
        """
        if not self.response.prepared:
            await self._prepare()
        try:
            if self._waiting_bytes() == 0:  # the usual case: the kernel took everything
                await self.response.write(events)
                return
            async with asyncio.timeout(self._settings.write_stall_s):
                await self.response.write(events)
                await self._drain()
        except ConnectionError as error:
            raise ClientGone("the client closed the connection") from error
        except TimeoutError as error:
            if self._http.transport is not None:
                self._http.transport.abort()
            raise ClientStalled(
                f"the client took nothing for {self._settings.write_stall_s:g} s"
            ) from error

    async def finish(self) -> None:
        """End the response; the connection may be used again."""
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientGone("the client closed the connection") from error

    async def _prepare(self) -> None:
        transport = self._http.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        try:
            await self.response.prepare(self._http)
        except ConnectionError as error:
            raise ClientGone("the client closed the connection") from error

    def _waiting_bytes(self) -> int:
        transport = self._http.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    async def _drain(self) -> None:
        """If the transport's buffer has reached its bound, wait until the client takes some."""
        await self._http.writer.drain()
