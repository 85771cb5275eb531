"""What the core is told of cordons that the schedulers agreed on, and what it is not told twice."""

from pdd.cell.operations import Cordoned, Operation, Uncordoned
from pdd.cell.state import CellState
from pdd.core.identity import NodeName
from pdd.daemon.agreed_cordons import AgreedCordons
from pdd.scheduler.events import NodeCordoned, NodeUncordoned

DECODE_0 = NodeName("decode-0")


class Following:
    def __init__(self) -> None:
        self.state = CellState()
        self.cordons = AgreedCordons()

    def say(self, *operations: Operation) -> list[NodeCordoned | NodeUncordoned]:
        for operation in operations:
            self.state.apply(operation)
        return self.cordons.events(self.state)


def cordoned(message: str = "", *, is_drain: bool = False) -> Cordoned:
    return Cordoned(node="decode-0", message=message, is_drain=is_drain, at_ms=1)


def told(message: str = "", *, is_drain: bool = False) -> NodeCordoned:
    return NodeCordoned(node=DECODE_0, message=message, is_drain=is_drain)


def test_a_cordon_and_its_end_are_told_once() -> None:
    following = Following()
    assert following.say(cordoned("why")) == [told("why")]
    assert following.say() == []
    assert following.say(Uncordoned(node="decode-0")) == [NodeUncordoned(node=DECODE_0)]
    assert following.say() == []


def test_a_cordon_that_becomes_a_drain_is_told_again() -> None:
    following = Following()
    following.say(cordoned("why"))
    assert following.say(cordoned(is_drain=True)) == [told("why", is_drain=True)]


def test_what_came_and_went_between_two_looks_is_not_told() -> None:
    following = Following()
    assert following.say(cordoned(), Uncordoned(node="decode-0")) == []


def test_a_drain_that_was_lifted_and_became_a_cordon_between_two_looks_is_lifted_first() -> None:
    following = Following()
    following.say(cordoned(is_drain=True))
    events = following.say(Uncordoned(node="decode-0"), cordoned("again"))
    assert events == [NodeUncordoned(node=DECODE_0), told("again")]


def test_after_a_snapshot_only_the_difference_is_told() -> None:
    following = Following()
    following.say(cordoned())
    fresh = CellState()
    fresh.apply(cordoned())
    fresh.apply(Cordoned(node="decode-1", message="", is_drain=False, at_ms=1))
    assert following.cordons.events(fresh) == [
        NodeCordoned(node=NodeName("decode-1"), message="", is_drain=False)
    ]
