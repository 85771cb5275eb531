"""How the application must be served: with cancellation on, and within bounds."""

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pdd.gateway.settings import GatewaySettings

_MAX_HEADER_BYTES = 16 * 1024

_logger = logging.getLogger("pdd.gateway.http")


class _ClientFaults(logging.Filter):
    """aiohttp logs every malformed request as an error with a traceback; strangers send many."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            record.exc_info = None
            return _logger.isEnabledFor(logging.DEBUG)
        return True


_logger.addFilter(_ClientFaults())


def make_runner(app: web.Application, *, settings: GatewaySettings) -> web.AppRunner:
    """A runner for the application; ``setup`` it, add sites, and ``cleanup`` at the end.

    ``handler_cancellation`` is what makes a client that leaves cancel its request. A request line
    or header longer than 16 KiB is answered with 400 and the connection closed.
    """
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_logger,
        keepalive_timeout=settings.keepalive_timeout_s,
        lingering_time=settings.linger_s,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        # Open requests were ended by the application before; this is for what is left of them.
        shutdown_timeout=1.0,
    )


async def serve(
    app: web.Application, *, settings: GatewaySettings, host: str, port: int
) -> tuple[web.AppRunner, int]:
    """Start serving; returns the runner to clean up, and the port (``port`` may be 0).

    Raises:
        OSError: the address is taken or not this machine's.
    """
    runner = make_runner(app, settings=settings)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    address = runner.addresses[0]
    return runner, int(address[1])
