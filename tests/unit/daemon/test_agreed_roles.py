"""What the core is told of roles that the schedulers agreed on, and what it is not told twice."""

from pdd.cell.operations import Operation, RoleReleased, RoleSet
from pdd.cell.state import CellState
from pdd.core.identity import NodeName, Role
from pdd.daemon.agreed_roles import AgreedRoles, RoleEvent
from pdd.scheduler.events import NodeRoleGiven, NodeRoleReleased, NodeRoleSet

DECODE_0 = NodeName("decode-0")
RELEASED = NodeRoleReleased(node=DECODE_0)


class Following:
    def __init__(self) -> None:
        self.state = CellState()
        self.roles = AgreedRoles()

    def say(self, *operations: Operation) -> list[RoleEvent]:
        for operation in operations:
            self.state.apply(operation)
        return self.roles.events(self.state)


def role_set(role: str, *, by_hand: bool = True, message: str = "") -> RoleSet:
    return RoleSet(node="decode-0", role=role, is_by_hand=by_hand, message=message, at_ms=1)


def told(role: Role, message: str = "") -> NodeRoleSet:
    return NodeRoleSet(node=DECODE_0, role=role, message=message)


def test_a_role_and_its_end_are_told_once() -> None:
    following = Following()
    assert following.say(role_set("prefill", message="why")) == [told(Role.PREFILL, "why")]
    assert following.say() == []
    assert following.say(role_set("prefill")) == [], "no word takes the former one away"
    assert following.say(role_set("decode")) == [told(Role.DECODE)]
    assert following.say(RoleReleased(node="decode-0")) == [RELEASED]
    assert following.say(RoleReleased(node="decode-0")) == []


def test_what_the_controller_has_done_is_no_operators_word() -> None:
    following = Following()
    given = NodeRoleGiven(node=DECODE_0, role=Role.PREFILL)
    assert following.say(role_set("prefill", by_hand=False)) == [given]
    assert following.say(role_set("prefill")) == [told(Role.PREFILL)]
    assert following.say(role_set("prefill", by_hand=False)) == [RELEASED, given]
    assert following.say(RoleReleased(node="decode-0")) == []


def test_a_role_of_a_newer_release_is_left_out() -> None:
    following = Following()
    assert following.say(role_set("encode")) == []
    assert following.say(role_set("prefill")) == [told(Role.PREFILL)]
    assert following.say(role_set("encode")) == [RELEASED]


def test_a_state_from_a_snapshot_is_told_as_a_whole() -> None:
    former = Following()
    former.say(role_set("prefill", message="why"))
    fresh = Following()
    fresh.state.load(former.state.export())
    assert fresh.say() == [told(Role.PREFILL, "why")]
    before_roles = CellState()
    before_roles.load(CellState().export()[:4])
    assert before_roles.roles.names() == []
