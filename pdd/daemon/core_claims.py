"""Which nodes of this host compute on the same cores, so that both can say so.

Two engines whose threads wait for each other while spinning make a shared core hundreds of times
slower, not twice: the threads of one spin through the time that the other's last thread needs.
From outside both nodes look healthy.

A node binds one datagram socket per core in Linux's abstract namespace: it is gone with the
process, however that ends, and needs no folder, no rights and no common configuration. Who finds a
core bound calls its holder, and the holder answers; either remembers the other's name for
``_HEARD_FOR_S``. Network namespaces of their own (containers) do not see each other.
"""

import contextlib
import errno
import socket
from collections.abc import Iterable

from pdd.core.ports import Clock

_HEARD_FOR_S = 5.0
"""A neighbour that was not heard for that long has gone, or has other cores now."""

_MESSAGES_PER_LOOK_MAX = 256
"""More than that waits for the next look; a full socket drops calls, which are repeated then."""

_NAME_BYTES_MAX = 256


class CoreClaims:
    """One node's claims. ``look`` once per heartbeat, on the event loop: nothing in it waits."""

    def __init__(
        self, cores: Iterable[int], *, name: str, clock: Clock, prefix: str = "pdd-core"
    ) -> None:
        """``prefix``: of the sockets' names; tests have their own."""
        self._name = name.encode()[:_NAME_BYTES_MAX]
        self._clock = clock
        self._prefix = prefix
        self._cores = frozenset(cores)
        self._free = sorted(self._cores)
        self._held: dict[int, socket.socket] = {}
        self._heard: dict[int, tuple[str, float]] = {}
        self._reason = ""
        self._voice = _datagram_socket()
        self._voice.bind("")  # a name of the kernel's choice, to be answered at

    @property
    def degraded_reason(self) -> str:
        """Why this node is slow, by the last look; empty when nobody shares its cores."""
        return self._reason

    def look(self) -> None:
        """Claim what is free, call who holds the rest, answer who calls."""
        now_s = self._clock()
        for core in tuple(self._free):
            if (claim := self._claimed(core)) is None:
                self._say(core, self._address(core))
            else:
                self._held[core] = claim
                self._free.remove(core)
        for core, claim in self._held.items():
            for caller in self._hear(claim, now_s):
                self._say(core, caller)
        self._hear(self._voice, now_s)
        self._heard = {
            core: (name, heard_s)
            for core, (name, heard_s) in self._heard.items()
            if now_s - heard_s <= _HEARD_FOR_S
        }
        self._reason = _reason({core: name for core, (name, _) in self._heard.items()})

    def close(self) -> None:
        """Give everything back. Void when it was given back already."""
        for claim in self._held.values():
            claim.close()
        self._held.clear()
        self._voice.close()

    def _address(self, core: int) -> str:
        return f"\0{self._prefix}-{core}"

    def _claimed(self, core: int) -> socket.socket | None:
        claim = _datagram_socket()
        try:
            claim.bind(self._address(core))
        except OSError as error:
            claim.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return claim

    def _say(self, core: int, to: str | bytes) -> None:
        # Gone meanwhile, or has not read the last ones: the next look tells it again.
        with contextlib.suppress(ConnectionRefusedError, BlockingIOError):
            self._voice.sendto(b"%d %s" % (core, self._name), to)

    def _hear(self, ear: socket.socket, now_s: float) -> list[bytes]:
        """Note who speaks; where to answer each."""
        speakers = []
        for _ in range(_MESSAGES_PER_LOOK_MAX):
            try:
                message, sender = ear.recvfrom(_NAME_BYTES_MAX + 16)
            except BlockingIOError:
                break
            core, _, name = message.decode(errors="replace").partition(" ")
            if core.isdecimal() and int(core) in self._cores and name and name.isprintable():
                self._heard[int(core)] = (name, now_s)
                if sender:
                    speakers.append(sender)
        return speakers


def _reason(shared: dict[int, str]) -> str:
    if not shared:
        return ""
    names = list(dict.fromkeys(shared.values()))
    return (
        f"computes on cores {sorted(shared)} together with {', '.join(names)}, and both stall:"
        " give each node of this host its own node.cpu_cores"
    )


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    return made
