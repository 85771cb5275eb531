"""What two nodes check before the first block moves, and what makes a connection count as slow.

Pure. Fingerprints are flat ``name: value`` texts, so that a refusal names both values and a new
name on one side is a difference, not a surprise later.
"""

from collections.abc import Callable, Iterable, Mapping

from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Connection, PeerId
from pdd.wire.control import CONTROL_VERSION

_FAST_PREFIXES = ("rc", "dc", "ud", "cuda_ipc", "shared_memory")
"""Lanes that are no TCP: RDMA's, NVLink's, and memory that two nodes of one host share."""
WINDOW_BYTES = 64 << 20
"""So much has to come over a connection before its speed says anything."""
SPEED_HOLDS_S = 60.0
"""So long a connection is judged by its speed after the last bytes: one that is used no more, for
being slow or otherwise, must be able to show that it is not slow any longer."""


def transfer_fingerprint(settings: TransferSettings, transport_version: str) -> dict[str, str]:
    """This engine's part of a node's fingerprint; the model's and the pool's come from others.

    ``transport_version``: UCX's release without its last number. UCX means neighbouring releases to
    understand each other on the wire, but 1.17 and 1.18 did not, and ended the process that was
    connected to (openucx/ucx#10376): one node's update must not end another node.

    A change of either cannot be rolled out node by node: a scheduler takes one kind of node at a
    time, and refuses those that differ until the others are gone. All nodes are to be restarted
    together (README, "Updating").
    """
    return {
        "transfer_protocol": str(CONTROL_VERSION),
        "transfer_transport": transport_version,
        "transfer_digest": "xxh3-64" if settings.digest else "none",
    }


def differences(
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    *,
    peer: str,
    here: str = "here",
    may_differ: Iterable[str] = (),
) -> list[str]:
    """Every difference as a sentence; empty when the two may exchange blocks.

    ``may_differ``: names that a reshard bridges; see ``pairing``, which asks
    ``reshard.plan_reshard`` and refuses what that cannot bridge.
    """
    bridged = frozenset(may_differ)
    names = dict.fromkeys([*ours, *theirs])
    return [
        f"{name} is {ours.get(name, 'unknown')} {here} and {theirs.get(name, 'unknown')} at {peer}"
        for name in names
        if name not in bridged and ours.get(name) != theirs.get(name)
    ]


def degraded_reasons(
    connections: Iterable[Connection],
    *,
    rdma_expected: bool,
    floor_bytes_per_s: float,
    least_bytes: int = WINDOW_BYTES,
    name_of: Callable[[PeerId], str] = str,
) -> list[str]:
    """Why a node should report itself degraded, each reason once; empty when it should not.

    A connection is judged by its speed once ``least_bytes`` have come over it. On GPU nodes this
    is also the check that UCX still picks RDMA or cuda_ipc with endpoint error handling on: what it
    picks for TCP and shared memory differs with it (not run on a GPU yet).
    """
    reasons = []
    for connection in connections:
        name = name_of(connection.peer)
        if rdma_expected and not _is_fast(connection.lanes):
            reasons.append(
                f"{name} is reached over {', '.join(connection.lanes)}, not over RDMA or cuda_ipc:"
                " check that UCX is built with verbs (pdd doctor), transfer.devices, and that UCX"
                " has these lanes with endpoint error handling on"
            )
        slow = 0 < connection.bytes_per_s < floor_bytes_per_s
        if slow and connection.received_bytes >= least_bytes:
            reasons.append(
                f"{name} sends {connection.bytes_per_s / 1e9:.2f} GB/s, below the floor"
                f" of {floor_bytes_per_s / 1e9:.2f} GB/s (transfer.floor_gb_per_s)"
            )
    return list(dict.fromkeys(reasons))


def transport_of(lanes: Iterable[str]) -> str:
    """What carries the bytes, in one word, for labels: the fastest of a connection's lanes."""
    transports = [lane.partition("/")[0] for lane in lanes]
    for transport in transports:
        if _is_fast([transport]):
            return transport
    return transports[0] if transports else ""


class RecentSpeed:
    """Bytes per second over the latest ``window_bytes`` of one connection.

    The connection itself gives the mean since it was made, which would remember a slow hour for
    days. Until the first window is full, that mean is the best there is.
    """

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._received_bytes = 0
        self._received_at_s = 0.0
        self._began = (0, 0.0)
        self._speed = 0.0
        self._windows = 0

    def is_recent(self, now_s: float) -> bool:
        """Whether bytes have come within ``SPEED_HOLDS_S``."""
        return now_s - self._received_at_s <= SPEED_HOLDS_S

    def observe(self, connection: Connection, now_s: float) -> float:
        """Take what the connection says now; the recent speed, 0 if nothing has come yet."""
        if connection.received_bytes != self._received_bytes:
            self._received_bytes = connection.received_bytes
            self._received_at_s = now_s
        received, mean = connection.received_bytes, connection.bytes_per_s
        busy_s = received / mean if mean > 0 else 0.0
        began_bytes, began_s = self._began
        if received - began_bytes >= self._window_bytes and busy_s > began_s:
            self._speed = (received - began_bytes) / (busy_s - began_s)
            self._began = (received, busy_s)
            self._windows += 1
        return self._speed if self._windows else mean


def _is_fast(lanes: Iterable[str]) -> bool:
    return any(lane.startswith(_FAST_PREFIXES) for lane in lanes)
