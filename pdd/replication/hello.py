"""The handshake of two replicas: made, and checked at both ends of a stream.

History of the encoding: see `pdd.raft.codec`. There is one version so far, so nothing is lowered
yet; a peer with no version in common is refused by name.
"""

from __future__ import annotations

from pdd.core.errors import PddError
from pdd.raft.codec import OLDEST_READABLE_VERSION, VERSION
from pdd.raft.config import RaftConfig, voters_hash
from pdd.rpc.v1.raft_pb2 import ReplicaHello


class HelloRefusedError(PddError):
    """The two replicas cannot work together; the message says why and what to change."""


def make_hello(config: RaftConfig) -> ReplicaHello:
    return ReplicaHello(
        replica=config.node,
        cluster_id=config.cluster_id,
        voters_hash=voters_hash(config.voters),
        newest_version=VERSION,
        oldest_version=OLDEST_READABLE_VERSION,
    )


def check_hello(hello: ReplicaHello, config: RaftConfig) -> None:
    """Raises: HelloRefusedError."""
    if hello.cluster_id != config.cluster_id:
        raise HelloRefusedError(
            f"{hello.replica!r} is of cluster {hello.cluster_id!r}, {config.node!r} of "
            f"{config.cluster_id!r}: check the addresses and raft.cluster_id"
        )
    if hello.replica not in config.peers:
        raise HelloRefusedError(
            f"{hello.replica!r} is none of the peers of {config.node!r}: {list(config.peers)}"
        )
    if hello.voters_hash != voters_hash(config.voters):
        raise HelloRefusedError(
            f"{hello.replica!r} and {config.node!r} disagree about who votes: raft.voters must be "
            "the same on every replica"
        )
    if hello.newest_version < OLDEST_READABLE_VERSION or hello.oldest_version > VERSION:
        raise HelloRefusedError(
            f"{hello.replica!r} reads message versions {hello.oldest_version} to "
            f"{hello.newest_version}, {config.node!r} {OLDEST_READABLE_VERSION} to {VERSION}: "
            "upgrade one release at a time"
        )
