"""Tell whoever started this daemon how it is: systemd's notify protocol, sd_notify(3).

The same datagrams serve systemd and ``pdd up``: both set ``$NOTIFY_SOCKET``. Without it every
call does nothing. Keys that begin with ``X_PDD_`` are for ``pdd up``; systemd ignores them.

A starter that is gone is a warning in the log and nothing more: a daemon must be able to stop
cleanly when ``pdd up`` was killed. Only ``notify_ready`` raises, for a start nobody sees failed.

Call ``notify_status`` while loading, ``notify_ready`` once when requests can be served,
``notify_watchdog`` every ``watchdog_interval_s()``, ``notify_stopping`` when stopping begins.
"""

import os
import socket
from collections.abc import Mapping

import structlog

from pdd.daemon.notify_keys import GRPC_ADDRESS_KEY, HTTP_ADDRESS_KEY

log = structlog.get_logger(__name__)


def notify_ready(*, grpc: str, http: str = "", status: str = "ready") -> None:
    """The daemon serves.

    Args:
        grpc: host:port of the gRPC server as it is really bound.
        http: host:port of the HTTP server, for a scheduler.
        status: one line for a person.
    Raises:
        OSError: ``$NOTIFY_SOCKET`` is named but nobody is there.
    """
    fields = {"READY": "1", "STATUS": status, GRPC_ADDRESS_KEY: grpc}
    _send(fields | ({HTTP_ADDRESS_KEY: http} if http else {}))


def notify_status(status: str) -> None:
    """One line for a person, for example "loading model"; ``pdd up`` shows it while waiting."""
    _try_to_send({"STATUS": status})


def notify_stopping(status: str = "stopping") -> None:
    """The daemon ends on purpose."""
    _try_to_send({"STOPPING": "1", "STATUS": status})


def notify_watchdog() -> None:
    """The daemon is alive; systemd restarts it when this stops coming."""
    _try_to_send({"WATCHDOG": "1"})


def watchdog_interval_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often to call ``notify_watchdog``: half of what is allowed. None: nobody watches."""
    allowed_us = environment.get("WATCHDOG_USEC", "")
    watched_pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not allowed_us.isdigit() or int(allowed_us) == 0 or watched_pid != str(os.getpid()):
        return None
    return int(allowed_us) / 1e6 / 2


def _try_to_send(fields: Mapping[str, str]) -> None:
    try:
        _send(fields)
    except OSError as error:
        log.warning("notify_failed", keys=sorted(fields), reason=str(error))


def _send(fields: Mapping[str, str]) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # abstract: a name in the kernel, no file
        address = "\0" + address[1:]
    lines = [f"{key}={value.replace(chr(10), ' ')}" for key, value in fields.items()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(5.0)  # a full queue must not hang the daemon for ever
        sender.connect(address)
        sender.sendall("\n".join(lines).encode())
