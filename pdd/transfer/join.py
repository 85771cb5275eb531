"""What two nodes check before the first block moves, and what makes a connection count as slow.

Pure. Fingerprints are flat ``name: value`` texts, so that a refusal names both values and a new
name on one side is a difference, not a surprise later.
"""

from collections.abc import Iterable, Mapping

from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Connection
from pdd.wire.control import CONTROL_VERSION

_RDMA_PREFIXES = ("rc", "dc", "ud", "cuda_ipc")


def transfer_fingerprint(settings: TransferSettings) -> dict[str, str]:
    """This engine's part of a node's fingerprint; the model's and the pool's come from others."""
    return {
        "transfer_protocol": str(CONTROL_VERSION),
        "transfer_digest": "xxh3-64" if settings.digest else "none",
    }


def differences(
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    *,
    peer: str,
    may_differ: Iterable[str] = (),
) -> list[str]:
    """Every difference as a sentence; empty when the two may exchange blocks.

    ``may_differ``: names that a reshard bridges (``kv_tp_size``); see ``reshard.plan_reshard``,
    which refuses what it cannot bridge.
    """
    bridged = frozenset(may_differ)
    names = dict.fromkeys([*ours, *theirs])
    return [
        f"{name} is {ours.get(name, 'unknown')} here and {theirs.get(name, 'unknown')} at {peer}"
        for name in names
        if name not in bridged and ours.get(name) != theirs.get(name)
    ]


def degraded_reasons(
    connections: Iterable[Connection],
    *,
    rdma_expected: bool,
    floor_bytes_per_s: float,
    least_bytes: int = 64 << 20,
) -> list[str]:
    """Why a node should report itself degraded; empty when it should not.

    A connection is judged by its speed once ``least_bytes`` have come over it.
    """
    reasons = []
    for connection in connections:
        transports = [lane.partition("/")[0] for lane in connection.lanes]
        fast = any(t.startswith(_RDMA_PREFIXES) for t in transports)
        if rdma_expected and not fast:
            reasons.append(
                f"{connection.peer} is reached over {', '.join(connection.lanes)}, not over RDMA:"
                " check that UCX is built with verbs (pdd doctor) and the devices setting"
            )
        slow = 0 < connection.bytes_per_s < floor_bytes_per_s
        if slow and connection.received_bytes >= least_bytes:
            reasons.append(
                f"{connection.peer} sends {connection.bytes_per_s / 1e9:.2f} GB/s, below the floor"
                f" of {floor_bytes_per_s / 1e9:.2f} GB/s"
            )
    return reasons
