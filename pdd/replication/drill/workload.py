"""Clients that keep the group busy and write down what they were told.

Two kinds of keys, no key used for longer than OPERATIONS_PER_KEY, so that checking stays cheap:
    own/<client>/<n>   written by one client only: what was acknowledged must all be there, in order
    shared/<n>         written and read by everybody: a real test of linearizability

Each client has one operation at a time. One whose outcome stays unknown ends the client's session;
it goes on with a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdd.core.errors import NodeUnavailable
from pdd.replication.client import GroupClient, OutcomeUnknownError, Session, SessionLostError
from pdd.replication.kv_machine import (
    Value,
    decode_value,
    encode_add,
    encode_get,
    encode_put,
)
from pdd.replication.linearizability import NEVER, Operation

OPERATIONS_PER_KEY = 60
SHARED_KEYS = 4
PAUSE_S = 0.004
"""Between a client's operations: load enough to be in the middle of something at any time."""
OPERATION_TIMEOUT_S = 15.0


@dataclass(slots=True)
class Record:
    """What all clients were told."""

    clock_us: Callable[[], int]
    history: list[Operation] = field(default_factory=list)
    acknowledged_count: int = 0
    """Writes whose success a client heard of."""
    own_writes: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    """By key of one client: (number, acknowledged), in the order they were sent."""
    repeated: list[str] = field(default_factory=list)
    """Answers that show an effect twice; must stay empty."""
    acknowledged_calls_us: list[tuple[int, int]] = field(default_factory=list)
    """(called, answered) of each acknowledged write."""
    next_number: int = 1
    shared_count: int = 0

    def take_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def shared_key(self, rng: random.Random) -> str:
        self.shared_count += 1
        epoch = self.shared_count // (OPERATIONS_PER_KEY * SHARED_KEYS)
        return f"shared/{epoch}/{rng.randrange(SHARED_KEYS)}"

    def first_write_after_us(self, moment_us: int) -> int | None:
        """When the first write that was called after ``moment_us`` was acknowledged."""
        return min(
            (answered for called, answered in self.acknowledged_calls_us if called >= moment_us),
            default=None,
        )

    def took_ms_between(self, from_us: int, until_us: int) -> list[float]:
        """Of each acknowledged write that began and ended between two moments."""
        return [
            (answered - called) / 1000
            for called, answered in self.acknowledged_calls_us
            if from_us <= called and answered <= until_us
        ]


async def run_client(
    number: int, addresses: Sequence[str], record: Record, *, seed: int, stopping: asyncio.Event
) -> None:
    """Until ``stopping``. Every client has connections of its own."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 -- repeatable, guards nothing
    async with GroupClient(addresses) as client:
        session: Session | None = None
        count = 0
        while not stopping.is_set():
            if session is None:
                session = await _open(client)
                continue
            count += 1
            if rng.random() < 0.5:
                key = f"own/{number}/{count // OPERATIONS_PER_KEY}"
                is_over = await _write_own(session, key, record, number)
            else:
                is_over = await _use_shared(client, session, rng, record, number)
            if is_over:
                session = None
            await asyncio.sleep(PAUSE_S)


async def _open(client: GroupClient) -> Session | None:
    try:
        return await client.open_session(timeout_s=OPERATION_TIMEOUT_S)
    except NodeUnavailable:
        return None  # two of three may be down for a while; the loop asks again


async def _write_own(session: Session, key: str, record: Record, client: int) -> bool:
    """True: the session is over."""
    number = record.take_number()
    written = record.own_writes.setdefault(key, [])
    written.append((number, False))
    result = await _execute(session, "add", key, number, record, client)
    if result is not None:
        written[-1] = (number, True)
    return result is None


async def _use_shared(
    client: GroupClient, session: Session, rng: random.Random, record: Record, number: int
) -> bool:
    key = record.shared_key(rng)
    kind = rng.choice(("put", "add", "add", "get", "get"))
    if kind != "get":
        return (await _execute(session, kind, key, record.take_number(), record, number)) is None
    called_us = record.clock_us()
    try:
        data = await client.read(encode_get(key), timeout_s=OPERATION_TIMEOUT_S)
    except NodeUnavailable:
        return False  # an unanswered read says nothing
    _note(record, number, key, kind, 0, called_us, decode_value(data))
    return False


async def _execute(
    session: Session, kind: str, key: str, number: int, record: Record, client: int
) -> Value | None:
    """None: unknown."""
    encode = encode_put if kind == "put" else encode_add
    called_us = record.clock_us()
    try:
        data = await session.execute(encode(key, number), timeout_s=OPERATION_TIMEOUT_S)
    except (OutcomeUnknownError, SessionLostError):
        _note(record, client, key, kind, number, called_us, None)
        return None
    result = decode_value(data)
    _note(record, client, key, kind, number, called_us, result)
    record.acknowledged_count += 1
    record.acknowledged_calls_us.append((called_us, record.clock_us()))
    if result.count(number) != 1:
        record.repeated.append(f"{kind} {number} on {key} answered {list(result)}")
    return result


def _note(
    record: Record,
    client: int,
    key: str,
    kind: str,
    argument: int,
    called_us: int,
    result: Value | None,
) -> None:
    record.history.append(
        Operation(
            client=f"client-{client}",
            key=key,
            kind=kind,
            argument=argument,
            called_at=called_us,
            answered_at=record.clock_us() if result is not None else NEVER,
            result=result,
        )
    )
