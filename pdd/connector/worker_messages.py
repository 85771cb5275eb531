"""Values of the transfer engine and of vLLM's half of pdd as messages of the link, and back."""

from dataclasses import asdict

from pdd.connector.link_messages import (
    Blocks,
    Connections,
    ConnectRank,
    Control,
    DisconnectRank,
    LinkMessage,
    LoadFailed,
    Pulled,
    Ready,
)
from pdd.connector.worker_book import Outcome, Target
from pdd.core.blocks import NAMED_COUNT_MAX, BlockCensus
from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.values import (
    Connection,
    Peer,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)


def outcome_message(target: Target, outcome: Outcome, *, now_s: float) -> LinkMessage | None:
    """How a job's blocks came; None: it was cancelled, and nobody asks."""
    if isinstance(outcome, TargetCancelled):
        return None
    if target.is_pull:
        block_count, failed_reason = len(target.block_ids), ""
        if isinstance(outcome, TargetFailed):
            block_count = min(outcome.bad_indices) - target.first_index
            failed_reason = outcome.reason
        return Pulled(
            key=outcome.key,
            block_count=block_count,
            size_bytes=outcome.transferred_bytes,
            pull_s=now_s - target.opened_s,
            failed_reason=failed_reason,
        )
    match outcome:
        case TargetFailed():
            return LoadFailed(
                key=outcome.key,
                reason=outcome.reason,
                transferred_bytes=outcome.transferred_bytes,
            )
        case TargetCompleted():
            return Ready(
                key=outcome.key,
                transferred_bytes=outcome.transferred_bytes,
                transfer_s=outcome.duration_s,
            )


def control_message(peer: Peer, payload: bytes) -> Control:
    """What this rank says to a peer's."""
    return Control(
        peer_name=peer.identity.name,
        peer_uuid=peer.identity.uuid,
        peer_boot_epoch=peer.identity.boot_epoch,
        peer_rank=peer.rank,
        peer_address=peer.control_address,
        peer_ucx_address=peer.ucx_address,
        payload=payload,
    )


def peer_of(message: Control | ConnectRank | DisconnectRank) -> Peer:
    """Whom it is about."""
    return Peer(
        identity=NodeIdentity(
            name=NodeName(message.peer_name),
            uuid=message.peer_uuid,
            boot_epoch=message.peer_boot_epoch,
        ),
        rank=message.peer_rank,
        control_address=message.peer_address,
        ucx_address=message.peer_ucx_address,
    )


def blocks_of(census: BlockCensus) -> Blocks:
    """With no more names than a message holds."""
    told = {**asdict(census)}
    for name in ("lost_ids", "doubled_ids"):
        told[name] = told[name][:NAMED_COUNT_MAX]
    return Blocks(**told)


def connections_of(connections: tuple[Connection, ...]) -> Connections:
    """In columns."""
    return Connections(
        peer_uuids=[one.peer.uuid for one in connections],
        peer_boot_epochs=[one.peer.boot_epoch for one in connections],
        peer_ranks=[one.peer.rank for one in connections],
        lanes=[",".join(one.lanes) for one in connections],
        received_bytes=[one.received_bytes for one in connections],
        bytes_per_s=[one.bytes_per_s for one in connections],
    )
