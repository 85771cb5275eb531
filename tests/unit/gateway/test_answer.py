"""A stream whose reader is slow when the process stops: what it is told, and that it is told."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import GenerateRequest
from pdd.gateway.answer import Answer, Serving
from pdd.gateway.completions import CompletionReply
from pdd.gateway.http_request import HttpRequest
from pdd.gateway.job import Job
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests, stopping_error
from pdd.gateway.request_opening import Endpoint
from pdd.gateway.runs import Runs
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.turn import Turn
from tests.unit.gateway.builders import PLAN, ended, frames, make_job, soon

END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class SlowWire:
    """A transport that a test fills and empties."""

    def __init__(self) -> None:
        self.sent = b""
        self.write_paused = False
        self.unsent_bytes = 0
        self.turns_over = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def turn_over(self, *, keep_alive: bool) -> None:
        self.turns_over += 1

    def abort(self) -> None:
        self.aborted = True

    def extra_info(self, name: str) -> object:
        return None


class OneRequest:
    """An ``Inference`` that the test speaks for."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.started = asyncio.Event()
        self.cancelled: list[RequestId] = []

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        self.sink = sink
        self.started.set()

    def cancel(self, request_id: RequestId) -> None:
        self.cancelled.append(request_id)


class Case:
    """A stream in the middle: ``a`` was sent."""

    def __init__(self) -> None:
        self.wire = SlowWire()
        self.inference = OneRequest()
        self.metrics = GatewayMetrics()
        self.open_requests = OpenRequests(limit=1)
        request = HttpRequest(
            method="POST", target="/x", path="/x", body=bytearray(json.dumps({}).encode())
        )
        runs = Runs(inference=self.inference, clock=time.monotonic, age_s=60.0, linger_s=60.0)
        self.answer = Answer(
            serving=Serving(
                inference=self.inference,
                metrics=self.metrics,
                settings=GatewaySettings(write_buffer_bytes=10_000),
                open_requests=self.open_requests,
                runs=runs,
                clock=time.monotonic,
            ),
            turn=Turn(self.wire, request, headers={}, keep_alive=True),
            opening=Endpoint(
                prepare=self._prepare,
                make_reply=lambda job, position: CompletionReply(
                    job, model_name="tiny", position=position
                ),
                runs=runs,
                max_body_bytes=1000,
            ),
        )

    async def _prepare(self, body: dict[str, object], request_id: RequestId, tenant: str) -> Job:
        return make_job(stream=True)

    @property
    def sink(self) -> Sink:
        assert self.inference.sink is not None, "started"
        return self.inference.sink

    def resume(self) -> None:
        self.wire.write_paused = False
        self.answer.resumed()

    def outcomes(self) -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for metric in self.metrics.requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.value
        }


@asynccontextmanager
async def slow_stream() -> AsyncIterator[Case]:
    """``a`` was sent; then the reader stopped, and ``b`` is held back."""
    case = Case()
    case.answer.begin()
    await soon(case.inference.started)
    one, two = frames("a", "b")
    case.sink.planned(PLAN)
    case.sink.tokens(one.frame)
    case.wire.write_paused = True
    case.sink.tokens(two.frame)
    yield case
    assert len(case.open_requests) == 0
    assert case.wire.turns_over == 1


async def test_a_slow_reader_gets_the_error_event_behind_what_was_held_back() -> None:
    async with slow_stream() as case:
        case.answer.stop(stopping_error())
        assert not case.wire.aborted
        assert len(case.inference.cancelled) == 1
        assert b'"text":"b"' not in case.wire.sent
        case.resume()
        _, _, tail = case.wire.sent.partition(b'"text":"b"')
        assert b"this scheduler is stopping" in tail
        assert tail.endswith(b"\r\n0\r\n\r\n")
        assert b"[DONE]" not in tail
        assert case.outcomes() == {"unavailable": 1}


async def test_plain_tokens_wait_behind_what_is_held_back_and_leave_in_order() -> None:
    async with slow_stream() as case:
        request_id = RequestId("r-test")
        case.sink.token(request_id, 2, 102, 2, "c")
        case.sink.token(request_id, 3, 103, 3, "d")
        assert b'"text":"c"' not in case.wire.sent
        case.resume()
        case.sink.token(request_id, 4, 104, 4, "e")
        case.sink.ended(ended(completion_tokens=5))
        texts = re.findall(rb'"text":"(.)"', case.wire.sent)
        assert texts == [b"a", b"b", b"c", b"d", b"e"]
        assert case.wire.sent.endswith(END)


async def test_a_stream_that_is_through_ends_with_its_own_end_and_no_error_behind_it() -> None:
    async with slow_stream() as case:
        case.sink.ended(ended())
        case.answer.stop(stopping_error())
        assert not case.wire.aborted
        assert b"[DONE]" not in case.wire.sent
        case.resume()
        assert case.wire.sent.endswith(END)
        assert b"stopping" not in case.wire.sent
        assert case.inference.cancelled == []
        assert case.outcomes() == {"finished": 1}


async def test_being_told_twice_to_stop_is_being_told_once() -> None:
    async with slow_stream() as case:
        case.answer.stop(stopping_error())
        case.answer.stop(stopping_error())
        case.resume()
        assert case.wire.sent.count(b"this scheduler is stopping") == 1
