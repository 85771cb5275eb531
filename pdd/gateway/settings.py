"""Bounds of the front door. Every one says what happens when it is reached."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits for one scheduler process.

    ``max_body_bytes``: a longer body is HTTP 413, judged by its header before it is read.
    ``body_timeout_s``: a body that has not arrived by then is HTTP 408.
    ``max_running_requests``: one more is HTTP 429; the scheduler has bounds of its own.
    ``request_deadline_s``: an HTTP request that takes longer is ended with an error.
    ``header_hold_s``: how long the response headers wait for the first token, so that both
        leave in one write and a failure before the first token still gets a status of its own.
    ``write_stall_s``: a client that takes nothing for so long, with ``write_buffer_bytes``
        waiting for it, is disconnected and its request cancelled; nobody else notices.
    ``linger_s``: after an answer that did not wait for the whole body, how long the rest is read
        and thrown away before the connection is closed, so that the client sees the answer.
    ``shutdown_grace_s``: at shutdown open requests get so long to end by themselves; then each
        stream ends with an error event.
    """

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
