"""What the Cluster service asks of the daemon behind it, and how that may refuse.

``ClusterHandler`` is told what nodes say; the others answer what is asked by hand
(``role_operator``: about roles). Implemented by the scheduler daemon.
"""

from typing import Protocol

from pdd.control.node_session import NodeSession
from pdd.control.role_operator import RoleOperator
from pdd.rpc.v1 import cluster_pb2

MAY_BE_OLD = "this is what the asked one knows, and may be older than what the others agree on"
"""What reads say of an answer that is this scheduler's own copy, after why it is."""


class JoinRefused(Exception):
    """A node does not fit the cluster. The message names what differs, with both values."""


class UnknownNode(Exception):
    """There is no node of that name. The message names those that there are."""


class UnknownRequest(Exception):
    """The request does not run here, or nobody holds the block. The message says what is known."""


class TooManyAsk(Exception):
    """So many questions wait for answers that one more is refused."""


class ClusterOperator(Protocol):
    """What an operator may ask by hand."""

    async def cordon(self, name: str, *, message: str, is_drain: bool) -> bool:
        """Take a node out; whether that changed anything. Raises UnknownNode; RemoteError: the
        schedulers could not agree on it in time."""
        ...

    async def uncordon(self, name: str) -> bool:
        """Give a node back; whether that changed anything. Raises likewise."""
        ...

    def drain_state(self, name: str) -> cluster_pb2.DrainState:
        """How far a node is from holding nothing. Raises UnknownNode."""
        ...

    def decisions(self, request_id: str) -> list[cluster_pb2.Decision]:
        """How a request was placed, oldest first; empty if nothing is remembered of it."""
        ...


class ReplicaGroup(Protocol):
    """The replicas of the schedulers' log, as an operator sees them."""

    async def list_replicas(self) -> list[cluster_pb2.ReplicaInfo]:
        """Each as it answers now, by name; also those that do not."""
        ...

    async def transfer(self, target: str) -> str:
        """Begin to hand leadership to ``target``; who led until now. Raises UnknownReplica,
        GroupRefused, RemoteError."""
        ...

    async def take_snapshot(self, replica: str) -> int:
        """The log index that it covers. Raises UnknownReplica, RemoteError."""
        ...


class UnknownReplica(Exception):
    """There is no replica of that name. The message names those that there are."""


class GroupRefused(Exception):
    """The leader will not. The message says why."""


class BlockFinder(Protocol):
    """Where blocks are."""

    def holder_of(self, what: str) -> str | None:
        """The other scheduler that has this request; None where this one is to answer."""
        ...

    async def locate(self, what: str) -> cluster_pb2.LocateBlocksResponse:
        """Where a running request is, or a block by its key. Raises UnknownRequest, TooManyAsk."""
        ...


class ClusterHandler(Protocol):
    """Who is told what nodes say. All calls come on the event loop, in stream order per node."""

    async def node_joining(self, hello: cluster_pb2.Hello) -> None:
        """Agree with the other schedulers on this life of the node, before it is attached. Raises
        JoinRefused; RemoteError: they could not agree in time."""
        ...

    def node_attached(self, session: NodeSession) -> None:
        """Raises JoinRefused."""
        ...

    def node_said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        """Any message after the hello."""
        ...

    def node_detached(self, session: NodeSession, reason: str) -> None:
        """The stream is over."""
        ...

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        """For ``ListNodes``."""
        ...

    @property
    def stale_reason(self) -> str:
        """Why this scheduler's own copy of what is agreed on may be old; empty if it is not."""
        ...

    @property
    def life(self) -> str:
        """Names this process among all schedulers that there ever were."""
        ...

    @property
    def operator(self) -> ClusterOperator:
        """For what is asked by hand."""
        ...

    @property
    def role_operator(self) -> RoleOperator:
        """For what is asked about roles."""
        ...

    @property
    def blocks(self) -> BlockFinder:
        """For ``LocateBlocks``."""
        ...
