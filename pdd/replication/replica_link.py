"""A client's stream to one replica: many submissions at a time, answered in any order.

Whatever ends the stream makes the outcome of everything unanswered on it unknown. The next
submission dials again. Bound: the caller's own concurrency; each waits for its answer, and is not
sent any more when its time is up. One timer does for all of them: it is set to the earliest moment
at which somebody has waited long enough, and then looks through those that wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import grpc.aio

from pdd.replication.grpc_options import CHANNEL_OPTIONS
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import ReplicaStub
from pdd.tls.security import PLAIN, Security

BATCH_MAX = 1024
"""Submissions in one write."""
GATHER_S = 0.002
"""While nothing was answered since the last write, what is asked next waits for an answer, at most
so long, and is sent together: a message costs as much as ten or twenty submissions in it."""


Outcome = asyncio.Future[pb.SubmissionOutcome]


@dataclass(slots=True, kw_only=True)
class _Stream:
    unsent: dict[int, pb.Submission] = field(default_factory=dict)
    waiting: dict[int, tuple[Outcome, float]] = field(default_factory=dict)
    """And until when, by the loop's clock."""
    timer: asyncio.TimerHandle | None = None
    timer_s: float = inf
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Something has come since the last write."""
    has_written: bool = False
    task: asyncio.Task[None] | None = None
    is_over: bool = False


class ReplicaLink:
    def __init__(self, address: str, *, security: Security = PLAIN) -> None:
        self.address = address
        self._security = security
        self._open()
        self._stream = _Stream(is_over=True)
        self._next_id = 0

    async def ask(self, submission: pb.Submission, *, timeout_s: float) -> pb.SubmissionOutcome:
        """Never raises for what the network does: UNKNOWN when no answer came in time.

        ``submission`` is copied when it is sent: it may be asked again elsewhere, where it has
        another number, while this stream still means to send it. Change it no more.
        """
        loop = asyncio.get_running_loop()
        stream = self._stream
        if stream.is_over:
            stream = self._stream = _Stream()
            stream.task = loop.create_task(self._run(stream))
        self._next_id += 1
        number = self._next_id
        future: Outcome = loop.create_future()
        until_s = loop.time() + timeout_s
        stream.waiting[number] = future, until_s
        if until_s < stream.timer_s:
            _set_timer(stream, until_s)
        stream.unsent[number] = submission
        stream.has_news.set()
        try:
            return await future
        finally:
            stream.waiting.pop(number, None)
            stream.unsent.pop(number, None)

    def _open(self) -> None:
        self._version = self._security.version()
        self._channel = self._security.channel(self.address, options=CHANNEL_OPTIONS)
        self._stub = ReplicaStub(self._channel)

    async def close(self) -> None:
        task = self._stream.task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._channel.close()

    async def _run(self, stream: _Stream) -> None:
        if self._security.version() is not self._version:
            former = self._channel
            self._open()
            await former.close()
        call = self._stub.Submit()
        writing = asyncio.create_task(_write(call, stream))
        reason = "the stream ended"
        try:
            async for response in call:
                stream.answered.set()
                for outcome in response.outcomes:
                    future, _ = stream.waiting.pop(outcome.submission_id, _NOBODY)
                    if future is not None and not future.done():
                        future.set_result(outcome)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        finally:
            stream.is_over = True
            if stream.timer is not None:
                stream.timer.cancel()
            writing.cancel()
            call.cancel()
            await asyncio.wait({writing})
            for future, _ in stream.waiting.values():
                if not future.done():
                    future.set_result(
                        pb.SubmissionOutcome(kind=pb.OUTCOME_KIND_UNKNOWN, reason=reason)
                    )


_NOBODY: tuple[Outcome | None, float] = (None, 0.0)


def _set_timer(stream: _Stream, at_s: float) -> None:
    if stream.timer is not None:
        stream.timer.cancel()
    stream.timer_s = at_s
    stream.timer = asyncio.get_running_loop().call_at(at_s, _give_up, stream)


def _give_up(stream: _Stream) -> None:
    """On those whose time is up; the next time for who is next."""
    stream.timer, stream.timer_s = None, inf
    now_s = asyncio.get_running_loop().time()
    next_s = inf
    for future, until_s in stream.waiting.values():
        if until_s > now_s:
            next_s = min(next_s, until_s)
        elif not future.done():
            future.set_result(
                pb.SubmissionOutcome(kind=pb.OUTCOME_KIND_UNKNOWN, reason="no answer in time")
            )
    if next_s < inf:
        _set_timer(stream, next_s)


async def _gather(stream: _Stream) -> None:
    try:
        async with asyncio.timeout(GATHER_S):
            await stream.answered.wait()
    except TimeoutError:
        return


async def _write(call: grpc.aio.StreamStreamCall, stream: _Stream) -> None:
    try:
        while True:
            await stream.has_news.wait()
            stream.has_news.clear()
            while stream.unsent:
                if stream.has_written and not stream.answered.is_set():
                    await _gather(stream)
                request = pb.SubmitRequest()
                for number, submission in islice(stream.unsent.items(), BATCH_MAX):
                    numbered = request.submissions.add()
                    numbered.CopyFrom(submission)
                    numbered.submission_id = number
                for numbered in request.submissions:
                    del stream.unsent[numbered.submission_id]
                if request.submissions:  # else they were given up meanwhile
                    stream.has_written = True
                    stream.answered.clear()
                    await call.write(request)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return  # the reading side hears the same and says so
