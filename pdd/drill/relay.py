"""A wire between two schedulers that can be cut: what is sent then waits, as on a dead network.

Nobody is told: a connection stays open and silent, and a new one is taken and hears nothing. When
the wire is mended, what was sent arrives, as it does when TCP sends it again.
"""

import asyncio
import contextlib

_CHUNK_BYTES = 64 * 1024


class Relay:
    """Listens on a port of its own; passes everything to one port of this machine, and back."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Where it listens."""
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. An end that breaks or closes closes the other one."""
        target: asyncio.StreamWriter | None = None
        try:
            await self._whole.wait()
            from_target, target = await asyncio.open_connection("127.0.0.1", self._target_port)
            ways = {
                asyncio.create_task(self._pass_on(reader, target)),
                asyncio.create_task(self._pass_on(from_target, writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)
        except OSError:
            return  # nobody listens there now: the caller sees it by its own connection's end
        finally:
            writer.close()
            if target is not None:
                target.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # an end is gone; the other one is closed then
            while data := await reader.read(_CHUNK_BYTES):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
            await self._whole.wait()
