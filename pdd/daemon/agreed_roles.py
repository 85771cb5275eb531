"""Roles that are agreed on become events of the scheduler core, once each. Pure."""

from pdd.cell.state import CellState
from pdd.cell.state import Role as AgreedRole
from pdd.core.identity import NodeName, Role
from pdd.scheduler.events import NodeRoleGiven, NodeRoleReleased, NodeRoleSet

RoleEvent = NodeRoleSet | NodeRoleGiven | NodeRoleReleased


class AgreedRoles:
    """Remembers what the core was told."""

    def __init__(self) -> None:
        self._told: dict[str, AgreedRole] = {}

    def events(self, state: CellState) -> list[RoleEvent]:
        """What the core must be told so that it knows ``state``'s roles and no others. A newer
        release's kind of role counts as none."""
        events: list[RoleEvent] = []
        present = {
            name: row
            for name in state.roles.names()
            if (row := state.roles[name]).role in (Role.PREFILL, Role.DECODE)
        }
        for name, former in self._told.items():
            now = present.get(name)
            if former.is_by_hand and (now is None or not now.is_by_hand):
                events.append(NodeRoleReleased(node=NodeName(name)))
        for name, row in present.items():
            if row == self._told.get(name):
                continue
            node, role = NodeName(name), Role(row.role)
            if row.is_by_hand:
                events.append(NodeRoleSet(node=node, role=role, message=row.message))
            else:
                events.append(NodeRoleGiven(node=node, role=role))
        self._told = present
        return events
