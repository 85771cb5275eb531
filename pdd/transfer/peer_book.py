"""A node's peers: whom to connect to, whom to refuse, and whether the connections are good enough.

Pure; ``daemon.node_peers`` obeys it.

::

    told by a scheduler ──► differs: REFUSED (named, never connected)
                       └──► fits: Connect every pair of ranks that exchanges anything
    looked at, each heartbeat: gone for a while ──► Connect again, ever more seldom
                               slow, or not over RDMA ──► a reason to be degraded
    left, or a newer life ──► Disconnect

What one scheduler says of peers does not void what another said: a peer stays while any of them
knows it. A scheduler that is lost takes nothing with it, but its word alone keeps no peer that
another says has left: nobody else could ever take it back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdd.core.identity import NodeIdentity
from pdd.transfer.join import RecentSpeed, degraded_reasons, transport_of
from pdd.transfer.pairing import PeerNode, RankConnection, RankLink, pair_faults, rank_links
from pdd.transfer.values import Connection, PeerId

_RECONNECT_FIRST_S = 2.0
_RECONNECT_LIMIT_S = 60.0
_UNREACHABLE_AFTER_S = 10.0
"""So long a peer may be without a connection before that is a reason to be degraded: the loss of
a node comes to light here first, and the news of it takes as long at the scheduler."""
_REASONS_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """``standing_reason``: why this node is degraded whatever its connections do; else empty."""

    rdma_expected: bool = False
    floor_bytes_per_s: float = 0.0
    standing_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRanks:
    """Set these connections up; what is there already stays."""

    peer: NodeIdentity
    links: tuple[RankLink, ...]
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectRanks:
    """Close these connections."""

    peer: NodeIdentity
    links: tuple[RankLink, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusePeer:
    """Exchange nothing with it; ``reason`` names each difference with both values."""

    peer: NodeIdentity
    reason: str


Action = ConnectRanks | DisconnectRanks | RefusePeer


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """A peer, for status and metrics. Bytes and speed over all ranks; see ``PeerLink``."""

    peer: str
    transport: str = ""
    lanes: tuple[str, ...] = ()
    received_bytes: int = 0
    bytes_per_s: float = 0.0
    refused_reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Known:
    node: PeerNode
    told_by: set[str]
    links: tuple[RankLink, ...] = ()
    refused_reason: str = ""
    connections: tuple[Connection, ...] = ()
    judged: tuple[Connection, ...] = ()  # the same, without speeds of long ago
    looked_count: int = 0
    missing_since_s: float | None = None
    attempt_at_s: float = 0.0
    attempt_pause_s: float = _RECONNECT_FIRST_S
    speeds: dict[tuple[int, PeerId], RecentSpeed] = field(default_factory=dict)


class PeerBook:
    """``fingerprint``, ``rank_count``: this node's own. Bounded by what schedulers tell."""

    def __init__(
        self, *, fingerprint: Mapping[str, str], rank_count: int, settings: JoinSettings
    ) -> None:
        self._fingerprint = fingerprint
        self._rank_count = rank_count
        self._settings = settings
        self._known: dict[str, _Known] = {}  # by uuid
        self._lost_tellers: set[str] = set()
        self._now_s = 0.0  # of the latest look or joining
        self._reasons: list[str] = []
        self._judge()

    # --- what schedulers say -------------------------------------------------------------------

    def joined(
        self, teller: str, peers: Sequence[PeerNode], *, complete: bool, now_s: float
    ) -> list[Action]:
        """A scheduler names peers. ``complete``: it knows no others."""
        self._now_s = now_s
        self._lost_tellers.discard(teller)
        actions: list[Action] = []
        if complete:
            named = {peer.identity.uuid for peer in peers}
            for uuid in [uuid for uuid in self._known if uuid not in named]:
                actions += self._untell(teller, uuid)
        for peer in peers:
            actions += self._join(teller, peer, now_s)
        self._judge()
        return actions

    def left(self, teller: str, identity: NodeIdentity) -> list[Action]:
        """A scheduler has lost a peer. News of a former life changes nothing."""
        known = self._known.get(identity.uuid)
        if known is None or known.node.identity.boot_epoch != identity.boot_epoch:
            return []
        actions = self._untell(teller, identity.uuid)
        self._judge()
        return actions

    def teller_lost(self, teller: str) -> None:
        """A scheduler is gone, for now or for good."""
        if any(teller in known.told_by for known in self._known.values()):
            self._lost_tellers.add(teller)

    def _join(self, teller: str, peer: PeerNode, now_s: float) -> list[Action]:
        known = self._known.get(peer.identity.uuid)
        actions: list[Action] = []
        if known is not None:
            if known.node.identity.boot_epoch > peer.identity.boot_epoch:
                return []  # a scheduler that is behind
            if known.node.identity.boot_epoch == peer.identity.boot_epoch:
                known.told_by.add(teller)
                return []
            actions += self._drop(known)
        faults = self._faults(peer)
        if faults:
            reason = "; ".join(faults)
            known = _Known(node=peer, told_by={teller}, refused_reason=reason)
            self._known[peer.identity.uuid] = known
            return [*actions, RefusePeer(peer=peer.identity, reason=reason)]
        links = tuple(rank_links(self._fingerprint, rank_count=self._rank_count, peer=peer))
        self._known[peer.identity.uuid] = _Known(
            node=peer, told_by={teller}, links=links, attempt_at_s=now_s + _RECONNECT_FIRST_S
        )
        return [*actions, ConnectRanks(peer=peer.identity, links=links)]

    def _faults(self, peer: PeerNode) -> list[str]:
        name = peer.identity.name
        faults = pair_faults(self._fingerprint, peer.fingerprint, peer=name)
        tp_size = "tensor_parallel_size"
        same_cut = self._fingerprint.get(tp_size) == peer.fingerprint.get(tp_size)
        if not faults and same_cut and len(peer.ucx_addresses) != self._rank_count:
            faults = [
                f"the number of ranks is {self._rank_count} here and {len(peer.ucx_addresses)} at"
                f" {name}"
            ]
        return faults

    def _untell(self, teller: str, uuid: str) -> list[Action]:
        known = self._known[uuid]
        known.told_by.discard(teller)
        if known.told_by - self._lost_tellers:
            return []
        del self._known[uuid]
        return self._drop(known)

    def _drop(self, known: _Known) -> list[Action]:
        if not known.links:
            return []
        return [DisconnectRanks(peer=known.node.identity, links=known.links)]

    # --- what the engine says ------------------------------------------------------------------

    def looked(self, connections: Iterable[RankConnection], *, now_s: float) -> list[Action]:
        """The connections as they are now; at least a second after the look before."""
        by_peer: dict[tuple[str, int], dict[tuple[int, PeerId], Connection]] = {}
        for one in connections:
            peer = one.connection.peer
            found = by_peer.setdefault((peer.uuid, peer.boot_epoch), {})
            found[one.own_rank, peer] = one.connection
        actions: list[Action] = []
        for uuid, known in self._known.items():
            found = by_peer.get((uuid, known.node.identity.boot_epoch), {})
            self._measure(known, found, now_s)
            actions += self._reconnect(known, found, now_s)
        self._now_s = now_s
        self._judge()
        return actions

    def _measure(
        self, known: _Known, found: Mapping[tuple[int, PeerId], Connection], now_s: float
    ) -> None:
        known.speeds = {key: known.speeds.get(key) or RecentSpeed() for key in found}
        known.connections = tuple(
            replace(connection, bytes_per_s=known.speeds[key].observe(connection, now_s))
            for key, connection in found.items()
        )
        known.judged = tuple(
            connection if known.speeds[key].is_recent(now_s) else replace(connection, bytes_per_s=0)
            for key, connection in zip(found, known.connections, strict=True)
        )
        known.looked_count = known.looked_count + 1 if found else 0

    def _reconnect(
        self, known: _Known, found: Mapping[tuple[int, PeerId], Connection], now_s: float
    ) -> list[Action]:
        missing = tuple(
            link for link in known.links if (link.own_rank, link.peer.peer_id) not in found
        )
        if not missing:
            known.missing_since_s = None
            known.attempt_at_s = now_s + _RECONNECT_FIRST_S
            known.attempt_pause_s = _RECONNECT_FIRST_S
            return []
        if known.missing_since_s is None:
            known.missing_since_s = now_s
        if now_s < known.attempt_at_s:
            return []
        known.attempt_pause_s = min(2 * known.attempt_pause_s, _RECONNECT_LIMIT_S)
        known.attempt_at_s = now_s + known.attempt_pause_s
        return [ConnectRanks(peer=known.node.identity, links=missing, again=True)]

    # --- what to tell --------------------------------------------------------------------------

    @property
    def degraded_reason(self) -> str:
        """Why this node is slower than it should be; empty when it is not."""
        shown = self._reasons[:_REASONS_SHOWN_MAX]
        more = len(self._reasons) - len(shown)
        return "; ".join([*shown, f"and {more} more"] if more else shown)

    def refusal(self, uuid: str) -> str:
        """Why nothing is exchanged with a peer; empty where nothing speaks against it."""
        known = self._known.get(uuid)
        return known.refused_reason if known is not None else ""

    def reports(self) -> list[LinkReport]:
        """Every peer, by name."""
        reports = []
        for known in sorted(self._known.values(), key=lambda known: known.node.identity.name):
            lanes = tuple(dict.fromkeys(lane for c in known.connections for lane in c.lanes))
            reports.append(
                LinkReport(
                    peer=known.node.identity.name,
                    transport=transport_of(lanes),
                    lanes=lanes,
                    received_bytes=sum(c.received_bytes for c in known.connections),
                    bytes_per_s=sum(c.bytes_per_s for c in known.connections),
                    refused_reason=known.refused_reason,
                )
            )
        return reports

    def _judge(self) -> None:
        settings = self._settings
        reasons = [settings.standing_reason] if settings.standing_reason else []
        for known in self._known.values():
            name = known.node.identity.name
            if known.refused_reason:
                reasons.append(f"exchanges nothing with {name}: {known.refused_reason}")
            if known.looked_count > 1:  # UCX may change lanes while it connects
                reasons += degraded_reasons(
                    known.judged,
                    rdma_expected=settings.rdma_expected,
                    floor_bytes_per_s=settings.floor_bytes_per_s,
                    name_of=lambda _, name=name: name,  # type: ignore[misc]
                )
            since_s = known.missing_since_s
            if since_s is not None and self._now_s - since_s >= _UNREACHABLE_AFTER_S:
                reasons.append(
                    f"no connection to {name}: check that its addresses can be reached from here"
                    " over transfer.devices"
                )
        self._reasons = reasons
