"""A token is told as a row or as a frame; nobody outside can see which."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import GenerateRequest
from pdd.gateway.answer import Answer, Serving
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.event_ids import Position
from pdd.gateway.http_request import HttpRequest
from pdd.gateway.idempotency import unnamed
from pdd.gateway.job import Job
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.reply import Reply
from pdd.gateway.request_opening import Opened
from pdd.gateway.run import Run
from pdd.gateway.runs import Runs
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.turn import Turn
from tests.unit.gateway.builders import PLAN, ended, frames, make_job

TEXTS = (
    *("Once", "", " upon", ' "a" \\', "\u2028é漢", "\ud800", "", "\n\n"),
    *(" long" * 999, "\x7f", " time"),
)
Tell = Callable[[Sink, int], None]


class Wire:
    """Keeps each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.write_paused = False
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def turn_over(self, *, keep_alive: bool) -> None:
        """Nobody comes after."""

    def abort(self) -> None:
        """Nobody is too slow."""

    def extra_info(self, name: str) -> object:
        return None


class Nobody:
    """An ``Inference`` whose sink the test tells everything, until it cancels."""

    sink: Sink

    def __init__(self) -> None:
        self.is_cancelled = False

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        self.sink = sink

    def cancel(self, request_id: RequestId) -> None:
        self.is_cancelled = True


class Ready:
    """An ``Opening`` with no request to read; through a run, or straight."""

    def __init__(self, reply: Reply, run: Run | None) -> None:
        self._opened = Opened(job=reply.job, reply=reply, run=run)

    async def open(self, turn: Turn, tenant: str) -> Opened:
        return self._opened


async def told(
    job: Job,
    tell: Tell,
    *,
    chat: bool,
    by_run: bool,
    model_name: str = "tiny",
    is_http_1_0: bool = False,
) -> tuple[list[bytes], bytes]:
    """Writes, and the metrics in the end."""
    ticks = itertools.count()
    inference, wire, metrics = Nobody(), Wire(), GatewayMetrics()
    clock = lambda: next(ticks) * 0.004  # noqa: E731
    runs = Runs(inference=inference, clock=clock, age_s=60.0, linger_s=60.0)
    reply = (ChatReply if chat else CompletionReply)(
        job, model_name=model_name, position=Position()
    )
    run = None
    if by_run:
        name = unnamed("/x", "default")
        run = Run(
            name, RequestId("r-test"), inference=inference, linger_s=1.0, over=lambda run: None
        )
        run.take_over(job)
        inference.sink = run
    request = HttpRequest(method="POST", target="/x", path="/x", is_http_1_0=is_http_1_0)
    turn = Turn(wire, request, headers={}, keep_alive=True)
    turn.is_about(RequestId("r-test"))
    turn.headers["x-request-id"] = "mine"
    answer = Answer(
        serving=Serving(
            inference=inference,
            metrics=metrics,
            settings=GatewaySettings(),
            open_requests=OpenRequests(limit=1),
            runs=runs,
            clock=clock,
        ),
        turn=turn,
        opening=Ready(reply, run),
    )
    answer.begin()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    inference.sink.planned(PLAN)
    for index in range(len(TEXTS)):
        if not inference.is_cancelled:
            tell(inference.sink, index)
    if not inference.is_cancelled:
        inference.sink.ended(ended(completion_tokens=len(TEXTS)))
    return wire.writes, generate_latest(metrics.registry)


def as_frame(sink: Sink, index: int) -> None:
    sink.tokens(frames(*TEXTS)[index].frame)


def as_row(sink: Sink, index: int) -> None:
    offset = sum(map(len, TEXTS[:index]))
    sink.token(RequestId("r-test"), index, 100 + index, offset, TEXTS[index])


def as_either(sink: Sink, index: int) -> None:
    (as_frame if index % 3 == 1 else as_row)(sink, index)


@pytest.mark.parametrize("by_run", [False, True], ids=["straight", "by-run"])
@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"usage_chunk": True},
        {"running_usage": True},
        {"return_token_ids": True},
        {"stream": False, "return_token_ids": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
async def test_rows_and_frames_make_the_same_writes_and_metrics(
    options: dict[str, Any], chat: bool, by_run: bool
) -> None:
    """Byte for byte, and one write for each text."""
    job = make_job(**options)
    writes, metrics = await told(job, as_frame, chat=chat, by_run=by_run)
    assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert (await told(job, as_row, chat=chat, by_run=by_run)) == (writes, metrics)
    assert (await told(job, as_either, chat=chat, by_run=by_run)) == (writes, metrics)
    if job.stream and not job.return_token_ids and not job.running_usage:
        # Each text one write, the first one's with the head; then one for the end.
        assert len(writes) == sum(map(bool, TEXTS)) + 1


@pytest.mark.parametrize(
    ("model_name", "is_http_1_0"), [("tiny", True), ("modèle-漢", False), ("m" * 2000, False)]
)
async def test_so_they_do_where_events_are_not_as_most_are(
    model_name: str, is_http_1_0: bool
) -> None:
    writes, metrics = await told(
        make_job(),
        as_frame,
        chat=False,
        by_run=False,
        model_name=model_name,
        is_http_1_0=is_http_1_0,
    )
    assert (b"Transfer-Encoding: chunked" in writes[0]) is not is_http_1_0
    assert (writes, metrics) == await told(
        make_job(),
        as_row,
        chat=False,
        by_run=False,
        model_name=model_name,
        is_http_1_0=is_http_1_0,
    )


@pytest.mark.parametrize(
    ("index", "offset"), [(3, 4), (1, 4), (2, 3)], ids=["token", "doubled", "text"]
)
async def test_a_row_that_does_not_go_on_ends_the_stream_with_an_error(
    index: int, offset: int
) -> None:
    def tell(sink: Sink, position: int) -> None:
        if position < 2:
            as_row(sink, position)
        else:
            sink.token(RequestId("r-test"), index, 100, offset, "x")

    writes, _ = await told(make_job(), tell, chat=False, by_run=False)
    assert len(writes) == 2, "the first event, and the error"
    expected = f"expected token 2 at character 4, got token {index} at character {offset}"
    assert expected.encode() in writes[1]
    assert b"[DONE]" not in writes[1]
