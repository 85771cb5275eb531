"""Two schedulers over real gRPC: one asks for a key, the other has it, and the leader says so."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from pdd.cell.claims import HeardClaim, HeardClaims
from pdd.cell.codec import CODEC, SoftEntry
from pdd.cell.sequences import HolderLost, SequenceTable, encode_rows
from pdd.control.leader_server import NotLeading
from pdd.control.runs_client import RunsClient, SchedulerUnreachable
from pdd.control.runs_server import RunsServicer
from pdd.control.versions import SERVER_OPTIONS
from pdd.core.errors import NodeUnavailable, RequestGone, UnknownRequest
from pdd.core.identity import RequestId
from pdd.daemon import elsewhere_desk
from pdd.daemon.elsewhere_desk import ElsewhereDesk
from pdd.daemon.group_desk import LOST_AFTER_S, GroupDesk
from pdd.gateway.run import RunName
from pdd.gateway.runs import Runs
from pdd.gateway.takeover import resume_key, with_note
from pdd.rpc.v1 import runs_pb2, runs_pb2_grpc
from tests.sinks import Collected, Delta
from tests.unit.cell.samples import ended, held
from tests.unit.gateway.builders import PLAN, make_job
from tests.unit.gateway.builders import ended as ended_well
from tests.unit.gateway.test_elsewhere import Started, text_of
from tests.waiting import until

NAME = RunName(path="/v1/completions", tenant="default", key="k", digest=b"d" * 16)
R1 = RequestId("r-test")
WAIT_S = 10.0
RUN_S_MAX = 600.0


@dataclass
class FakeGroup:
    """Who leads, as the test says."""

    leader: str | None = "a"
    leads: bool = False
    silent: dict[str, float] = field(default_factory=dict)
    unheard: list[str] = field(default_factory=list)
    heard_claims: HeardClaims = field(default_factory=HeardClaims)
    waiting: set[tuple[bytes, str]] = field(default_factory=set)
    """Keys of requests that wait for their first place, and at whom."""

    def drop_waiting(self, key: bytes, holder: str) -> bool:
        return (key, holder) in self.waiting

    def silent_s(self, scheduler: str) -> float | None:
        return self.silent.get(scheduler)


class Side:
    """One scheduler: desk, runs and server."""

    def __init__(self, name: str, addresses: dict[str, str]) -> None:
        self.name = name
        self.group = FakeGroup(leads=name == "a", silent=dict.fromkeys("abc", 0.0))
        self.table = SequenceTable()
        self.inference = Started()
        self.crashed: list[BaseException] = []
        self.client = RunsClient(scheduler=name, addresses=addresses, crashed=self.crashed.append)
        clock = asyncio.get_running_loop().time
        self.desk = ElsewhereDesk(
            name=name,
            group=cast(GroupDesk, self.group),
            table=self.table,
            client=self.client,
            clock=clock,
            run_s_max=RUN_S_MAX,
        )
        self.runs = Runs(
            inference=self.inference,
            clock=clock,
            age_s=60.0,
            linger_s=60.0,
            seek=lambda request_id, key: False,
            elsewhere=self.desk,
        )
        self.desk.serve(self.runs)
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        runs_pb2_grpc.add_RunsServicer_to_server(RunsServicer(self.desk), self.server)
        addresses[name] = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    async def ask(
        self,
        request_id: RequestId = R1,
        name: RunName = NAME,
        *,
        preparing: Callable[[], None] = lambda: None,
    ) -> Collected:
        async def prepare() -> Any:
            preparing()
            return with_note(make_job(), name)

        await self.runs.settle(name)
        run = self.runs.join(name, request_id, prepare=prepare)
        await run.job()
        sink = Collected()
        run.listen(sink)
        return sink

    def hear(self, *operations: Any) -> None:
        entry = CODEC.decode(encode_rows(operations))
        assert isinstance(entry, SoftEntry)
        self.table.apply(entry.data)


@asynccontextmanager
async def sides(names: str = "ab") -> AsyncIterator[tuple[Side, ...]]:
    """``a`` leads."""
    addresses: dict[str, str] = {}
    all_sides = tuple(Side(name, addresses) for name in names)
    for side in all_sides:
        await side.server.start()
    try:
        yield all_sides
    finally:
        for side in all_sides:
            await side.client.close()
            await side.server.stop(grace=None)
            assert not side.crashed


async def until_over(sink: Collected) -> None:
    async with asyncio.timeout(WAIT_S):
        while not sink.over:
            sink.news.clear()
            await sink.news.wait()


async def test_a_scheduler_that_knows_no_leader_says_so_in_words() -> None:
    async with sides("a") as (side,):
        side.group.leads, side.group.leader = False, None
        with pytest.raises(NotLeading, match="a does not lead; it follows nobody"):
            await side.desk.claim_here(b"key", "b", released_by="")


@pytest.mark.parametrize("first", [0, 1])
async def test_whichever_has_the_key_first_runs_it_and_the_other_shows_it(first: int) -> None:
    async with sides() as both:
        holder, other = both[first], both[1 - first]
        own = await holder.ask()
        shown = await other.ask(RequestId("r-other"))
        assert (len(holder.inference.requests), other.inference.requests) == (1, [])
        run = holder.runs.find(R1, tenant="default")
        run.token(R1, 0, 7, 0, "a")
        run.failed(RequestGone("the end"))
        await until_over(shown)
        assert text_of(own) == text_of(shown) == "a"
        assert str(shown.error) == "the end"


async def test_two_that_are_asked_at_the_same_moment_run_it_once() -> None:
    async with sides() as both:
        async with asyncio.TaskGroup() as tasks:
            for number in range(6):
                side = both[number % 2]
                tasks.create_task(side.ask(RequestId(f"r-{number}")))
        assert sum(len(side.inference.requests) for side in both) == 1


async def test_a_key_whose_run_is_forgotten_is_run_anew_by_whoever_is_asked() -> None:
    async with sides() as (a, b):
        await a.ask()
        a.runs.find(R1, tenant="default").failed(NodeUnavailable("failed: forgotten at once"))
        await b.ask()
        assert (len(a.inference.requests), len(b.inference.requests)) == (1, 1)


async def test_a_new_leader_knows_from_the_table_who_has_a_key() -> None:
    async with sides() as (a, b):
        await b.ask()
        a.desk.leader_is("a")  # its claims are gone
        a.hear(held(R1, holder="b", tenant="default", key=resume_key(NAME)))
        await a.ask(RequestId("r-a"))
        assert (len(a.inference.requests), len(b.inference.requests)) == (0, 1)


async def test_a_key_that_two_others_are_said_to_have_and_neither_has_is_run_by_the_third() -> None:
    async with sides("abc") as (a, b, c):
        a.group.heard_claims.note(HeardClaim(resume_key(NAME), "b", 0.0), 0.0)
        a.hear(held(R1, holder="c", tenant="default", key=resume_key(NAME)))
        await asyncio.wait_for(a.ask(), WAIT_S)
        assert len(a.inference.requests) == 1
        assert not b.inference.requests + c.inference.requests


async def test_a_new_leader_grants_nothing_before_the_others_have_told_what_they_have() -> None:
    async with sides() as (a, b):
        await b.ask()
        a.desk.leader_is("a")  # its claims are gone, and b's row is on its way
        a.group.unheard = ["b"]
        asking = asyncio.create_task(a.ask(RequestId("r-a")))
        done, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not done
        a.desk.key_told(resume_key(NAME), "b", lambda other: True)
        a.group.unheard = []
        await asyncio.wait_for(asking, WAIT_S)
        assert (len(a.inference.requests), len(b.inference.requests)) == (0, 1)


async def test_a_request_that_is_prepared_while_leaders_change_asks_again_before_it_begins() -> (
    None
):
    async with sides() as (a, b):

        def another_leader_gives_it_to(other: str) -> None:
            for side in (a, b):
                side.desk.leader_is("a")
            a.desk.key_told(resume_key(NAME), other, lambda one: True)

        with pytest.raises(NodeUnavailable, match="scheduler a has got this idempotency-key"):
            await b.ask(preparing=lambda: another_leader_gives_it_to("a"))
        assert not b.inference.requests
        await b.ask(
            name=replace(NAME, key="k2"),
            request_id=RequestId("r-2"),
            preparing=lambda: b.desk.leader_is("a"),
        )
        assert len(b.inference.requests) == 1, "it is still b's"


async def test_without_a_leader_a_key_is_not_run_on_suspicion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elsewhere_desk, "CLAIM_WAIT_S", 0.3)
    async with sides() as (a, b):
        a.group.leads = False
        for side in (a, b):
            with pytest.raises(NodeUnavailable, match="send the request again"):
                await side.ask()
            assert not side.inference.requests


async def test_a_holder_that_is_silent_and_whose_process_is_over_loses_its_keys() -> None:
    async with sides("abc") as (a, b, _):
        await b.ask()
        await b.server.stop(grace=None)
        a.group.silent["b"] = LOST_AFTER_S + 1
        await a.ask(RequestId("r-a"))
        assert len(a.inference.requests) == 1


@contextmanager
def standing_still(side: Side) -> Iterator[None]:
    """Its process lives and says nothing: connections are taken, and nobody reads them. Its
    requests run on."""
    addresses = cast("dict[str, str]", side.client._addresses)
    former = addresses[side.name]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses[side.name] = f"127.0.0.1:{silent.getsockname()[1]}"
        try:
            yield
        finally:
            addresses[side.name] = former


@pytest.mark.parametrize("silent_s", [LOST_AFTER_S + 1, RUN_S_MAX - 1])
async def test_a_key_whose_scheduler_stands_still_is_run_by_nobody_else(
    silent_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere_desk, "CLAIM_WAIT_S", 2.5)
    async with sides("abc") as (a, b, c):
        await b.ask()
        a.group.silent = {"a": 0.0, "b": silent_s, "c": 0.0}
        with standing_still(b):
            for side in (a, c):
                with pytest.raises(NodeUnavailable, match="send the request again") as refused:
                    await side.ask(RequestId(f"r-{side.name}"))
                assert refused.value.retry_after_s is not None
        a.group.silent["b"] = 0.0
        for side in (a, c):  # it is back: they are shown what it runs
            await side.ask(RequestId(f"r-{side.name}"))
        assert [len(side.inference.requests) for side in (a, b, c)] == [0, 1, 0]


def leads_now(new: Side, *sides: Side) -> None:
    """Whoever led, its log has said nothing of what it had claimed. All others have told ``new``
    what they have heard."""
    for side in sides:
        side.desk.leader_is(new.name)
        side.group.leader, side.group.leads = new.name, side is new
        for claim in side.group.heard_claims.all(0.0):
            new.group.heard_claims.note(claim, 0.0)


@pytest.mark.parametrize("next_leader", [1, 2])
async def test_a_key_that_the_leader_took_just_before_it_stood_still_is_run_by_nobody_else(
    next_leader: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere_desk, "CLAIM_WAIT_S", 2.5)
    async with sides("abc") as all_sides:
        a, b, c = all_sides
        await a.ask()
        with standing_still(a):
            leads_now(all_sides[next_leader], b, c)
            for side in (b, c):
                side.group.silent["a"] = LOST_AFTER_S + 1
                with pytest.raises(NodeUnavailable, match="send the request again"):
                    await side.ask(RequestId(f"r-{side.name}"))
        await b.ask(RequestId("r-b"))
        assert [len(side.inference.requests) for side in all_sides] == [1, 0, 0]


async def test_what_a_leader_has_granted_is_known_to_the_next_one_also_of_who_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elsewhere_desk, "CLAIM_WAIT_S", 2.5)
    async with sides("abc") as all_sides:
        a, b, c = all_sides
        await b.ask()
        with standing_still(b):
            leads_now(c, a, c)
            c.group.silent |= {"b": LOST_AFTER_S + 1, "c": 0.0}
            for side in (a, c):
                with pytest.raises(NodeUnavailable, match="send the request again"):
                    await side.ask(RequestId(f"r-{side.name}"))
        await c.ask(RequestId("r-c"))
        assert [len(side.inference.requests) for side in all_sides] == [0, 1, 0]


@pytest.mark.parametrize("silent", [1, 2])
async def test_the_leader_runs_a_key_when_one_of_the_others_knows_of_it(silent: int) -> None:
    async with sides("abc") as all_sides:
        a, knows = all_sides[0], all_sides[3 - silent]
        with standing_still(all_sides[silent]):
            await a.ask()
        assert knows.group.heard_claims.holder_of(resume_key(NAME)) == "a"
        assert len(a.inference.requests) == 1


async def test_the_leader_does_not_run_a_key_of_which_no_other_scheduler_takes_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elsewhere_desk, "CLAIM_WAIT_S", 0.3)
    async with sides("abc") as (a, b, c):
        b.group.leader = "c"  # and a has not heard of that yet
        await c.server.stop(grace=None)
        with pytest.raises(NodeUnavailable, match=r"takes note of the key.*b follows c"):
            await a.ask()
        assert not a.inference.requests


async def test_a_scheduler_that_is_alone_tells_nobody() -> None:
    async with sides("a") as (a,):
        await a.ask()
        assert len(a.inference.requests) == 1


async def test_a_key_is_free_when_its_scheduler_was_silent_for_as_long_as_a_request_takes() -> None:
    async with sides("abc") as (a, b, _):
        await b.ask()
        a.group.silent["b"] = RUN_S_MAX
        with standing_still(b):
            await a.ask(RequestId("r-a"))
        assert len(a.inference.requests) == 1


async def test_a_key_whose_request_waits_for_a_place_at_a_lost_scheduler_is_free() -> None:
    async with sides("abc") as (a, b, _):
        await b.ask()
        a.group.silent["b"] = LOST_AFTER_S + 1
        a.group.waiting.add((resume_key(NAME), "b"))
        with standing_still(b):
            await a.ask(RequestId("r-a"))
        assert len(a.inference.requests) == 1


async def test_the_leader_does_not_begin_what_another_came_back_with_while_it_prepared() -> None:
    async with sides() as (a, _):

        def b_tells_of_it() -> None:
            assert a.desk.key_told(resume_key(NAME), "b", lambda other: False) == "b"

        with pytest.raises(NodeUnavailable, match="scheduler b has got this idempotency-key"):
            await a.ask(preparing=b_tells_of_it)
        assert not a.inference.requests


async def test_clients_that_have_seen_unlike_parts_of_it_all_go_on_at_another_scheduler() -> None:
    async with sides() as (has, shows):
        await has.ask()
        run = has.runs.find(R1, tenant="default")
        run.planned(PLAN)
        for index, text in enumerate("abcd"):
            run.token(R1, index, index, index, text)
        run.ended(ended_well(completion_tokens=4))
        first = await shows.ask()
        later, positions = [], (3, 1, 2)
        for position in positions:  # before anything has come from the other scheduler
            sink = Collected()
            shows.runs.find(R1, tenant="default").listen(sink, cuts=(position,))
            later.append(sink)
        await until(lambda: all(sink.over for sink in (first, *later)))
        for position, sink in zip(positions, later, strict=True):
            frames = [event.frame for event in sink.events if isinstance(event, Delta)]
            assert "".join(one.text for one in frames) == "abcd"
            assert position in [one.first_token_index for one in frames]
        again = Collected()
        shows.runs.find(R1, tenant="default").listen(again, cuts=(2,))
        assert [event.frame.text for event in again.events if isinstance(event, Delta)] == [
            "ab",
            "cd",
        ]


def open_sockets() -> int:
    """Of this process: of both schedulers."""
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(fd.readlink()))
    return sum(link.startswith("socket:") for link in links)


async def test_what_was_shown_to_its_end_is_kept_and_its_connection_is_not() -> None:
    async with sides() as (has, shows):
        await has.ask()
        await shows.client.claim("a", resume_key(NAME), released_by="")
        at_rest = open_sockets()  # those of short calls stay
        run = has.runs.find(R1, tenant="default")
        shown = await shows.ask(RequestId("r-other"))
        assert open_sockets() > at_rest
        run.token(R1, 0, 7, 0, "a")
        run.ended(ended_well(completion_tokens=1))
        await until_over(shown)
        await until(lambda: open_sockets() == at_rest)
        assert len(shows.runs) == 1


@pytest.mark.parametrize("shown", [True, False])
async def test_who_leaves_before_anything_was_shown_leaves_no_connection(shown: bool) -> None:
    async with sides() as (has, shows):
        await has.ask()
        await shows.client.claim("a", resume_key(NAME), released_by="")
        at_rest = open_sockets()
        wanted = runs_pb2.FollowRequest(request_id=R1, tenant="default")
        followed = await shows.client.follow("a", wanted)
        assert open_sockets() > at_rest
        if shown:
            followed.start(followed.request, Collected())
        for _ in range(2):
            followed.cancel(R1)
        await until(lambda: open_sockets() == at_rest)
        followed.cancel(R1)


async def test_a_stream_is_found_by_its_row_and_its_end_is_told_by_any() -> None:
    async with sides() as (a, b):
        await b.ask()
        a.hear(held(R1, holder="b", tenant="default", key=resume_key(NAME)))
        remote = await a.desk.find(R1, tenant="default")
        assert remote is not None
        remote.cancel(R1)
        assert await a.desk.find(R1, tenant="another") is None
        a.hear(held("r-gone", holder="b", tenant="default"), ended("r-gone", holder="b"))
        with pytest.raises(RequestGone, match=r"ended at scheduler b \(finished\)"):
            await a.desk.find(RequestId("r-gone"), tenant="default")
        a.hear(held("r-plain", holder="b", tenant="default"))
        with pytest.raises(UnknownRequest, match="without an Idempotency-Key"):
            await a.desk.find(RequestId("r-plain"), tenant="default")


async def test_a_request_that_runs_here_for_its_client_only_is_not_said_to_be_unknown() -> None:
    async with sides() as (a, _):
        a.hear(held("r-own", holder="a", tenant="default"))
        with pytest.raises(UnknownRequest, match="runs at scheduler a for the client that sent it"):
            await a.runs.end(RequestId("r-own"), tenant="default")
        with pytest.raises(UnknownRequest, match="is not known to this scheduler"):
            await a.runs.end(RequestId("r-own"), tenant="another")


async def test_what_its_scheduler_lost_with_its_own_life_is_unknown_and_not_said_to_be_there() -> (
    None
):
    async with sides() as (a, _):
        a.hear(held("r-lost", holder="b", tenant="default", key=b"k" * 16))
        with pytest.raises(
            UnknownRequest, match="scheduler b, which had it, does not know it either"
        ):
            await a.desk.find(RequestId("r-lost"), tenant="default")
        a.hear(HolderLost(holder="b", is_final=False, at_ms=9))
        assert await a.desk.find(RequestId("r-lost"), tenant="default") is None
        told = a.desk.explain(RequestId("r-lost"), tenant="default")
        assert isinstance(told, NodeUnavailable)
        assert "scheduler b, which had it, is lost" in str(told)


async def test_a_row_of_one_that_is_none_of_the_schedulers_any_more_is_not_followed() -> None:
    async with sides() as (a, _):
        a.hear(held(R1, holder="c", tenant="default", key=resume_key(NAME)))
        assert await a.desk.find(R1, tenant="default") is None
        a.group.silent["c"] = 0.0
        with pytest.raises(SchedulerUnreachable, match=r"c is not in raft\.schedulers here"):
            await a.client.claim("c", b"k", released_by="")


async def test_who_will_not_come_back_may_say_so_at_any_scheduler() -> None:
    async with sides() as (a, b):
        own = await b.ask()
        for _ in range(2):  # before its row has come, and after
            with pytest.raises(UnknownRequest):
                await a.runs.end(R1, tenant="another")
            a.hear(held(R1, holder="b", tenant="default", key=resume_key(NAME)))
        assert not own.over
        await a.runs.end(R1, tenant="default")
        assert str(own.error) == "it was cancelled by a client"
        await a.runs.end(R1, tenant="default")  # it was over already


async def test_a_request_is_ended_before_its_row_has_come() -> None:
    async with sides() as (a, b):
        own = await b.ask()
        await a.runs.end(R1, tenant="default")
        assert str(own.error) == "it was cancelled by a client"
        await b.server.stop(grace=None)
        with pytest.raises(UnknownRequest, match="not known to this scheduler"):
            await a.runs.end(RequestId("r-nobody"), tenant="default")


async def test_who_follows_elsewhere_ends_it_where_it_runs_and_hears_of_it() -> None:
    async with sides() as (a, b):
        own = await b.ask()
        shown = await a.ask(RequestId("r-a"))
        await a.runs.end(R1, tenant="default")
        await until_over(shown)
        assert str(own.error) == str(shown.error) == "it was cancelled by a client"


async def test_a_request_is_not_said_to_be_over_by_a_scheduler_that_does_not_answer() -> None:
    async with sides() as (a, b):
        await b.ask()
        a.hear(held(R1, holder="b", tenant="default", key=resume_key(NAME)))
        await b.server.stop(grace=None)
        with pytest.raises(
            NodeUnavailable, match=r"scheduler b, which has not said .* end it again"
        ):
            await a.runs.end(R1, tenant="default")


@pytest.mark.parametrize("has_it", [True, False])
async def test_who_ends_it_before_its_row_has_come_does_not_stumble_over_who_has_the_row(
    has_it: bool,
) -> None:
    async with sides("abc") as (a, b, c):
        own = await c.ask() if has_it else None
        b.hear(held(R1, holder="c", tenant="default", key=resume_key(NAME)))
        if own is not None:
            await a.runs.end(R1, tenant="default")
            assert str(own.error) == "it was cancelled by a client"
        else:
            with pytest.raises(NodeUnavailable, match="is at scheduler c, not at this one"):
                await a.runs.end(R1, tenant="default")
