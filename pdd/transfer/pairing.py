"""May two nodes exchange blocks, and which of their ranks then do. Pure.

Both the scheduler, when a node attaches, and the node itself, when it is told of a peer, ask here;
they have the same fingerprints, so that a pair that a node refuses was never planned.

Names in a fingerprint that describe how a node cuts its blocks (texts of whole numbers, but for
``kv_order``): ``tensor_parallel_size``, ``kv_layers``, ``kv_heads``, ``block_size``,
``kv_token_bytes`` (K and V of one token of one head in one layer) and ``kv_order`` (see
``reshard``). ``kv_reshard`` is ``yes`` where the engine can send and take parts of blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pdd.core.errors import ConfigError
from pdd.core.identity import NodeIdentity
from pdd.transfer.join import differences
from pdd.transfer.reshard import Ranges, ShardLayout, plan_reshard
from pdd.transfer.values import Connection, Peer

_CUT = ("tensor_parallel_size", "kv_order")
"""What a reshard bridges, and"""
_FOLLOWS_FROM_CUT = ("kv_block_shape", "kv_block_strides")
"""what differs with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerNode:
    """A node as its join told. ``ucx_addresses``: by rank."""

    identity: NodeIdentity
    control_address: str
    ucx_addresses: tuple[bytes, ...]
    fingerprint: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLink:
    """A rank of this node and a rank of a peer that exchange blocks.

    ``send``, ``receive``: the ranges of every packed block that go to and come from that rank;
    None for whole blocks.
    """

    own_rank: int
    peer: Peer
    send: Ranges | None = None
    receive: Ranges | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConnection:
    """A connection of one rank of this node."""

    own_rank: int
    connection: Connection


def pair_faults(
    ours: Mapping[str, str], theirs: Mapping[str, str], *, peer: str, here: str = "here"
) -> list[str]:
    """Why two nodes cannot exchange blocks, in either direction; empty when they can."""
    if not _cut_differs(ours, theirs):
        return differences(ours, theirs, peer=peer, here=here)
    if not (_reshards(ours) and _reshards(theirs)):
        faults = differences(ours, theirs, peer=peer, here=here, may_differ=_FOLLOWS_FROM_CUT)
        return [f"{fault} (their engines exchange whole blocks, rank by rank)" for fault in faults]
    may_differ = (*_CUT, *_FOLLOWS_FROM_CUT)
    faults = differences(ours, theirs, peer=peer, here=here, may_differ=may_differ)
    if not faults:
        try:
            _plans(ours, theirs)
        except ConfigError as error:
            cuts = differences(ours, theirs, peer=peer, here=here)
            faults = [f"{'; '.join(cuts)}, which cannot be bridged: {error}"]
    return faults


def rank_links(ours: Mapping[str, str], *, rank_count: int, peer: PeerNode) -> list[RankLink]:
    """The links to a peer without ``pair_faults``, by own rank and then by the peer's."""
    if not _cut_differs(ours, peer.fingerprint):
        return [RankLink(own_rank=rank, peer=_rank_of(peer, rank)) for rank in range(rank_count)]
    sends, receives = _plans(ours, peer.fingerprint)
    return [
        RankLink(
            own_rank=own,
            peer=_rank_of(peer, other),
            send=sends.get((own, other)),
            receive=receives.get((own, other)),
        )
        for own, other in sorted({**sends, **receives})
    ]


def _cut_differs(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    return any(ours.get(name) != theirs.get(name) for name in _CUT)


def _reshards(fingerprint: Mapping[str, str]) -> bool:
    return fingerprint.get("kv_reshard") == "yes"


_ByRanks = dict[tuple[int, int], Ranges]


def _plans(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[_ByRanks, _ByRanks]:
    """What we send, and what we receive, by our rank and theirs.

    Raises:
        ConfigError: one direction is impossible; both values are named.
    """
    mine, other = _layout(ours), _layout(theirs)
    sends = {(p.source_rank, p.target_rank): p.source_ranges for p in plan_reshard(mine, other)}
    receives = {(p.target_rank, p.source_rank): p.target_ranges for p in plan_reshard(other, mine)}
    return sends, receives


def _layout(fingerprint: Mapping[str, str]) -> ShardLayout:
    try:
        return ShardLayout(
            kv_head_count=int(fingerprint["kv_heads"]),
            tp_size=int(fingerprint["tensor_parallel_size"]),
            stages=((0, int(fingerprint["kv_layers"])),),
            order=fingerprint["kv_order"],
            block_tokens=int(fingerprint["block_size"]),
            token_bytes=int(fingerprint["kv_token_bytes"]),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"a fingerprint does not tell how blocks are cut: {error}") from error


def _rank_of(peer: PeerNode, rank: int) -> Peer:
    return Peer(
        identity=peer.identity,
        rank=rank,
        control_address=peer.control_address,
        ucx_address=peer.ucx_addresses[rank],
    )
