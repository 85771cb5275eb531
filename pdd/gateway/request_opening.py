"""The two ways in which an answer begins: a new request, or one that runs or ran already."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pdd.core.errors import InvalidRequest
from pdd.core.identity import RequestId
from pdd.core.values import frozen
from pdd.gateway.body import read_json_object
from pdd.gateway.event_ids import START, Position, position_of
from pdd.gateway.idempotency import run_name, unnamed
from pdd.gateway.job import Job
from pdd.gateway.reply import Reply
from pdd.gateway.request_ids import may_be_request_id
from pdd.gateway.run import Run
from pdd.gateway.runs import Runs
from pdd.gateway.takeover import with_note
from pdd.gateway.turn import Turn

STREAMS_PATH = "/v1/streams/"


@frozen
class Opened:
    """What is to be answered. ``run``: to be listened to; None: to be started for this client
    alone. ``position``: what its client has seen."""

    job: Job
    reply: Reply
    run: Run | None = None
    position: Position = START


class Opening(Protocol):
    """How an answer begins."""

    async def open(self, turn: Turn, tenant: str) -> Opened:
        """Read, check, tokenise, or find. Raises PddError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What makes ``/v1/completions`` differ from ``/v1/chat/completions``. An ``Opening``.

    ``prepare``: from body, request id and tenant.
    """

    prepare: Callable[[dict[str, object], RequestId, str], Awaitable[Job]]
    make_reply: Callable[[Job, Position], Reply]
    runs: Runs
    max_body_bytes: int

    async def open(self, turn: Turn, tenant: str) -> Opened:
        """A new request; with a key that is known, the one that it repeats."""
        request = turn.request
        request_id = turn.request_id

        key = request.header(b"idempotency-key")
        name = run_name(key, path=request.path, tenant=tenant, body=request.body)

        async def checked() -> Job:
            body = await read_json_object(request, max_body_bytes=self.max_body_bytes)
            job = await self.prepare(body, request_id, tenant)
            if name is not None:
                return with_note(job, name)
            return with_note(job, unnamed(request.path, tenant)) if job.stream else job

        if name is not None:
            await self.runs.settle(name)
        run = None if name is None else self.runs.join(name, request_id, prepare=checked)
        job = await (checked() if run is None else run.job())
        return Opened(job=job, reply=self.make_reply(job, START), run=run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEndpoint:
    """``GET /v1/streams/{request_id}``: the rest of a stream. An ``Opening``."""

    endpoints: Mapping[str, Endpoint]
    runs: Runs

    async def open(self, turn: Turn, tenant: str) -> Opened:
        """Whatever runs or ran under that id, from behind ``Last-Event-ID``."""
        request_id = RequestId(turn.request.path.removeprefix(STREAMS_PATH))
        if may_be_request_id(request_id):
            await self.runs.appear(request_id, tenant=tenant)
        run = self.runs.find(request_id, tenant=tenant)
        job = await run.job()
        endpoint = self.endpoints.get(run.name.path)
        if endpoint is None or not job.stream:
            raise InvalidRequest(
                f"request {request_id} is no stream of server-sent events; repeat it as it was, "
                "with its Idempotency-Key",
                code="not_a_stream",
            )
        position = position_of(
            turn.request.header(b"last-event-id"),
            request_id=request_id,
            choice_count=job.request.choice_count,
        )
        reply = endpoint.make_reply(job, position)
        return Opened(job=job, reply=reply, run=run, position=position)
