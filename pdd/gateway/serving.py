"""Answering one inference request over HTTP, streaming or whole, and ending it exactly once.

A request that fails before its headers have left gets a status and an error body. Afterwards
it gets one error event, and the stream closes without ``[DONE]``. A client that leaves cancels
the handler (see ``server``), which closes the run and so cancels the request on every node.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from aiohttp import web

from pdd.core.errors import PddError
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Inference
from pdd.core.requests import Ended, Plan
from pdd.gateway import sse
from pdd.gateway.body import BodyTimeout, read_json_object
from pdd.gateway.errors import edge_of, error_body, retry_after_s
from pdd.gateway.event_writer import ClientGone, ClientStalled, EventWriter
from pdd.gateway.job import Job
from pdd.gateway.json_text import json_bytes
from pdd.gateway.metrics import GatewayMetrics, RequestMeter
from pdd.gateway.open_requests import OpenRequests, stopping_error
from pdd.gateway.reply import Reply
from pdd.gateway.request_ids import client_request_id, new_request_id
from pdd.gateway.run import Run, discard, running, wait_briefly
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.usage import measured

log = structlog.get_logger(__name__)

Prepare = Callable[[dict[str, object], RequestId], Awaitable[Job]]
MakeReply = Callable[[Job], Reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What answering needs besides the request."""

    inference: Inference
    metrics: GatewayMetrics
    settings: GatewaySettings
    open_requests: OpenRequests
    clock: Clock

    async def answer(
        self, http: web.Request, *, prepare: Prepare, make_reply: MakeReply
    ) -> web.StreamResponse:
        """Answer one request; errors become responses here, nothing escapes but cancellation."""
        request_id = new_request_id()
        headers = {
            "x-pdd-request-id": request_id,
            "x-request-id": client_request_id(http.headers) or request_id,
        }
        answer = _Answer(
            serving=self,
            http=http,
            headers=headers,
            request_id=request_id,
            meter=self.metrics.begin("http", now_s=self.clock()),
        )
        return await answer.run(prepare=prepare, make_reply=make_reply)


@dataclass(slots=True, kw_only=True)
class _Answer:
    """One request on its way."""

    serving: Serving
    http: web.Request
    headers: dict[str, str]
    request_id: RequestId
    meter: RequestMeter
    writer: EventWriter | None = None

    async def run(self, *, prepare: Prepare, make_reply: MakeReply) -> web.StreamResponse:
        try:
            with self.serving.open_requests.one():
                body = await read_json_object(self.http, settings=self.serving.settings)
                job = await prepare(body, self.request_id)
                reply = make_reply(job)
                if job.stream:
                    return await self._stream(job, reply)
                return await self._whole(job, reply)
        except asyncio.CancelledError:
            if not self._we_are_stopping():
                self._end("cancelled")
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]  # it is this one
            return await self._fail(stopping_error())
        except ClientGone as gone:
            self._end("stalled" if isinstance(gone, ClientStalled) else "cancelled")
            assert self.writer is not None
            return self.writer.response
        except Exception as error:
            if not isinstance(error, PddError):
                log.exception("request_handler_failed", request_id=self.request_id)
            return await self._fail(error)

    async def _whole(self, job: Job, reply: Reply) -> web.StreamResponse:
        serving = self.serving
        async with running(
            serving.inference, job.request, meter=self.meter, clock=serving.clock
        ) as run:
            self._plan_known(run.plan)
            while isinstance(item := await run.next(), Frame):
                reply.collect(item)
        document = reply.document(item)
        self._end("finished", ended=item)
        return web.Response(body=document, content_type="application/json", headers=self.headers)

    async def _stream(self, job: Job, reply: Reply) -> web.StreamResponse:
        serving = self.serving
        async with running(
            serving.inference, job.request, meter=self.meter, clock=serving.clock
        ) as run:
            self._plan_known(run.plan)
            writer = EventWriter(self.http, headers=self.headers, settings=serving.settings)
            self.writer = writer
            item = await self._first(run, writer)
            opening = reply.opening()
            while isinstance(item, Frame):
                events = opening + reply.event(item)
                opening = b""
                if events:
                    await writer.send(events)
                item = await run.next()
            closing = opening + reply.closing(item)
        await writer.send(closing)
        await writer.finish()
        self._end("finished", ended=item)
        return writer.response

    async def _first(self, run: Run, writer: EventWriter) -> Frame | Ended:
        """The first frame; the headers go ahead if it takes long."""
        task = asyncio.create_task(run.next())
        try:
            if not await wait_briefly(task, timeout_s=self.serving.settings.header_hold_s):
                await writer.open_now()
            return await task
        finally:
            if not task.done():
                await discard(task)

    async def _fail(self, error: Exception) -> web.StreamResponse:
        """Tell the client, in the way that is still open."""
        self._end(edge_of(error).outcome, error=error)
        writer = self.writer
        if writer is None or not writer.opened:
            return error_response(error, headers=self.headers)
        try:
            await writer.send(sse.event(error_body(error)))
            await writer.finish()
        except ClientGone:
            log.debug("error_event_undeliverable", request_id=self.request_id)
        return writer.response

    def _plan_known(self, plan: Plan) -> None:
        self.headers["x-pdd-path"] = plan.path.value

    def _we_are_stopping(self) -> bool:
        """Cancelled by shutdown, and the client is still there to be told."""
        transport = self.http.transport
        return (
            self.serving.open_requests.stopping
            and transport is not None
            and not transport.is_closing()
        )

    def _end(
        self, outcome: str, *, ended: Ended | None = None, error: Exception | None = None
    ) -> None:
        if self.meter.ended:
            return  # the end was counted, telling it failed
        now_s = self.serving.clock()
        usage = None if ended is None else ended.usage
        self.meter.end(outcome, now_s=now_s, usage=usage)
        log.info(
            "request_finished",
            request_id=self.request_id,
            client_request_id=self.headers["x-request-id"],
            outcome=outcome,
            path=self.headers.get("x-pdd-path"),
            error=None if error is None else str(error),
            **measured(usage),
            completion_tokens=self.meter.token_count,
            ttft_s=self.meter.ttft_s,
            e2e_s=self.meter.age_s(now_s),
        )


def error_response(error: Exception, *, headers: dict[str, str] | None = None) -> web.Response:
    """An error as a whole response."""
    edge = edge_of(error)
    status = 408 if isinstance(error, BodyTimeout) else edge.status
    response = web.Response(
        status=status,
        body=json_bytes(error_body(error)),
        content_type="application/json",
        headers=dict(headers or {}),
    )
    seconds = retry_after_s(error)
    if seconds is not None:
        response.headers["Retry-After"] = str(seconds)
    if status in (408, 413):
        response.force_close()  # the rest of the body is not going to be read
    return response
