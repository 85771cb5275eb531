"""What a caller may leave lying at a replica: a bounded number of answers, and no more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from pdd.replication.client_service import ASKED_MAX, UNFETCHED_MAX, ClientService
from pdd.replication.driver import Driver
from pdd.replication.submissions import Submission
from pdd.replication.watching import WatchedMachine
from pdd.rpc.v1 import raft_pb2 as pb

WAIT_S = 20.0
REQUEST_SUBMISSIONS = 1024


class DeafDriver:
    """Takes everything and answers nothing."""

    def __init__(self) -> None:
        self.taken: list[Submission] = []

    def submit(self, submission: Submission) -> None:
        self.taken.append(submission)


class Caller:
    """Sends queries for ever, as fast as it is read."""

    def __init__(self) -> None:
        self.sent_count = 0

    async def requests(self) -> AsyncIterator[pb.SubmitRequest]:
        while True:
            numbers = range(self.sent_count, self.sent_count + REQUEST_SUBMISSIONS)
            self.sent_count += REQUEST_SUBMISSIONS
            yield pb.SubmitRequest(
                submissions=[pb.Submission(submission_id=n, query=b"q") for n in numbers]
            )
            await asyncio.sleep(0)


async def test_of_a_caller_that_fetches_no_refusals_nothing_more_is_read() -> None:
    driver, caller = DeafDriver(), Caller()
    service = ClientService(cast(Driver, driver), cast(WatchedMachine, None))
    responses = cast(Any, service.Submit(caller.requests(), cast(Any, None)))
    first = await asyncio.wait_for(anext(responses), WAIT_S)
    assert len(driver.taken) == ASKED_MAX
    outcomes = list(first.outcomes)
    sent_before = -1
    while caller.sent_count != sent_before:  # until it is held up
        sent_before = caller.sent_count
        for _ in range(10):
            await asyncio.sleep(0)
    assert caller.sent_count <= UNFETCHED_MAX + REQUEST_SUBMISSIONS
    while len(outcomes) < 3 * ASKED_MAX:  # who fetches them is read again
        outcomes += (await asyncio.wait_for(anext(responses), WAIT_S)).outcomes
    assert {(one.kind, one.reason) for one in outcomes} == {
        (pb.OUTCOME_KIND_REJECTED, "inbox_full")
    }
    assert len(driver.taken) == ASKED_MAX
    await responses.aclose()
