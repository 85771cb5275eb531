"""What nodes say, as events of the scheduler core."""

import structlog

from pdd.control.node_session import NodeSession
from pdd.core.identity import Forking, NodeName, RequestId, Role
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.events import (
    DecodeReady,
    FailureKind,
    HeldSequence,
    JobFailed,
    NodeJoined,
    NodeReported,
)

log = structlog.get_logger(__name__)


def node_joined(session: NodeSession, running: tuple[HeldSequence, ...]) -> NodeJoined:
    """``running``: what the node holds of a scheduler that is gone, and that still runs there."""
    hello = session.hello
    return NodeJoined(
        identity=session.identity,
        role=Role(hello.role),
        address=hello.address,
        block_count=hello.block_count,
        block_size=hello.block_size,
        max_model_len=hello.max_model_len,
        max_num_seqs=hello.max_num_seqs,
        block_bytes=hello.block_bytes,
        is_pinned=hello.role_is_pinned,
        held=running,
        forking=_forking(hello.forking),
        pulls=hello.pulls,
    )


def node_reported(node: NodeName, status: cluster_pb2.NodeStatus) -> NodeReported:
    """What the core decides by; ``node_book`` keeps the rest."""
    return NodeReported(
        node=node,
        free_block_count=status.free_block_count,
        running_sequence_count=status.running_sequence_count,
        waiting_sequence_count=status.waiting_sequence_count,
        degraded_reason=status.degraded_reason,
    )


def decode_ready(done: cluster_pb2.TransferDone) -> DecodeReady:
    """All blocks of a request have come."""
    return DecodeReady(
        request_id=RequestId(done.request_id),
        generation=done.generation,
        transferred_bytes=done.transferred_bytes,
        transfer_s=done.transfer_s,
    )


def job_failed(node: NodeName, failed: cluster_pb2.NodeRequestFailed) -> JobFailed:
    """A job has ended without an end of its output."""
    return JobFailed(
        request_id=RequestId(failed.request_id),
        generation=failed.generation,
        node=node,
        message=failed.message,
        kind=_failure_kind(failed.kind),
    )


def _forking(name: str) -> Forking:
    """A newer node's way of it is not counted upon."""
    try:
        return Forking(name)
    except ValueError:
        log.warning("forking_unknown", forking=name)
        return Forking.NONE


def _failure_kind(name: str) -> FailureKind:
    """A newer node's kind counts as the engine's fault: that request is tried elsewhere."""
    try:
        return FailureKind(name)
    except ValueError:
        log.warning("failure_kind_unknown", kind=name)
        return FailureKind.ENGINE
