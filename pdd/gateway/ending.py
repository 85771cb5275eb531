"""``DELETE /v1/streams/{request_id}``: a request ends, at whichever scheduler it runs."""

import asyncio
from collections.abc import Callable

import structlog

from pdd.core.errors import PddError
from pdd.core.identity import RequestId
from pdd.gateway.open_requests import stopping_error
from pdd.gateway.runs import Runs
from pdd.gateway.tenants import tenant_of
from pdd.gateway.turn import Turn

log = structlog.get_logger(__name__)


class Ending:
    """Implements ``Exchange``. 204 when it is over; a client that leaves meanwhile has said enough.

    What it waits for is bounded by ``Elsewhere.end``.
    """

    def __init__(self, turn: Turn, *, runs: Runs, over: Callable[["Ending"], None]) -> None:
        """``over`` is called once, when it has ended in whatever way."""
        self._turn: Turn | None = turn
        self._runs = runs
        self._over = over
        self._task: asyncio.Task[None] | None = None

    def begin(self, request_id: RequestId) -> None:
        """Answers in a later turn of the loop."""
        self._task = asyncio.create_task(self._end(request_id))

    async def stop(self) -> None:
        """The process stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    # --- Exchange ----------------------------------------------------------------------------

    def client_left(self) -> None:
        self._turn = None

    def paused(self) -> None:
        """One small write is all there will be."""

    def resumed(self) -> None:
        """See ``paused``."""

    # --- helpers -----------------------------------------------------------------------------

    async def _end(self, request_id: RequestId) -> None:
        assert self._turn is not None, "before the client could leave"
        error: Exception | None = None
        try:
            await self._runs.end(request_id, tenant=tenant_of(self._turn.request))
        except PddError as told:
            error = told
        except asyncio.CancelledError:
            error = stopping_error()
            raise
        except Exception as bug:
            log.exception("request_end_failed", request_id=request_id)
            error = bug
        finally:
            self._answer(error)
            self._over(self)

    def _answer(self, error: Exception | None) -> None:
        if self._turn is None:
            return
        if error is None:
            self._turn.respond(204, b"")
        else:
            self._turn.respond_error(error)
