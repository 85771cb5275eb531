"""The public gRPC service ``pdd.rpc.v1.Inference``. The only module here that knows protobuf."""

import asyncio
import math
import time
from typing import Any

import grpc
import structlog

from pdd.core.errors import InvalidRequest, PddError
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Inference
from pdd.core.requests import RequestUsage
from pdd.gateway.door import Door
from pdd.gateway.errors import edge_of, message_of, retry_after_s
from pdd.gateway.event_ids import check_told
from pdd.gateway.grpc_body import (
    body_of,
    choice_end_fields,
    end_fields,
    is_chat,
    plan_fields,
    tokens_fields,
)
from pdd.gateway.grpc_inbox import ClientStalled, GrpcInbox
from pdd.gateway.idempotency import run_name, unnamed
from pdd.gateway.job import Job
from pdd.gateway.metrics import GatewayMetrics, RequestMeter
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.reply import check_end
from pdd.gateway.request_ids import may_be_request_id, new_request_id
from pdd.gateway.run import Run, RunName
from pdd.gateway.runs import Runs
from pdd.gateway.served import ServedModel
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.takeover import with_note
from pdd.gateway.tenants import check_tenant
from pdd.gateway.text_events import Progress
from pdd.gateway.tokenizer import Tokenizer
from pdd.gateway.usage import measured
from pdd.rpc.v1 import inference_pb2, inference_pb2_grpc

log = structlog.get_logger(__name__)

_PATH = "/pdd.rpc.v1.Inference/Generate"
"""Where gRPC's idempotency keys count, as HTTP's do for their endpoints."""


class InferenceServicer:
    """Serves ``Generate``, as the generated servicer class would. See ``add_to_server``.

    ``Generate`` is a coroutine that writes, not an async generator: a call that is cancelled
    while a message is being written then ends right here, and not when a generator is collected.
    """

    def __init__(
        self,
        *,
        inference: Inference,
        runs: Runs,
        tokenizer: Tokenizer,
        model: ServedModel,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        clock: Clock = time.monotonic,
    ) -> None:
        self._inference = inference
        self._runs = runs
        self._door = Door(model=model, tokenizer=tokenizer)
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._open_requests = OpenRequests(limit=settings.max_running_requests)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        inference_pb2_grpc.add_InferenceServicer_to_server(self, server)

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new calls, wait for open ones, and end the rest with UNAVAILABLE.

        To be called before the server's own ``stop``, which can only cancel.
        """
        await self._open_requests.stop(grace_s=grace_s)

    async def Generate(self, request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Run one request; see inference.proto for the errors."""
        call = _Call(new_request_id())
        meter = self._metrics.begin("grpc", now_s=self._clock())
        usage = None
        outcome = "cancelled"
        failure: Exception | None = None
        try:
            self._open_requests.add(call)
            usage = await self._run(request, context, meter, call)
            outcome = "finished"
        except asyncio.CancelledError:
            if call.stopped_with is None:
                raise
            call.task.uncancel()
            failure = call.stopped_with
            outcome = edge_of(failure).outcome
        except ClientStalled as error:
            outcome = "stalled"
            failure = error
        except Exception as error:
            if not isinstance(error, PddError):
                log.exception("grpc_handler_failed", request_id=call.request_id)
            outcome = edge_of(error).outcome
            failure = error
        finally:
            self._open_requests.discard(call)
            now_s = self._clock()
            meter.end(outcome, now_s=now_s, usage=usage)
            log.info(
                "request_finished",
                request_id=call.request_id,
                tenant=meter.tenant,
                outcome=outcome,
                path=None if meter.path is None else meter.path.value,
                error=None if failure is None else str(failure),
                **measured(usage),
                completion_tokens=meter.token_count,
                ttft_s=meter.ttft_s,
                e2e_s=meter.age_s(now_s),
            )
        if failure is not None:
            await _abort(context, failure, call.request_id)

    async def _run(
        self, request: Any, context: Any, meter: RequestMeter, call: "_Call"
    ) -> RequestUsage:
        if request.tenant:
            meter.tenant = check_tenant(request.tenant, field="tenant")
        run = await self._run_of(request, context, call, tenant=meter.tenant)
        deadline_s = self._deadline_s(context)
        job = await (
            self._checked(request, call.request_id, deadline_s, unnamed(_PATH, meter.tenant))
            if run is None
            else run.job()
        )
        first_indexes = _first_indexes(request, job)
        request_id = call.request_id
        progresses = [Progress() for _ in range(job.request.choice_count)]
        inbox = call.inbox = GrpcInbox(meter=meter, clock=self._clock, first_indexes=first_indexes)
        if run is None:
            self._inference.start(job.request, inbox)
        else:
            run.listen(inbox, cuts=first_indexes)
        try:
            written_s = -math.inf
            while True:
                news = await inbox.take(not_before_s=written_s + self._settings.grpc_flush_s)
                if news.plan is not None:
                    await self._write(context, _response(request_id, plan=plan_fields(news.plan)))
                for frame in news.passed:
                    progresses[frame.choice_index].advance(frame)
                for frame in news.frames:
                    progresses[frame.choice_index].advance(frame)
                    if frame.token_ids or frame.text:
                        tokens = tokens_fields(frame)
                        await self._write(context, _response(request_id, tokens=tokens))
                    if frame.finish is not None:
                        choice_end = choice_end_fields(frame.choice_index, frame.finish)
                        await self._write(context, _response(request_id, choice_end=choice_end))
                    written_s = self._clock()
                if news.end is not None:
                    end = end_fields(news.end)
                    check_end(progresses, news.end)
                    counts = [progress.token_count for progress in progresses]
                    check_told(counts, first_indexes, what="all of it")
                    await self._write(context, _response(request_id, end=end))
                    return news.end.usage
        finally:
            if run is None:
                self._inference.cancel(request_id)  # void for a request that is over
            else:
                run.leave(inbox)

    async def _run_of(
        self, request: Any, context: Any, call: "_Call", *, tenant: str
    ) -> Run | None:
        """What the call continues or joins; None where it begins a request of its own.

        Raises:
            InvalidRequest, UnknownRequest, RequestGone: see ``Runs``.
        """
        if request.HasField("resume_from"):
            if request.WhichOneof("prompt") is not None or request.idempotency_key:
                raise InvalidRequest(
                    "resume_from: continues a request that is known; leave the others out",
                    field="resume_from",
                )
            known_id = RequestId(request.resume_from.request_id)
            if may_be_request_id(known_id):
                await self._runs.appear(known_id, tenant=tenant)
            run = self._runs.find(known_id, tenant=tenant)
        else:
            name = run_name(
                request.idempotency_key or None,
                path=_PATH,
                tenant=tenant,
                body=request.SerializeToString(deterministic=True),
            )
            if name is None:
                return None
            await self._runs.settle(name)
            request_id, deadline_s = call.request_id, self._deadline_s(context)
            run = self._runs.join(
                name,
                request_id,
                prepare=lambda: self._checked(request, request_id, deadline_s, name),
            )
        call.request_id = run.request_id
        return run

    async def _checked(
        self, request: Any, request_id: RequestId, deadline_s: float, name: RunName
    ) -> Job:
        prepare = self._door.chat if is_chat(request) else self._door.completion
        job = await prepare(
            body_of(request), request_id=request_id, deadline_s=deadline_s, tenant=name.tenant
        )
        return with_note(job, name)

    async def _write(self, context: Any, response: Any) -> None:
        """Write one message; gRPC's flow-control window is the bound of what may wait.

        Raises:
            ClientStalled: the client took nothing for ``write_stall_s``.
        """
        try:
            async with asyncio.timeout(self._settings.write_stall_s):
                await context.write(response)
        except TimeoutError as error:
            raise ClientStalled(
                f"the client took nothing for {self._settings.write_stall_s:g} s"
            ) from error

    def _deadline_s(self, context: Any) -> float:
        """The call's own deadline, at most that of HTTP: other schedulers take a key for free when
        its holder was not heard of for so long."""
        longest_s, remaining_s = self._settings.request_deadline_s, context.time_remaining()
        return longest_s if remaining_s is None else min(float(remaining_s), longest_s)


class _Call:
    """The running call, as ``OpenRequests`` ends it."""

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        task = asyncio.current_task()
        assert task is not None, "a call runs in a task"
        self.task: asyncio.Task[object] = task
        self.inbox: GrpcInbox | None = None
        self.stopped_with: PddError | None = None

    def stop(self, error: PddError) -> None:
        """Never in the middle of a write: gRPC could not send the status then."""
        if self.inbox is None:
            self.stopped_with = error
            self.task.cancel("the scheduler is stopping")
        elif not self.inbox.is_over:
            self.inbox.failed(error)


def _first_indexes(request: Any, job: Job) -> tuple[int, ...]:
    """Of each choice's first token to be told; empty for all.

    Raises:
        InvalidRequest: there are others than choices, or they are less than 0.
    """
    if not request.HasField("resume_from"):
        return ()
    place, count = request.resume_from, job.request.choice_count
    indexes = tuple(place.choice_token_indexes)
    if count == 1 and not indexes:
        indexes = (place.next_token_index,)
    if indexes and (len(indexes) != count or min(indexes) < 0):
        raise InvalidRequest(
            f"resume_from: {list(indexes)} must be one index of 0 or more for each choice, and "
            f"there {'is' if count == 1 else 'are'} {count}",
            field="resume_from",
        )
    return indexes


def _response(request_id: str, **event: dict[str, Any]) -> Any:
    return inference_pb2.GenerateResponse(request_id=request_id, **event)


async def _abort(context: Any, error: Exception, request_id: str) -> None:
    metadata: list[tuple[str, str]] = [("x-pdd-request-id", request_id)]
    seconds = retry_after_s(error)
    if seconds is not None:
        metadata.append(("retry-after", str(seconds)))
    code = edge_of(error).grpc_code
    await context.abort(code, message_of(error), trailing_metadata=tuple(metadata))
