"""Version of the messages between nodes and schedulers.

History: 1, first version. 2, a scheduler tells nodes of their peers (``PeersJoined``,
``PeerLeft``) and nodes report their connections (``NodeStatus.links``); frames of one token and
nothing else travel in columns (``TokenColumns``). Nodes need not ask whether a scheduler knows
these: it is never older than its nodes. 3, nodes tell what their prefix caches hold
(``CachePosition``, ``CacheDelta``, ``CacheSnapshotPart``; ``AskCacheSnapshot``). Also 3: a node
holds what a lost scheduler had asked for (``Submit.resume``) and gives it to the one that takes
over (``HeldRequests``, ``Claim``). A scheduler claims from those only that have told it something,
and an older node ignores the rest.
"""

PROTOCOL_VERSION = 3
"""Spoken by this build."""
CACHE_SINCE_VERSION = 3
"""What a node of an older version holds is guessed from where requests went."""


def accepted_versions(newest: int) -> tuple[int, ...]:
    """``newest`` and the one before it, so that a cluster can be upgraded scheduler first.

    Versions count from 1; 0 is a message without the field.
    """
    return tuple(version for version in (newest - 1, newest) if version >= 1)


ACCEPTED_PROTOCOL_VERSIONS = accepted_versions(PROTOCOL_VERSION)
"""What a scheduler takes from a node. A node that is newer than its scheduler is refused."""

MESSAGE_BYTES_MAX = 16 << 20
BATCH_BYTES_MAX = 4 << 20
"""Messages that share one are not merged beyond this: a node's whole work may be moved at once."""
HELD_BYTES_MAX = 4 << 20
"""Held requests that share one message; a single one may be longer, as a submit may."""
SERVER_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Two daemons must never share a port silently.
    ("grpc.so_reuseport", 0),
    # A peer that was stopped or cut off is noticed within 10 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # What really ends the connection of a process that was stopped; gRPC's own value is a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.max_ping_strikes", 0),
]
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # What really ends the connection of a process that was stopped; gRPC's own value is a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # Two clusters on one machine must not share subchannels.
    ("grpc.use_local_subchannel_pool", 1),
    # Node addresses are direct; a proxy from the environment is for other traffic.
    ("grpc.enable_http_proxy", 0),
]
