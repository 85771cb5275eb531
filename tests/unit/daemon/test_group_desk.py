"""Whose decision an effect is, when a leader takes over what a lost scheduler had."""

from dataclasses import replace

import pytest

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
    leader.desk.on_key_told = keys.__setitem__
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
