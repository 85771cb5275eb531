"""gRPC settings of the streams between replicas, and between replicas and their clients.

The network must not answer in raft's place: no automatic retries (a repeated message is harmless, a
hidden delay is not), short reconnects, and a peer that is stopped or cut off is noticed by pings.
"""

from __future__ import annotations

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Above any batch of messages (`peer_queue`) and any batch of submissions."""
RECONNECT_MIN_S = 0.1
RECONNECT_MAX_S = 0.3
CONNECT_TIMEOUT_S = 1.0
"""From dialling to the peer's hello; then the stream is given up and dialled again."""

_COMMON = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]
SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.so_reuseport", 0),  # two replicas must never share a port silently
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
]
CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", int(RECONNECT_MIN_S * 1000)),
    ("grpc.min_reconnect_backoff_ms", int(RECONNECT_MIN_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(RECONNECT_MAX_S * 1000)),
    # Two groups in one process (tests) must not share connections.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
