"""Whose decision an effect is, when a leader takes over what a lost scheduler had."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdd.cell.claims import HeardClaim, KeyClaims
from pdd.control.group_convert import told_to_proto
from pdd.control.leader_server import HolderSession
from pdd.core.frames import EngineFacts
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Path, Plan
from pdd.daemon import group_desk
from pdd.daemon.group_desk import GroupDesk
from pdd.rpc.v1 import decisions_pb2
from pdd.scheduler.effects import Announce, Complete, Effect
from pdd.scheduler.events import Event, HeldSequence, OutputRecovered, RequestArrived
from pdd.scheduler.group_events import LeadershipChanged, PlaceGiven
from pdd.scheduler.requests import Phase, Request
from pdd.tls.security import PLAIN
from tests.builders import Cluster, make_finish, make_request
from tests.waiting import until

D0 = NodeName("decode-0")
R1 = RequestId("r1")


class Leader:
    """A core that leads, and its desk."""

    def __init__(self, addresses: dict[str, str] | None = None) -> None:
        self.cluster = Cluster("prefill-0", "decode-0")
        self.own: list[Effect] = []
        """What the desk left to the streams held here."""
        self.desk = GroupDesk(
            name="s0",
            addresses=addresses or {"s0": "a", "s1": "b"},
            core=self.cluster.core,
            clock=lambda: 0.0,
            security=PLAIN,
            step=self.step,
            output_token_count=lambda _: 0,
            crashed=lambda error: None,
        )
        self.desk.leader_is("s0")

    def step(self, event: Event) -> None:
        effects = self.cluster.step(event)
        self.own += [effect for effect in effects if not self.desk.takes(effect)]
        self.desk.stepped(event, effects)


class Followed:
    """Stands in for the link to a leader: what was sent there."""

    leader = "s1"

    def __init__(self) -> None:
        self.sent: list[decisions_pb2.HolderItem] = []

    def send(self, item: decisions_pb2.HolderItem) -> None:
        self.sent.append(item)


async def test_a_new_leader_hears_of_what_runs_before_it_hears_of_who_waits() -> None:
    holder = Leader()
    holder.step(LeadershipChanged(leads=False))
    for name in ("r1", "r2"):
        holder.step(RequestArrived(request=make_request(name)))
    plan = Plan(path=Path.LOCAL, prefill_node=None, decode_node=D0, reason="why")
    holder.step(PlaceGiven(request_id=RequestId("r2"), generation=0, plan=plan, granted_tokens=16))
    link = Followed()
    holder.desk.leader_attached(link)  # type: ignore[arg-type]
    assert [item.request.parameters.request_id for item in link.sent] == ["r2", "r1", ""]
    assert link.sent[-1].WhichOneof("item") == "all_told"


async def test_a_holder_is_told_where_less_was_left_for_what_it_runs() -> None:
    leader = Leader()
    leader.step(RequestArrived(request=make_request("big", prompt_token_count=1400)))
    session = HolderSession("s1")
    leader.desk.holder_attached(session)
    sent: list[decisions_pb2.LeaderItem] = []
    session.send = sent.append  # type: ignore[method-assign]
    plan = Plan(path=Path.LOCAL, prefill_node=None, decode_node=D0, reason="why")
    request = Request(
        request=make_request("r1", max_tokens=400),
        arrived_s=0.0,
        plan=plan,
        decode=D0,
        phase=Phase.DECODING,
        first_token_s=0.0,
        granted_tokens=400,
    )
    leader.desk.holder_said(session, told_to_proto(request, output_token_count=10, now_s=0.0))
    (item,) = sent
    assert (item.request_id, item.generation) == ("r1", 0)
    assert item.place.granted_token_count == 42
    leader.desk.holder_said(
        session, told_to_proto(leader.cluster.core.requests[R1], output_token_count=10, now_s=0.0)
    )
    assert len(sent) == 1, "it knows"


async def test_a_new_leader_notes_whoever_does_not_come_to_it_and_forgets_what_that_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wait in ("SETTLE_S", "LOST_AFTER_S", "HOLDER_MEMORY_S"):
        monkeypatch.setattr(group_desk, wait, 0.01)
    leader = Leader(addresses={"s0": "a", "s1": "b", "s2": "c"})
    noted: list[tuple[str, bool]] = []
    leader.desk.on_holder_lost = lambda name, is_final: noted.append((name, is_final))
    leader.desk.holder_attached(HolderSession("s1"))
    await until(lambda: len(noted) == 2)
    assert noted == [("s2", False), ("s2", True)]


async def test_the_end_of_what_was_taken_over_is_told_here_not_to_the_scheduler_that_is_gone() -> (
    None
):
    leader = Leader()
    session = HolderSession("s1")
    leader.desk.holder_attached(session)
    plan = Plan(path=Path.LOCAL, prefill_node=None, decode_node=D0, reason="why")
    request = Request(
        request=make_request("r1"),
        arrived_s=0.0,
        plan=plan,
        decode=D0,
        phase=Phase.DECODING,
        first_token_s=0.0,
        granted_tokens=16,
    )
    leader.desk.holder_said(session, told_to_proto(request, output_token_count=5, now_s=0.0))
    assert leader.cluster.core.requests[R1].holder == "s1"
    leader.desk.holder_detached(session, "killed")
    held = HeldSequence(
        request=request.request,
        keys=b"",
        generation=0,
        output_token_count=16,
        prefill_node=None,
        first_facts=EngineFacts(),
        arrived_age_s=3.0,
        placed_age_s=3.0,
        first_token_age_s=2.0,
        ready_age_s=2.0,
        ended_age_s=1.0,
    )
    leader.desk.taken_over(R1)
    leader.step(OutputRecovered(node=D0, held=held, finish=make_finish()))
    assert [type(effect) for effect in leader.own] == [Announce, Complete]
    assert not leader.cluster.core.requests


def with_key(name: str, key: bytes) -> Request:
    request = replace(make_request(name), resume_key=key)
    return Request(request=request, arrived_s=0.0)


async def test_a_new_leader_says_which_keys_run_where_and_whom_it_has_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_desk, "SETTLE_S", 60.0)
    leader = Leader(addresses={"s0": "a", "s1": "b", "s2": "c", "s3": "d"})
    leader.desk.leader_is("s3")
    leader.step(LeadershipChanged(leads=False))
    leader.step(RequestArrived(request=with_key("own", b"k0").request))
    keys: dict[bytes, str] = {}

    def note(key: bytes, holder: str, runs_it: Callable[[str], bool]) -> str:
        return keys.setdefault(key, holder)

    leader.desk.on_key_told = note
    leader.desk.leader_is("s0")
    assert leader.desk.unheard == ["s1", "s2"], "the former leader is lost, as far as one knows"
    for name, told in (("s1", "r1"), ("s2", "r2"), ("s3", "r3")):
        session = HolderSession(name)
        leader.desk.holder_attached(session)
        item = told_to_proto(with_key(told, told.encode()), output_token_count=0, now_s=0.0)
        leader.desk.holder_said(session, item)
        assert (name in leader.desk.unheard) is (name != "s3")
        leader.desk.holder_said(session, decisions_pb2.HolderItem(all_told=decisions_pb2.AllTold()))
    assert leader.desk.unheard == []
    assert leader.desk.leads, "all have told"
    assert keys == {b"k0": "s0", b"r1": "s1", b"r2": "s2", b"r3": "s3"}


async def test_what_the_former_leader_had_claimed_comes_from_whom_it_had_told() -> None:
    witness, leader = Leader(), Leader()
    witness.step(LeadershipChanged(leads=False))
    witness.desk.heard_claims.note(HeardClaim(b"k", "s9", 1.5), 0.0)
    link = Followed()
    witness.desk.leader_attached(link)  # type: ignore[arg-type]
    session = HolderSession("s1")
    leader.desk.holder_attached(session)
    leader.desk.holder_said(session, link.sent[-1])
    assert leader.desk.heard_claims.all(0.0) == [HeardClaim(b"k", "s9", 1.5)]


class Told:
    """Schedulers that tell a leader what they hold, and what it says to them."""

    def __init__(self, *names: str) -> None:
        self.leader = Leader(addresses=dict.fromkeys(("s0", *names), "a"))
        claims = KeyClaims(sources=())
        self.claims = claims
        self.leader.desk.on_key_told = lambda key, holder, runs: claims.told(
            key, holder, stands=runs
        )
        self.sent: list[tuple[str, str, str]] = []
        self.sessions: dict[str, HolderSession] = {}
        for name in names:
            self.attach(name)

    def attach(self, name: str) -> None:
        session = self.sessions[name] = HolderSession(name)

        def note(item: decisions_pb2.LeaderItem) -> None:
            self.sent.append((name, item.request_id, str(item.WhichOneof("item"))))

        session.send = note  # type: ignore[method-assign]
        self.leader.desk.holder_attached(session)

    def detach(self, name: str) -> None:
        self.leader.desk.holder_detached(self.sessions[name], "it stands still")

    def tell(self, name: str, request_id: str, *, key: bytes = b"k", **state: Any) -> None:
        request = replace(with_key(request_id, key), **state)
        item = told_to_proto(request, output_token_count=0, now_s=0.0)
        self.leader.desk.holder_said(self.sessions[name], item)

    def refused(self) -> list[tuple[str, str]]:
        """Who was refused which request."""
        return [(name, request_id) for name, request_id, what in self.sent if what == "refused"]

    def held(self) -> dict[str, str]:
        return {name: one.holder for name, one in self.leader.cluster.core.requests.items()}


RUNNING = {
    "phase": Phase.DECODING,
    "plan": Plan(path=Path.LOCAL, prefill_node=None, decode_node=D0, reason="why"),
    "decode": D0,
    "first_token_s": 0.0,
    "granted_tokens": 16,
}


async def test_who_comes_back_with_a_key_that_another_runs_by_now_is_refused() -> None:
    told = Told("s1", "s2")
    told.tell("s1", "r1", **RUNNING)
    told.detach("s1")
    assert told.claims.claim(b"k", "s2", without={"s1"}) == "s2"
    told.tell("s2", "r2")
    told.attach("s1")
    told.tell("s1", "r1", **RUNNING)
    assert told.refused() == [("s1", "r1")]
    assert told.held()["r2"] == "s2"


async def test_who_comes_back_with_a_key_before_the_other_has_begun_keeps_it() -> None:
    told = Told("s1", "s2")
    assert told.claims.claim(b"k", "s2") == "s2"  # and prepares it
    told.tell("s1", "r1", **RUNNING)
    told.tell("s2", "r2")
    assert told.refused() == [("s2", "r2")]
    assert told.held() == {"r1": "s1"}


async def test_a_claim_of_one_that_has_nothing_of_that_key_any_more_refuses_nobody() -> None:
    told = Told("s1", "s2")
    assert told.claims.claim(b"k", "s1") == "s1"  # then it died, is back, and has lost it
    told.tell("s2", "r1", **RUNNING)  # a node has given it to s2
    assert not told.refused()
    assert told.held() == {"r1": "s2"}


@pytest.mark.parametrize("first", ["s1", "s2"])
async def test_of_two_that_have_one_request_who_runs_it_keeps_it(first: str) -> None:
    told = Told("s1", "s2")
    for name in ("s1", "s2") if first == "s1" else ("s2", "s1"):
        told.tell(name, "r1", **(RUNNING if name == "s2" else {"generation": 1}))
    assert told.refused() == [("s1", "r1")]
    assert told.held() == {"r1": "s2"}


async def test_what_the_leader_itself_has_by_now_is_refused_to_who_comes_back_with_it() -> None:
    told = Told("s1")
    told.leader.step(RequestArrived(request=with_key("r1", b"k").request))
    told.tell("s1", "r1", generation=1)
    assert told.refused() == [("s1", "r1")]
    assert told.held() == {"r1": ""}


async def test_what_a_lost_scheduler_has_is_dropped_if_it_never_had_a_place_only() -> None:
    told = Told("s1", "s2")
    told.leader.step(RequestArrived(request=make_request("big", prompt_token_count=1500)))
    long = replace(make_request("r1", prompt_token_count=1500), resume_key=b"k")
    told.tell("s1", "r1", request=long)
    told.tell("s1", "r2", key=b"k2")
    placed = [name for one, name, what in told.sent if what == "place"]
    assert placed == ["r2"], "r1 waits for room"
    told.detach("s1")
    drop = told.leader.desk.drop_waiting
    assert [drop(b"k", "s2"), drop(b"none", "s1"), drop(b"k2", "s1")] == [False] * 3
    assert drop(b"k", "s1")
    assert told.claims.claim(b"k", "s2", without={"s1"}) == "s2"
    told.tell("s2", "r3")
    told.attach("s1")
    told.tell("s1", "r1", request=long)
    assert told.refused() == [("s1", "r1")]
