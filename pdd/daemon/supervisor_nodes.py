"""Ask a scheduler which nodes it has. For ``pdd up`` and ``pdd node list``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pdd.core.errors import NodeUnavailable
from pdd.daemon.unreached import reason_with_advice

if TYPE_CHECKING:
    from pdd.rpc.v1 import cluster_pb2
    from pdd.tls.security import Security


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """How a node receives blocks from a peer; ``PeerLink`` of cluster.proto."""

    peer: str
    transport: str
    lanes: list[str]
    received_bytes: int
    bytes_per_s: float
    refused_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRow:
    """A node's KV blocks by state; ``BlockStates`` of cluster.proto."""

    free: int
    cached: int
    active: int
    leased: int
    quarantined: int
    total: int
    lost: int
    doubled: int
    checks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as the scheduler knows it."""

    name: str
    role: str
    state: str
    state_reason: str
    uuid: str
    boot_epoch: int
    address: str
    pid: int
    model: str
    block_count: int
    free_block_count: int
    running_sequence_count: int
    waiting_sequence_count: int
    configured_role: str = ""
    next_role: str = ""
    role_decided_by: str = ""
    role_reason: str = ""
    links: list[LinkRow] = field(default_factory=list)
    blocks: BlocksRow | None = None


def list_nodes(
    scheduler: str,
    *,
    timeout_s: float = 2.0,
    security: "Security | None" = None,
    stale: Callable[[str], None] = lambda reason: None,
) -> list[NodeRow]:
    """Call ``Cluster.ListNodes`` at ``scheduler`` (host:port). Blocks.

    Args:
        security: None: without TLS, on loopback.
        stale: told why what is listed may be old, if it may.
    Raises:
        ConfigError: without TLS, and not on loopback.
        NodeUnavailable: no answer within ``timeout_s``, or an error.
    """
    import grpc

    from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
    from pdd.tls.security import PLAIN

    # Proxies of the environment are for the internet, not for our own control plane.
    options = [("grpc.enable_http_proxy", 0)]
    with (security or PLAIN).blocking_channel(scheduler, options=options) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)
        try:
            response = stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise NodeUnavailable(
                f"scheduler at {scheduler} did not list its nodes within {timeout_s:g} s: "
                f"{error.code().name}: {reason_with_advice(error.details())}"
            ) from error
    if response.stale_reason:
        stale(response.stale_reason)
    return [
        NodeRow(
            name=node.identity.name,
            role=node.role,
            state=node.state,
            state_reason=node.state_reason,
            uuid=node.identity.uuid,
            boot_epoch=node.identity.boot_epoch,
            address=node.address,
            pid=node.pid,
            model=node.model,
            block_count=node.block_count,
            free_block_count=node.free_block_count,
            running_sequence_count=node.running_sequence_count,
            waiting_sequence_count=node.waiting_sequence_count,
            configured_role=node.duty.configured_role,
            next_role=node.duty.next_role,
            role_decided_by=node.duty.decided_by,
            role_reason=node.duty.waits_for or node.duty.reason,
            links=[
                LinkRow(
                    peer=link.peer,
                    transport=link.transport,
                    lanes=list(link.lanes),
                    received_bytes=link.received_bytes,
                    bytes_per_s=link.bytes_per_s,
                    refused_reason=link.refused_reason,
                )
                for link in node.links
            ],
            blocks=_blocks(node.blocks) if node.HasField("blocks") else None,
        )
        for node in response.nodes
    ]


def _blocks(states: "cluster_pb2.BlockStates") -> BlocksRow:
    return BlocksRow(
        free=states.free_count,
        cached=states.cached_count,
        active=states.active_count,
        leased=states.leased_count,
        quarantined=states.quarantined_count,
        total=states.total_count,
        lost=states.lost_count,
        doubled=states.doubled_count,
        checks=states.check_count,
    )
