"""What an operator may ask of a scheduler about roles by hand."""

from typing import Protocol

from pdd.rpc.v1 import cluster_pb2


class RoleRefused(Exception):
    """A node cannot have that role. The message says why, and what would help."""


class RoleUnknown(Exception):
    """There is no such role. The message names those that there are."""


class RoleOperator(Protocol):
    """Implemented by the scheduler daemon."""

    async def set_role(self, name: str, role: str, *, message: str) -> bool:
        """Give a node a duty, or "auto"; whether that changed anything.

        Raises: UnknownNode, RoleUnknown, RoleRefused; RemoteError: the schedulers could not agree
        on it in time.
        """
        ...

    def role_of(self, name: str) -> cluster_pb2.NodeRole:
        """As it is now; without a role for a node that is not here."""
        ...

    def roles(self) -> cluster_pb2.GetRolesResponse:
        """All of it."""
        ...
