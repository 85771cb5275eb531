"""A client's stream to one replica: every answer goes to whom it belongs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pdd.replication import replica_link
from pdd.replication.replica_link import ReplicaLink
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.tls.security import PlainSecurity

WAIT_S = 5.0


class Replica(PlainSecurity):
    """A channel to a replica that answers a query with itself, as long as it takes any."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.takes.set()
        self.is_written_to = asyncio.Event()
        self.asked: list[bytes] = []
        self._answers: asyncio.Queue[pb.SubmitResponse] = asyncio.Queue()

    def channel(self, address: str, *, options: Any) -> Any:
        return self

    async def close(self) -> None: ...

    def unary_unary(self, *_: object, **__: object) -> None: ...

    def unary_stream(self, *_: object, **__: object) -> None: ...

    def stream_stream(self, *_: object, **__: object) -> Callable[[], "Replica"]:
        return lambda: self

    async def write(self, request: pb.SubmitRequest) -> None:
        self.is_written_to.set()
        await self.takes.wait()
        for one in request.submissions:
            self.asked.append(one.query)
            outcome = pb.SubmissionOutcome(
                submission_id=one.submission_id, kind=pb.OUTCOME_KIND_OK, result=one.query
            )
            self._answers.put_nowait(pb.SubmitResponse(outcomes=[outcome]))

    def cancel(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[pb.SubmitResponse]:
        while True:
            yield await self._answers.get()


async def test_what_was_asked_again_elsewhere_is_no_answer_to_somebody_else() -> None:
    """A frozen leader takes the first question, and the second one waits for it: it is asked of
    another replica meanwhile, where it has another number."""
    frozen, other = Replica(), Replica()
    frozen.takes.clear()
    first_link, second_link = ReplicaLink("a", security=frozen), ReplicaLink("b", security=other)
    patient = asyncio.create_task(first_link.ask(pb.Submission(query=b"mine"), timeout_s=WAIT_S))
    await asyncio.wait_for(frozen.is_written_to.wait(), WAIT_S)
    hasty = pb.Submission(query=b"other")
    outcome = await first_link.ask(hasty, timeout_s=0.01)
    assert outcome.kind == pb.OUTCOME_KIND_UNKNOWN
    for query in (pb.Submission(query=b"1"), pb.Submission(query=b"2"), hasty):
        assert (await second_link.ask(query, timeout_s=WAIT_S)).result == query.query
    later = asyncio.create_task(first_link.ask(pb.Submission(query=b"third"), timeout_s=WAIT_S))
    await asyncio.sleep(0)
    frozen.takes.set()
    assert (await patient).result == b"mine"
    assert (await later).result == b"third"
    assert frozen.asked == [b"mine", b"third"], "nobody waits for what was given up unsent"
    for link in (first_link, second_link):
        await link.close()


class SlowReplica(Replica):
    """Answers what it has been asked when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[list[bytes]] = []
        self.unanswered: list[pb.Submission] = []

    async def write(self, request: pb.SubmitRequest) -> None:
        self.written.append([one.query for one in request.submissions])
        self.unanswered += request.submissions
        self.is_written_to.set()

    def answer(self) -> None:
        outcomes = [
            pb.SubmissionOutcome(
                submission_id=one.submission_id, kind=pb.OUTCOME_KIND_OK, result=one.query
            )
            for one in self.unanswered
        ]
        self.unanswered.clear()
        self._answers.put_nowait(pb.SubmitResponse(outcomes=outcomes))

    async def until_written(self) -> None:
        await asyncio.wait_for(self.is_written_to.wait(), WAIT_S)
        self.is_written_to.clear()


async def test_what_is_asked_while_an_answer_is_due_travels_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_link, "GATHER_S", WAIT_S)
    slow = SlowReplica()
    link = ReplicaLink("a", security=slow)

    def ask(query: bytes) -> asyncio.Task[pb.SubmissionOutcome]:
        return asyncio.create_task(link.ask(pb.Submission(query=query), timeout_s=WAIT_S))

    asked = [ask(b"first")]
    await slow.until_written()
    for query in (b"second", b"third"):
        asked.append(ask(query))
        for _ in range(5):
            await asyncio.sleep(0)
    assert slow.written == [[b"first"]]
    slow.answer()
    await slow.until_written()
    assert slow.written == [[b"first"], [b"second", b"third"]]
    slow.answer()
    results = [(await one).result for one in asked]
    assert results == [b"first", b"second", b"third"]
    await link.close()


async def test_who_waits_for_no_answer_is_sent_all_the_same() -> None:
    slow = SlowReplica()
    link = ReplicaLink("a", security=slow)
    asked = []
    for query in (b"first", b"second"):
        submission = pb.Submission(query=query)
        asked.append(asyncio.create_task(link.ask(submission, timeout_s=WAIT_S)))
        await slow.until_written()
    assert slow.written == [[b"first"], [b"second"]]
    slow.answer()
    assert [(await one).result for one in asked] == [b"first", b"second"]
    await link.close()
