"""Logging for every daemon: one event per line on stderr, JSON or for a terminal.

``import structlog; log = structlog.get_logger(__name__)`` in any module, then
``log.info("kv_transfer_completed", block_count=118)``. What libraries log through the standard
library comes out alike. Ours does not pass through it: the scheduler writes a line per request, and
the records, formatters and handlers of the standard library are most of what a line would cost.
stdout stays free for results.
"""

import json
import logging
import sys
from typing import TextIO

import structlog

from pdd.config.sections import LogFormat, LogSection

_CHATTY = ("asyncio", "grpc", "httpx", "urllib3", "filelock")
"""Libraries whose info messages say nothing to an operator."""


def configure_logging(
    section: LogSection, *, stream: TextIO | None = None, **bound: object
) -> None:
    """Set up structlog and the standard library's root logger. Call once, before logging.

    Args:
        section: level and format.
        stream: where to write; stderr by default.
        bound: keys for every event of this process, for example ``node=..., role=...``.
    """
    out = stream if stream is not None else sys.stderr
    level = logging.getLevelNamesMapping()[section.level.upper()]
    as_json = section.format is LogFormat.JSON or (
        section.format is LogFormat.AUTO and not out.isatty()
    )
    # Runs for our events and for those of libraries alike.
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        renderers: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ]
    else:
        renderers = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    structlog.configure(
        processors=[*shared, *renderers],
        logger_factory=lambda name="": _LineLogger(name, handler),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)


# Made once: json.dumps makes an encoder per call when it is given options.
_encode = json.JSONEncoder(sort_keys=True, default=str).encode


def _dumps(event: object, **_: object) -> str:
    return _encode(event)


class _LineLogger:
    """Writes finished lines to a handler's stream, and takes turns with the handler."""

    def __init__(self, name: str, handler: "logging.StreamHandler[TextIO]") -> None:
        self.name = name
        self._handler = handler

    def msg(self, line: str) -> None:
        """One line, at once."""
        assert self._handler.lock is not None, "made by its constructor"
        with self._handler.lock:
            stream = self._handler.stream
            stream.write(line + "\n")
            stream.flush()

    debug = info = warning = warn = error = critical = fatal = exception = log = msg
