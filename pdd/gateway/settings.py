"""Bounds of the front door. Every one says what happens when it is reached."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits for one scheduler process.

    ``max_head_bytes``: a longer request line and headers are HTTP 431; so is as much beside a body
        in chunks (extensions, trailers).
    ``head_timeout_s``: a request whose headers have not arrived by then is HTTP 408.
    ``max_body_bytes``: a longer body is HTTP 413, judged by its header before it is read.
    ``body_timeout_s``: a body that has not arrived by then is HTTP 408.
    ``max_running_requests``: one more is HTTP 429; the scheduler has bounds of its own.
    ``request_deadline_s``: a request that takes longer is ended with an error.
    ``header_hold_s``: how long the response headers wait for the first token, so that both
        leave in one write and a failure before the first token still gets a status of its own.
    ``write_buffer_bytes``: what may wait in the transport for a slow reader; as much again may be
        held back behind it. A client that is slower still is disconnected and its request
        cancelled; nobody else notices.
    ``write_stall_s``: so is one that takes nothing at all for so long.
    ``keepalive_timeout_s``: a connection without a request is closed.
    ``linger_s``: after an answer that did not wait for the whole body, how long the rest is read
        and thrown away before the connection is closed, so that the client sees the answer.
    ``shutdown_grace_s``: at shutdown open requests get so long to end by themselves; then each
        stream ends with an error event.
    ``cors_origins``: origins whose pages may read answers; "*" is any. Empty: no page may.
    ``resume_age_s``: how long a finished request with an Idempotency-Key can be had again.
    ``resume_grace_s``: how long one runs on after its last client has left.
    ``resume_wait_s``: how long a client that continues a request that is not known is kept waiting,
        because its node may be about to tell this scheduler of it; and, after the start, one that
        sends a key that is not known.
    ``grpc_flush_s``: a gRPC stream gets at most one message of tokens per interval. A token that
        comes later than that after the one before is sent at once.
    """

    max_head_bytes: int = 32 * 1024
    head_timeout_s: float = 30.0
    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 30.0
    max_running_requests: int = 4096
    request_deadline_s: float = 600.0
    header_hold_s: float = 0.25
    write_stall_s: float = 60.0
    write_buffer_bytes: int = 64 * 1024
    keepalive_timeout_s: float = 75.0
    linger_s: float = 5.0
    shutdown_grace_s: float = 2.0
    cors_origins: tuple[str, ...] = ()
    resume_age_s: float = 600.0
    resume_grace_s: float = 30.0
    resume_wait_s: float = 0.0
    grpc_flush_s: float = 0.02
