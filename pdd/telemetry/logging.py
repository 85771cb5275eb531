"""Logging for every daemon: one event per line on stderr, JSON or for a terminal.

``import structlog; log = structlog.get_logger(__name__)`` in any module, then
``log.info("kv_transfer_completed", block_count=118)``. What libraries log through the standard
library takes the same way out. stdout stays free for results.
"""

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
            structlog.processors.JSONRenderer(sort_keys=True, default=str),
        ]
    else:
        renderers = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
