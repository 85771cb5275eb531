"""The tree of errors. Names say whose fault it is; messages say what to do next.

PddError
├── ConfigError            the operator's file, environment or flag is wrong
├── InvalidRequest         the client's fault; HTTP 400, gRPC INVALID_ARGUMENT
│   ├── RequestTooLarge    HTTP 413
│   ├── UnknownRequest     HTTP 404, NOT_FOUND
│   └── RequestGone        HTTP 410, NOT_FOUND
├── AdmissionRejected      no room now; HTTP 429 with Retry-After, RESOURCE_EXHAUSTED
├── RemoteError            another process's fault
│   ├── NodeUnavailable    no node can serve this; HTTP 503, UNAVAILABLE
│   │   └── SchedulerStopping
│   ├── RequestFailed      an accepted request could not be finished; an error event in streams
│   └── DeadlineExceeded   HTTP 504, DEADLINE_EXCEEDED
└── KVTransferError        blocks did not arrive whole; the decode node recomputes
"""


class PddError(Exception):
    """Root of all errors that pdd raises on purpose."""


class ConfigError(PddError):
    """A setting is wrong. The message names file and key, environment variable or flag."""


class InvalidRequest(PddError):
    """A request that can never succeed.

    ``field`` is the JSON path of the offending parameter (``messages.0.role``), or None;
    ``code`` is OpenAI's error code (``invalid_value``, ``context_length_exceeded``,
    ``model_not_found``...).
    """

    def __init__(self, message: str, *, field: str | None = None, code: str = "invalid_value"):
        super().__init__(message)
        self.field = field
        self.code = code


class RequestTooLarge(InvalidRequest):
    """The body is longer than the configured limit."""


class UnknownRequest(InvalidRequest):
    """A request that is to be continued was never heard of."""


class RequestGone(InvalidRequest):
    """A request that is to be continued was known and cannot be. The message says why."""


class AdmissionRejected(PddError):
    """Every queue that could take the request is full; try again after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: float):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RemoteError(PddError):
    """Another process did not do its part."""


class NodeUnavailable(RemoteError):
    """No node that could serve the request is there. ``retry_after_s``: None: nobody can say when
    one will be."""

    def __init__(self, message: str, *, retry_after_s: float | None = None):
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SchedulerStopping(NodeUnavailable):
    """Another scheduler, or the next life of this one, can."""


class RequestFailed(RemoteError):
    """An accepted request was ended because nothing could save it."""


class DeadlineExceeded(RemoteError):
    """The request's own deadline passed before it was finished."""


class KVTransferError(PddError):
    """KV blocks did not arrive, or not as they were sent."""
