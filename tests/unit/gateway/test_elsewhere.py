"""A request of another scheduler: shown here, run once, gone on with when that one is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdd.core.errors import (
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestGone,
    SchedulerStopping,
    UnknownRequest,
)
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import GenerateRequest
from pdd.gateway import runs as runs_module
from pdd.gateway.job import Job
from pdd.gateway.run import RunName
from pdd.gateway.runs import Runs
from pdd.gateway.takeover import with_note
from tests.sinks import Collected, Delta, Planned
from tests.unit.gateway.builders import PLAN, ended, make_job
from tests.waiting import until

R1 = RequestId("r-1")
NAME = RunName(path="/v1/completions", tenant="default", key="k", digest=b"d" * 16)
JOB = with_note(make_job(), NAME)
REQUEST = replace(JOB.request, request_id=R1)


def frame(index: int, text: str) -> Frame:
    return Frame(
        request_id=R1, first_token_index=index, token_ids=(index,), text_offset=index, text=text
    )


class Shown:
    """A request of another scheduler; the test says what it shows."""

    holder = "scheduler-1"

    def __init__(self, request: GenerateRequest = REQUEST) -> None:
        self.request = request
        self.sink: Sink | None = None
        self.is_cancelled = False

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        assert request.tenant == "default", "the whole request, out of its note"
        self.sink = sink

    def cancel(self, request_id: RequestId) -> None:
        self.is_cancelled = True


class Others:
    """Scripted: what the other schedulers answer."""

    def __init__(self) -> None:
        self.claimed: Shown | None = None
        self.found: Shown | PddError | None = None
        self.told: PddError | None = None
        self.has_it = False
        self.lost_key: PddError | None = None
        self.ended: list[tuple[RequestId, str]] = []
        self.claim_count = 0
        self.known: Sequence[int] = ()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def claim(self, name: RunName, resume_key: bytes) -> Shown | None:
        self.claim_count += 1
        await self.may_answer.wait()
        return self.claimed

    async def confirm(self, resume_key: bytes) -> None:
        if self.lost_key is not None:
            raise self.lost_key

    async def find(
        self, request_id: RequestId, *, tenant: str, known_token_counts: Sequence[int] = ()
    ) -> Shown | None:
        self.known = known_token_counts
        if isinstance(self.found, PddError):
            raise self.found
        return self.found

    async def end(self, request_id: RequestId, *, tenant: str, holder: str = "") -> bool:
        self.ended.append((request_id, holder))
        return self.has_it

    def explain(self, request_id: RequestId, *, tenant: str) -> PddError | None:
        return self.told


class Started:
    """An inference that only counts."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        self.requests.append(request)

    def cancel(self, request_id: RequestId) -> None:
        pass


class Rig:
    def __init__(self, *, wait_s: float = 0.0, linger_s: float = 60.0) -> None:
        self.others, self.inference = Others(), Started()
        self.sought: list[RequestId] = []
        self.runs = Runs(
            inference=self.inference,
            clock=asyncio.get_running_loop().time,
            age_s=60.0,
            linger_s=linger_s,
            wait_s=wait_s,
            seek=lambda request_id, key: bool(self.sought.append(request_id)),
            elsewhere=self.others,
        )

    async def ask(self, request_id: str = "r-2", name: RunName = NAME) -> Collected:
        async def prepare() -> Job:
            return JOB

        await self.runs.settle(name)
        run = self.runs.join(name, RequestId(request_id), prepare=prepare)
        await run.job()
        sink = Collected()
        run.listen(sink)
        return sink

    async def follow(self) -> tuple[Collected, Shown]:
        """A client that has seen two tokens of r-1, which another scheduler has."""
        shown = self.others.claimed = Shown()
        sink = await self.ask()
        assert shown.sink is not None
        shown.sink.planned(PLAN)
        for index, text in enumerate("ab"):
            shown.sink.tokens(frame(index, text))
        return sink, shown


def text_of(sink: Collected) -> str:
    return "".join(one.frame.text for one in sink.events if isinstance(one, Delta))


async def test_a_key_that_another_scheduler_runs_is_shown_from_there_under_its_id() -> None:
    rig = Rig()
    sink, shown = await rig.follow()
    assert shown.sink is not None
    shown.sink.ended(ended())
    assert text_of(sink) == "ab"
    assert not rig.inference.requests
    assert rig.runs.find(R1, tenant="default").is_mirror
    again = await rig.ask("r-3")
    assert (text_of(again), rig.others.claim_count) == ("ab", 1)


async def test_a_key_that_nobody_has_runs_here_once_however_many_ask_at_a_time() -> None:
    rig = Rig()
    rig.others.may_answer.clear()
    asking = [asyncio.create_task(rig.ask(f"r-{number}")) for number in range(4)]
    await asyncio.sleep(0)
    theirs = asyncio.create_task(rig.runs.known_by_key(NAME.path, NAME.tenant, NAME.key))
    rig.others.may_answer.set()
    for task in asking:
        await task
    assert (len(rig.inference.requests), rig.others.claim_count) == (1, 1)
    assert (await theirs).request_id == RequestId("r-0"), "the others' question waits for it"


async def test_while_no_scheduler_leads_a_node_may_tell_what_a_lost_one_had() -> None:
    rig = Rig()
    rig.others.may_answer.clear()
    asking = asyncio.create_task(rig.ask())
    await until(lambda: rig.sought)
    rig.runs.adopt(REQUEST)
    await asking
    assert not rig.inference.requests
    assert not rig.runs.find(R1, tenant="default").is_mirror


async def test_what_another_scheduler_shows_to_one_that_has_just_left_is_let_go() -> None:
    rig = Rig()
    shown = rig.others.claimed = Shown()
    rig.others.may_answer.clear()
    asking = asyncio.create_task(rig.ask())
    await until(lambda: rig.sought)
    rig.others.may_answer.set()
    asyncio.get_running_loop().call_soon(asking.cancel)  # once the claim is answered
    await asyncio.wait({asking})
    assert asking.cancelled()
    await until(lambda: shown.is_cancelled)


async def test_another_body_with_a_key_of_another_scheduler_is_refused() -> None:
    rig = Rig()
    rig.others.claimed = Shown()
    with pytest.raises(InvalidRequest, match="used for a request with another body"):
        await rig.ask(name=replace(NAME, digest=b"e" * 16))


async def test_a_request_that_is_only_shown_here_is_not_shown_on() -> None:
    rig = Rig()
    await rig.follow()
    with pytest.raises(UnknownRequest):
        await rig.runs.known_by_key(NAME.path, NAME.tenant, NAME.key)


async def test_a_request_that_is_only_shown_here_is_ended_where_it_runs() -> None:
    rig = Rig()
    sink, shown = await rig.follow()
    await rig.runs.end(R1, tenant="default")
    assert rig.others.ended == [(R1, "scheduler-1")]
    assert not shown.is_cancelled
    assert not sink.over, "its scheduler says so, when it is"
    assert shown.sink is not None
    shown.sink.failed(SchedulerStopping("lost"))
    with pytest.raises(NodeUnavailable, match="scheduler-1, which is lost"):
        await rig.runs.end(R1, tenant="default")
    rig.runs.adopt(REQUEST)
    await rig.runs.end(R1, tenant="default")
    assert sink.over, "it is this one's now"
    assert len(rig.others.ended) == 1


async def test_a_key_that_another_scheduler_has_got_meanwhile_is_not_begun() -> None:
    rig = Rig()
    rig.others.lost_key = NodeUnavailable("scheduler-1 has got it")
    with pytest.raises(NodeUnavailable, match="has got it"):
        await rig.ask()
    assert not rig.inference.requests
    rig.others.lost_key = None
    await rig.ask()
    assert len(rig.inference.requests) == 1


async def test_a_request_that_is_not_here_is_ended_where_it_is_known_to_be() -> None:
    rig = Rig()
    rig.others.told = NodeUnavailable("request r-1 is at scheduler-1")
    with pytest.raises(NodeUnavailable, match="is at scheduler-1"):
        await rig.runs.end(R1, tenant="default")
    rig.others.has_it = True
    await rig.runs.end(R1, tenant="default")
    assert rig.others.ended == [(R1, ""), (R1, "")]


async def test_when_its_scheduler_is_lost_a_node_gives_it_and_no_token_is_doubled() -> None:
    rig = Rig()
    sink, shown = await rig.follow()
    assert shown.sink is not None
    shown.sink.failed(SchedulerStopping("lost"))
    await asyncio.sleep(0)
    assert rig.sought[-1] == R1
    _, adopted = rig.runs.adopt(REQUEST)
    adopted.planned(PLAN)
    for index, text in enumerate("abc"):
        adopted.tokens(frame(index, text))
    adopted.ended(ended())
    assert text_of(sink) == "abc"
    assert sum(isinstance(event, Planned) for event in sink.events) == 1
    assert not rig.runs.find(R1, tenant="default").is_mirror


async def test_when_a_third_scheduler_has_taken_it_over_it_is_shown_from_there() -> None:
    rig = Rig()
    sink, shown = await rig.follow()
    third = rig.others.found = Shown()
    assert shown.sink is not None
    shown.sink.failed(SchedulerStopping("lost"))
    await until(lambda: third.sink)
    assert third.sink is not None
    assert rig.others.known == [2]
    for index, text in enumerate("abc"):
        third.sink.tokens(frame(index, text))
    third.sink.ended(ended())
    assert text_of(sink) == "abc"


@pytest.mark.parametrize("third", [None, Shown()], ids=["nobody", "a third scheduler"])
async def test_when_the_last_client_leaves_one_that_is_adrift_nobody_waits_for_it_any_more(
    third: Shown | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "MIRROR_LINGER_S", 0.0)
    rig = Rig(linger_s=0.3)
    sink, shown = await rig.follow()
    assert shown.sink is not None
    before = asyncio.all_tasks()
    shown.sink.failed(SchedulerStopping("lost"))
    (waiting,) = asyncio.all_tasks() - before
    rig.others.found = third
    rig.runs.find(R1, tenant="default").leave(sink)
    await until(lambda: not len(rig.runs))
    rig.runs.adopt(REQUEST)
    adopted = rig.runs.find(R1, tenant="default")
    adopted.listen(Collected())
    await waiting
    assert rig.runs.find(R1, tenant="default") is adopted
    assert third is None or third.sink is None, "it is not shown to nobody"


async def test_a_failure_that_its_scheduler_tells_is_told() -> None:
    rig = Rig()
    sink, shown = await rig.follow()
    assert shown.sink is not None
    shown.sink.failed(NodeUnavailable("no node"))
    assert isinstance(sink.error, NodeUnavailable)


async def test_a_stream_is_looked_for_at_its_scheduler_and_what_that_says_counts() -> None:
    rig = Rig(wait_s=10.0)
    shown = rig.others.found = Shown()
    await rig.runs.appear(R1, tenant="default")
    assert rig.runs.find(R1, tenant="default").is_mirror
    assert shown.sink is not None
    rig.others.found = RequestGone("it ended")
    with pytest.raises(RequestGone):
        await rig.runs.appear(RequestId("r-9"), tenant="default")


async def test_what_cannot_be_continued_is_explained_if_anybody_has_heard_of_it() -> None:
    rig = Rig()
    rig.others.told = RequestGone("it ended at scheduler s-1")
    with pytest.raises(RequestGone, match="s-1"):
        rig.runs.find(R1, tenant="default")
    rig.others.told = None
    with pytest.raises(UnknownRequest):
        rig.runs.find(R1, tenant="default")
