"""Whether a ticket fits: what a grant must fulfil before anything is sent under it.

The checks are in the order in which they are made; the first that fails names the refusal.
"""

from pdd.transfer.protocol_source_state import SourceState
from pdd.transfer.values import PeerId, Reason
from pdd.wire.control import Grant


def why_refused(state: SourceState, peer: PeerId, grant: Grant) -> Reason | None:
    """Why ``grant``, which came from ``peer``, is not honoured; None when it is."""
    identity = state.identity
    if (grant.source_uuid, grant.source_boot_epoch) != (identity.uuid, identity.boot_epoch):
        return Reason.WRONG_NODE
    if (grant.target_uuid, grant.target_boot_epoch) != (peer.uuid, peer.boot_epoch):
        return Reason.WRONG_TARGET
    if grant.lease_ms <= 0:
        return Reason.EXPIRED
    if grant.lease_ms > state.settings.max_lease_s * 1000:
        return Reason.LEASE_TOO_LONG
    if not grant.block_ids or not grant.address:
        return Reason.MALFORMED
    return _why_used(state, peer, grant)


def _why_used(state: SourceState, peer: PeerId, grant: Grant) -> Reason | None:
    """Whether nonce and key are free for this peer, or its own already."""
    if grant.nonce in state.ended_nonces:
        return Reason.CONSUMED
    lane = state.lanes.get(grant.nonce)
    if lane is not None and (lane.key != grant.key or lane.peer != peer or lane.ended):
        return Reason.CONSUMED
    sequence = state.sequences.get(grant.key)
    if sequence is None:
        if grant.key in state.finished_keys:
            return Reason.CONSUMED
        return Reason.STALE_ATTEMPT if _is_older_than_pending(state, peer, grant) else None
    if sequence.ending is not None:
        return Reason.CONSUMED
    current = state.lanes.get(sequence.nonce)
    if current is None or current.nonce == grant.nonce:
        return None
    if current.peer != peer:
        return Reason.CONSUMED
    return Reason.STALE_ATTEMPT if grant.attempt <= current.attempt else None


def _is_older_than_pending(state: SourceState, peer: PeerId, grant: Grant) -> bool:
    """A late copy of what this peer has asked for anew; it would not be asked for a third time."""
    pending = state.pending.get(grant.key)
    if pending is None:
        return False
    kept_for, kept, _ = pending
    return kept_for == peer and grant.attempt < kept.attempt
