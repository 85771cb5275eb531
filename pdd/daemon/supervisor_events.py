"""What happens to a supervisor, and where it hears about it.

``NotifyReceiver`` is the other end of ``pdd.daemon.notify``: an abstract datagram socket, so no
file is left behind. The kernel adds each sender's process id; messages from any process that is
not a daemon of ours are dropped.
"""

import asyncio
import os
import secrets
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_LONGEST_MESSAGE_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """A child ended, daemon or not. ``exit_code`` is negative for a signal."""

    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonExited:
    """A daemon ended and has been reaped."""

    name: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSaid:
    """A daemon sent a notify message."""

    pid: int
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The operator wants it to end."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDue:
    """The wait before a restart is over, and what the dead daemon left has been stopped."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllJoined:
    """The scheduler sees every node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: look at progress and time limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """Something beside the loop failed; a bug, or a file that cannot be written."""

    error: BaseException


Event = DaemonExited | DaemonSaid | StopRequested | RestartDue | AllJoined | Tick | TaskFailed


class NotifyReceiver:
    """Receives notify messages while the loop runs."""

    def __init__(self, on_message: Callable[[DaemonSaid], None]) -> None:
        self._on_message = on_message
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        name = f"pdd-up-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket.bind("\0" + name)
        self.address = "@" + name
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def _receive(self) -> None:
        data, ancillary, _, _ = self._socket.recvmsg(
            _LONGEST_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])[0]
                lines = data.decode(errors="replace").splitlines()
                fields = dict(line.split("=", 1) for line in lines if "=" in line)
                self._on_message(DaemonSaid(pid=pid, fields=fields))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


def reap_children() -> list[ProcessExited]:
    """Collect every child that has ended: daemons, and orphans that we inherited."""
    exited: list[ProcessExited] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return exited
        if pid == 0:
            return exited
        exited.append(ProcessExited(pid=pid, exit_code=os.waitstatus_to_exitcode(status)))


def stop_signals() -> list[signal.Signals]:
    """Signals that mean stop. Not the hang-up that ``nohup`` has made us ignore."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def describe_exit(exit_code: int) -> str:
    """For a person: ``exited with code 1`` or ``was killed by SIGKILL``."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
