"""A client of a group of replicas: finds the leader, repeats what was not answered, exactly once.

    async with GroupClient(addresses) as client:
        session = await client.open_session(timeout_s=10)
        result = await session.execute(command, timeout_s=10)
        value = await client.read(query, timeout_s=10)

A command is repeated under its sequence number until somebody answers or the time is up; after that
its outcome is unknown (`OutcomeUnknownError`), never "failed", and the session is over: a later
command must not overtake it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pdd.core.errors import NodeUnavailable, PddError, RemoteError
from pdd.core.ports import Clock
from pdd.raft.core import Refusal
from pdd.raft.sessions import SessionStatus, decode_result
from pdd.replication.leader_finder import LeaderFinder
from pdd.replication.replica_link import ReplicaLink
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.tls.security import PLAIN, Security

ATTEMPT_TIMEOUT_S = 0.5
"""One replica's answer; then another is asked. Above a commit on a busy disk, below an election."""
PAUSE_MIN_S = 0.02
PAUSE_MAX_S = 0.06
"""Between attempts when nobody knows a leader."""


class OutcomeUnknownError(RemoteError):
    """The command may have taken effect, or may yet."""


class CommandRefusedError(PddError):
    """No replica will ever take this command: it is too large. It has had no effect."""


class SessionLostError(PddError):
    """The group has forgotten this session; what its last command did is unknown. Open another."""


class GroupClient:
    def __init__(
        self,
        addresses: Sequence[str],
        *,
        clock: Clock = time.monotonic,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        security: Security = PLAIN,
    ) -> None:
        self._clock = clock
        self._attempt_timeout_s = attempt_timeout_s
        self._finder = LeaderFinder(addresses)
        self._links = {address: ReplicaLink(address, security=security) for address in addresses}
        self._rng = random.Random()  # noqa: S311 -- spreads retries, guards nothing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self._links.values():
            await link.close()

    async def open_session(self, *, timeout_s: float) -> Session:
        """Raises: NodeUnavailable, when no leader answered in time."""
        session = Session(self, session_id=secrets.token_hex(12))
        await session.open(timeout_s=timeout_s)
        return session

    async def read(self, query: bytes, *, timeout_s: float) -> bytes:
        """Linearizable. Raises: NodeUnavailable, when no leader answered in time."""
        result = await self.ask(pb.Submission(query=query), timeout_s=timeout_s)
        if result is None:
            raise NodeUnavailable(f"no leader answered a read for {timeout_s:.1f} s")
        return result

    async def ask(self, submission: pb.Submission, *, timeout_s: float) -> bytes | None:
        """Until somebody answers; None when the time is up. Repeats: a command must be in a
        session. Raises CommandRefusedError: to send it again is in vain."""
        deadline_s = self._clock() + timeout_s
        while (now_s := self._clock()) < deadline_s:
            address = self._finder.pick(now_s)
            outcome = await self._links[address].ask(
                submission, timeout_s=min(self._attempt_timeout_s, deadline_s - now_s)
            )
            if outcome.kind == pb.OUTCOME_KIND_OK:
                self._finder.on_answer(address)
                result: bytes = outcome.result
                return result
            now_s = self._clock()
            if outcome.reason == Refusal.TOO_LARGE:
                raise CommandRefusedError(
                    f"a command of {submission.ByteSize()} bytes is more than the group takes as "
                    "one entry; send it in parts"
                )
            if outcome.kind == pb.OUTCOME_KIND_REJECTED:
                is_hinted = self._finder.on_refusal(
                    address, leader_address=outcome.leader_address, now_s=now_s
                )
                if is_hinted:
                    continue
            else:
                self._finder.on_silence(address, now_s=now_s)
            await asyncio.sleep(self._rng.uniform(PAUSE_MIN_S, PAUSE_MAX_S))
        return None


class Session:
    """One command at a time; see `pdd.raft.sessions`."""

    def __init__(self, client: GroupClient, *, session_id: str) -> None:
        self.session_id = session_id
        self._client = client
        self._sequence = 0
        self._is_usable = False

    async def open(self, *, timeout_s: float) -> None:
        """Raises: NodeUnavailable."""
        if await self._send(0, b"", timeout_s=timeout_s) is None:
            raise NodeUnavailable(
                f"no leader of the log answered for {timeout_s:.1f} s, and nothing was changed; "
                "'pdd raft status' tells which replicas answer"
            )
        self._is_usable = True

    async def execute(self, body: bytes, *, timeout_s: float) -> bytes:
        """The state machine's result.

        Raises: OutcomeUnknownError, SessionLostError; CommandRefusedError, after which the session
            goes on.
        """
        assert self._is_usable, "one command at a time, and none after an unknown outcome"
        self._is_usable = False
        try:
            result = await self._send(self._sequence + 1, body, timeout_s=timeout_s)
        except CommandRefusedError:
            self._is_usable = True
            raise
        self._sequence += 1
        if result is None:
            raise OutcomeUnknownError(
                f"no leader answered for {timeout_s:.1f} s: the command may have taken effect, "
                "or may yet; 'pdd raft status' tells which replicas answer"
            )
        self._is_usable = True
        return result

    async def _send(self, sequence: int, body: bytes, *, timeout_s: float) -> bytes | None:
        submission = pb.Submission()
        command = submission.command  # filled in place: half the cost of one made and copied in
        command.session_id, command.sequence, command.body = self.session_id, sequence, body
        data = await self._client.ask(submission, timeout_s=timeout_s)
        if data is None:
            return None
        result = decode_result(data)
        if result.status is not SessionStatus.OK:
            raise SessionLostError(
                f"session {self.session_id} answered {result.status.name} to command {sequence}"
            )
        return result.body
