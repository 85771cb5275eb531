"""What nodes tell of themselves beyond what the core decides by, and the list that shows all of it.

Their hellos, kept until the core forgets the node, and the latest of their reports. Operators see
the list (``pdd node list``, ``pdd node show``), metrics are made from it.
"""

from collections.abc import Mapping

from pdd.control.convert import identity_to_proto
from pdd.control.node_session import NodeSession
from pdd.core.identity import NodeName, NodeState
from pdd.daemon.agreement import Agreement
from pdd.daemon.role_desk import RoleDesk
from pdd.daemon.transfer_metrics import known_counters
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore


class NodeBook:
    """Has a row for every node that has attached, until the core forgets it."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        sessions: Mapping[NodeName, NodeSession],
        agreement: Agreement,
        role_desk: RoleDesk,
    ) -> None:
        """``sessions``: of those that are attached."""
        self._core = core
        self._sessions = sessions
        self._agreement = agreement
        self._role_desk = role_desk
        self.hellos: dict[NodeName, cluster_pb2.Hello] = {}
        self.held_counts: dict[NodeName, int] = {}
        """Requests that a node holds for a scheduler that is gone."""
        self.transfer_counters: dict[NodeName, dict[str, float]] = {}
        """What each node's transfer engine counted when it last reported."""
        self._links: dict[NodeName, list[cluster_pb2.PeerLink]] = {}
        self._block_states: dict[NodeName, cluster_pb2.BlockStates] = {}

    def attached(self, session: NodeSession) -> None:
        """It has joined or is back: its connections and blocks are to be told anew."""
        name = session.identity.name
        self._links.pop(name, None)
        self._block_states.pop(name, None)
        self.hellos[name] = session.hello

    def reported(self, name: NodeName, status: cluster_pb2.NodeStatus) -> None:
        """Its latest report."""
        self.transfer_counters[name] = known_counters(status.transfer_counters)
        self._links[name] = [link for link in status.links if link.peer in self._core.nodes]
        self.held_counts[name] = status.held_request_count
        if status.HasField("blocks"):
            self._block_states[name] = status.blocks

    def forget(self, name: NodeName) -> None:
        """The core has forgotten it."""
        del self.hellos[name]
        self.transfer_counters.pop(name, None)
        self.held_counts.pop(name, None)
        self._links.pop(name, None)
        self._block_states.pop(name, None)

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        """See ``ClusterHandler.list_nodes``."""
        infos = []
        for name, node in sorted(self._core.nodes.items()):
            hello = self.hellos[name]
            infos.append(
                cluster_pb2.NodeInfo(
                    identity=identity_to_proto(node.identity),
                    role=node.role,
                    state=node.state,
                    state_reason=node.state_reason,
                    address=node.address,
                    block_count=node.block_count,
                    free_block_count=node.free_block_count,
                    running_sequence_count=node.running_sequence_count,
                    waiting_sequence_count=node.waiting_sequence_count,
                    pid=hello.pid,
                    model=hello.model,
                    links=self._links.get(name, ()) if name in self._sessions else (),
                    blocks=self._block_states.get(name) if name in self._sessions else None,
                    duty=self._role_desk.duty(node),
                )
            )
        return infos + self._cordoned_absentees()

    def _cordoned_absentees(self) -> list[cluster_pb2.NodeInfo]:
        """So that a cordon on a node that does not come back can be seen, and lifted."""
        agreed = self._agreement.state
        infos = []
        for name in agreed.cordons.names():
            if NodeName(name) in self._core.nodes:
                continue
            member = agreed.members.get(name)
            info = cluster_pb2.NodeInfo(
                identity=cluster_pb2.NodeIdentity(name=name),
                state=NodeState.LOST,
                state_reason="cordoned, and not seen by this scheduler",
            )
            if member is not None:
                info.identity.uuid, info.identity.boot_epoch = member.uuid, member.boot_epoch
                info.role, info.address = member.role, member.address
            infos.append(info)
        return infos
