"""The edge table: pdd's errors as OpenAI's error bodies and as gRPC statuses.

OpenAI's shape is ``{"error": {"message", "type", "param", "code"}}``. The same body is the
whole response before the headers have left, and one SSE event afterwards.
"""

import math
from dataclasses import dataclass

import grpc

from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestFailed,
    RequestGone,
    RequestTooLarge,
    SchedulerStopping,
    UnknownRequest,
)

MAX_MESSAGE_CHARS = 1500
"""gRPC sends the message in a header, of which clients take 8 KiB in all by default."""

MAX_PARAM_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeError:
    """How one error looks from outside. ``outcome`` is its label in the metrics."""

    status: int
    grpc_code: grpc.StatusCode
    kind: str
    code: str | None
    outcome: str


_INVALID = EdgeError(
    status=400,
    grpc_code=grpc.StatusCode.INVALID_ARGUMENT,
    kind="invalid_request_error",
    code=None,
    outcome="invalid",
)
_INTERNAL = EdgeError(
    status=500,
    grpc_code=grpc.StatusCode.INTERNAL,
    kind="server_error",
    code="internal_error",
    outcome="failed",
)

# Most specific first: the first class that matches decides.
_TABLE: tuple[tuple[type[Exception], EdgeError], ...] = (
    (
        RequestTooLarge,
        EdgeError(
            status=413,
            grpc_code=grpc.StatusCode.INVALID_ARGUMENT,
            kind="invalid_request_error",
            code="request_too_large",
            outcome="invalid",
        ),
    ),
    (
        UnknownRequest,
        EdgeError(
            status=404,
            grpc_code=grpc.StatusCode.NOT_FOUND,
            kind="invalid_request_error",
            code="request_not_found",
            outcome="invalid",
        ),
    ),
    (
        RequestGone,
        EdgeError(
            status=410,
            grpc_code=grpc.StatusCode.NOT_FOUND,
            kind="invalid_request_error",
            code="request_gone",
            outcome="invalid",
        ),
    ),
    (InvalidRequest, _INVALID),
    (
        AdmissionRejected,
        EdgeError(
            status=429,
            grpc_code=grpc.StatusCode.RESOURCE_EXHAUSTED,
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            outcome="rejected",
        ),
    ),
    (
        SchedulerStopping,
        EdgeError(
            status=503,
            grpc_code=grpc.StatusCode.UNAVAILABLE,
            kind="service_unavailable_error",
            code="scheduler_stopping",
            outcome="unavailable",
        ),
    ),
    (
        NodeUnavailable,
        EdgeError(
            status=503,
            grpc_code=grpc.StatusCode.UNAVAILABLE,
            kind="service_unavailable_error",
            code="node_unavailable",
            outcome="unavailable",
        ),
    ),
    (
        DeadlineExceeded,
        EdgeError(
            status=504,
            grpc_code=grpc.StatusCode.DEADLINE_EXCEEDED,
            kind="timeout_error",
            code="deadline_exceeded",
            outcome="deadline",
        ),
    ),
    (
        RequestFailed,
        EdgeError(
            status=500,
            grpc_code=grpc.StatusCode.INTERNAL,
            kind="server_error",
            code="request_failed",
            outcome="failed",
        ),
    ),
)


def edge_of(error: Exception) -> EdgeError:
    """The row for an error; whatever is not in the table is a fault of ours."""
    for error_type, edge in _TABLE:
        if isinstance(error, error_type):
            return edge
    return _INTERNAL


def message_of(error: Exception) -> str:
    """What the client is told. A fault of ours is not explained to strangers: see the log."""
    if isinstance(error, PddError):
        return _clip(str(error), MAX_MESSAGE_CHARS)
    return "internal error; the scheduler's log has the details under this request's id"


def error_body(error: Exception) -> dict[str, object]:
    """OpenAI's error object for any exception."""
    edge = edge_of(error)
    code: str | None = edge.code
    param: str | None = None
    if isinstance(error, InvalidRequest):
        param = None if error.field is None else _clip(error.field, MAX_PARAM_CHARS)
        code = edge.code or error.code
    return make_error_body(message_of(error), kind=edge.kind, param=param, code=code)


def make_error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, object]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def retry_after_s(error: Exception) -> int | None:
    """Whole seconds for ``Retry-After``, at least one; None when the error carries none."""
    if not isinstance(error, AdmissionRejected | NodeUnavailable) or error.retry_after_s is None:
        return None
    seconds = error.retry_after_s
    return max(1, math.ceil(seconds)) if math.isfinite(seconds) else 1


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."
