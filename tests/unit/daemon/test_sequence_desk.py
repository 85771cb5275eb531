"""What a scheduler says of its requests, and that what it does not say again does not stay."""

from dataclasses import replace

import pytest

from pdd.cell.codec import CODEC, SoftEntry
from pdd.cell.sequences import HOW_LOST, SequenceTable, SoftOperation, encode_rows
from pdd.core.frames import EngineFacts
from pdd.core.identity import NodeName, RequestId
from pdd.daemon import sequence_desk
from pdd.daemon.sequence_desk import SequenceDesk
from pdd.scheduler.events import (
    Event,
    HeldSequence,
    OutputRecovered,
    RequestArrived,
    RequestCancelled,
)
from tests.builders import Cluster, make_finish, make_request
from tests.unit.cell.samples import held
from tests.waiting import until


class Scheduler:
    """A core, its desk, and a table that hears all that is said, but what the test loses."""

    def __init__(self, table: SequenceTable | None = None) -> None:
        self.cluster = Cluster("prefill-0", "decode-0")
        self.table = SequenceTable() if table is None else table
        self.is_heard = True
        self.desk = SequenceDesk(name="s0", core=self.cluster.core, table=self.table, say=self.say)

    def say(self, operation: SoftOperation) -> None:
        if self.is_heard:
            entry = CODEC.decode(encode_rows([operation]))
            assert isinstance(entry, SoftEntry)
            self.table.apply(entry.data)

    def step(self, event: Event) -> None:
        self.desk.stepped(event, self.cluster.step(event))

    def arrive(self, name: str) -> None:
        self.step(RequestArrived(request=make_request(name)))

    def ended(self, name: str) -> str | None:
        row = self.table.get(name)
        return None if row is None else row.ended


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_desk, "_SAY_AGAIN_S", 0.01)
    monkeypatch.setattr(sequence_desk, "HOLDER_MEMORY_S", 0.05)


async def test_a_request_is_told_with_its_nodes_and_then_its_end() -> None:
    scheduler = Scheduler()
    scheduler.arrive("r1")
    row = scheduler.table.get("r1")
    assert row is not None
    assert (row.holder, row.decode, row.is_adrift) == ("s0", "decode-0", False)
    scheduler.step(RequestCancelled(request_id=RequestId("r1")))
    assert scheduler.ended("r1") == "cancelled"


async def test_what_a_former_life_had_does_not_stay_and_what_this_one_has_does() -> None:
    table = SequenceTable()
    Scheduler(table).say(held("r-old", holder="s0"))
    scheduler = Scheduler(table)
    scheduler.arrive("r1")
    row = table.get("r-old")
    assert row is not None
    assert row.is_adrift
    await until(lambda: scheduler.ended("r-old") == HOW_LOST)
    assert scheduler.ended("r1") == ""


async def test_one_whose_end_nobody_heard_does_not_stay() -> None:
    scheduler = Scheduler()
    for name in ("r1", "r2"):
        scheduler.arrive(name)
    scheduler.is_heard = False
    scheduler.step(RequestCancelled(request_id=RequestId("r1")))
    scheduler.is_heard = True
    scheduler.desk.lost()
    await until(lambda: scheduler.ended("r1") == HOW_LOST)
    assert scheduler.ended("r2") == ""


async def test_one_that_had_ended_when_it_was_taken_over_is_told_with_its_key_and_its_end() -> None:
    """Else a client that comes with the key to a third scheduler is sent to the one that is gone,
    and when that is known its request begins anew."""
    scheduler = Scheduler()
    wanted = replace(make_request("r1"), resume_key=b"key")
    scheduler.say(held("r1", holder="s1", key=b"key"))
    sequence = HeldSequence(
        request=wanted,
        keys=b"",
        generation=3,
        output_token_count=7,
        prefill_node=None,
        first_facts=EngineFacts(),
        arrived_age_s=4.0,
        placed_age_s=3.0,
        first_token_age_s=2.0,
        ready_age_s=2.0,
        ended_age_s=1.0,
    )
    node = NodeName("decode-0")
    scheduler.step(OutputRecovered(node=node, held=sequence, finish=make_finish()))
    assert RequestId("r1") not in scheduler.cluster.core.requests
    row = scheduler.table.get("r1")
    assert row is not None
    assert (row.holder, row.generation, row.decode, row.ended) == ("s0", 3, "decode-0", "finished")
    assert scheduler.table.holder_of(b"key") == "s0"
    scheduler.desk.say_all()
    assert scheduler.ended("r1") == "finished"
