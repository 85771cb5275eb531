"""Clients of the simulated cluster, and the history they record.

Each has one operation at a time, in a session of its own; it repeats a command with the same
sequence number, at any replica, until it hears the outcome or gives up. Giving up leaves the
outcome unknown, and a new session begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from pdd.raft.core import Refusal
from pdd.raft.proposals import Outcome, OutcomeKind
from pdd.raft.sessions import SessionStatus, decode_result, encode_command
from pdd.replication.linearizability import NEVER, Operation
from tests.simulation.raft.checker import check
from tests.simulation.raft.machine import ListMachine, Value, encode_add, encode_put

if TYPE_CHECKING:
    from tests.simulation.raft.node import SimNode
    from tests.simulation.raft.world import World

KEYS = ("a", "b", "c")
GIVE_UP_ATTEMPTS = 8
RETRY_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    client: int
    operation: int
    """Number of the client's operation; answers to an earlier one are ignored."""
    key: str
    body: bytes | None
    """A command for the log, or None for a read."""


@dataclass(slots=True)
class Client:
    number: int
    session: int = 0
    sequence: int = 0
    operation: int = 0
    attempts: int = 0
    kind: str = "open"
    key: str = ""
    argument: int = 0
    called_ms: int = 0
    is_idle: bool = True
    is_open: bool = False
    answered_count: int = 0

    @property
    def session_name(self) -> str:
        return f"c{self.number}.{self.session}"


class Clients:
    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.clients = [Client(number) for number in range(count)]
        self.history: list[Operation] = []
        self.next_argument = 1
        self.effects: dict[tuple[str, int], Value] = {}
        """Result of each (session, sequence): the same however often it is asked for."""

    def start(self) -> None:
        for client in self.clients:
            self.world.after(self.world.rng.randrange(50), self._begin, client)

    # One operation

    def _begin(self, client: Client) -> None:
        world = self.world
        client.operation += 1
        client.attempts = 0
        client.is_idle = False
        client.called_ms = world.now_ms
        choices = ("put", "add", "add", "get", "get") if client.is_open else ("open",)
        client.kind = world.rng.choice(choices)
        client.key = world.rng.choice(KEYS)
        if client.kind in ("put", "add"):
            client.sequence += 1
            client.argument = self.next_argument
            self.next_argument += 1
        self._attempt(client, client.operation)

    def _attempt(self, client: Client, operation: int) -> None:
        if client.is_idle or client.operation != operation:
            return
        client.attempts += 1
        if client.attempts > GIVE_UP_ATTEMPTS and self.world.chaos:
            self._give_up(client)
            return
        node = self._pick_node(client)
        request = Request(
            client=client.number,
            operation=operation,
            key=client.key,
            body=self._body(client),
        )
        self.world.after(self.world.rng.randint(1, 5), self.arrive, node, request)
        self.world.after(RETRY_MS, self._attempt, client, operation)

    def _pick_node(self, client: Client) -> SimNode:
        """Often who leads, sometimes anybody. Reads prefer the leader of the oldest term there
        is: where stale answers would come from."""
        nodes = self.world.nodes_in_order
        leaders = [n for n in nodes if n.alive and n.core.state.is_leader]
        if not leaders or self.world.rng.random() < 0.2:
            return self.world.rng.choice(nodes)
        if client.kind == "get":
            return min(leaders, key=lambda n: n.core.term)
        return self.world.rng.choice(leaders)

    def _body(self, client: Client) -> bytes | None:
        if client.kind == "get":
            return None
        body = b""
        if client.kind != "open":
            encode = encode_put if client.kind == "put" else encode_add
            body = encode(client.key, client.argument)
        return encode_command(
            client_id=client.session_name,
            sequence=0 if client.kind == "open" else client.sequence,
            stamp_ms=self.world.now_ms,
            body=body,
        )

    def arrive(self, node: SimNode, request: Request) -> None:
        if not node.alive:
            return
        if node.paused:
            # Waits in its socket, and may be read before what peers have sent meanwhile.
            node.waiting_requests.append(request)
            return
        refusal = node.request(request)
        self.world.note("request", node.name, request.client, request.operation, refusal)
        if refusal is not None:
            self._count_refusal(refusal)

    def _count_refusal(self, refusal: Refusal) -> None:
        self.world.counts[f"refused_{refusal}"] += 1

    def _give_up(self, client: Client) -> None:
        self.world.counts["given_up"] += 1
        if client.kind != "open":
            self._record(client, answered_ms=NEVER, result=None)
        client.session += 1
        client.sequence = 0
        client.is_open = False
        self._pause(client)

    # Answers

    def outcome(self, node: SimNode, outcome: Outcome[Request]) -> None:
        self.world.counts[f"outcome_{outcome.kind}"] += 1
        if outcome.kind is OutcomeKind.OK and not self._answer_lost():
            result = decode_result(outcome.result)
            self.world.after(
                self.world.rng.randint(1, 5),
                self._answered,
                outcome.token,
                result.status,
                result.body,
            )

    def read(self, node: SimNode, request: Request, lists: ListMachine) -> None:
        self.world.counts["reads"] += 1
        value = lists.get(request.key)
        if not self._answer_lost():
            body = msgpack.packb(list(value))
            self.world.after(
                self.world.rng.randint(1, 5), self._answered, request, SessionStatus.OK, body
            )

    def refused(self, node: SimNode, request: Request) -> None:
        self.world.counts["reads_aborted"] += 1

    def _answer_lost(self) -> bool:
        return self.world.chaos and self.world.rng.random() < 0.05

    def _answered(self, request: Request, status: SessionStatus, body: bytes) -> None:
        client = self.clients[request.client]
        if client.is_idle or client.operation != request.operation:
            return
        self.world.note("answered", client.number, request.operation, status)
        check(status is SessionStatus.OK, 15, f"{client} was answered {status!r}")
        client.answered_count += 1
        if client.kind == "open":
            client.is_open = True
        else:
            result = tuple(msgpack.unpackb(body))
            if client.kind != "get":
                known = self.effects.setdefault((client.session_name, client.sequence), result)
                check(known == result, 15, f"{client} took effect twice")
                check(result.count(client.argument) == 1, 15, f"{client} took effect twice")
            self._record(client, answered_ms=self.world.now_ms, result=result)
        self._pause(client)

    def _record(self, client: Client, *, answered_ms: int, result: Value | None) -> None:
        self.history.append(
            Operation(
                client=client.session_name,
                key=client.key,
                kind=client.kind,
                argument=client.argument,
                called_at=client.called_ms,
                answered_at=answered_ms,
                result=result,
            )
        )

    def _pause(self, client: Client) -> None:
        client.is_idle = True
        self.world.after(self.world.rng.randint(1, 40), self._begin, client)

    def flush_unknown(self) -> None:
        """At the end of the run: what is still open is unknown."""
        for client in self.clients:
            if not client.is_idle and client.kind != "open":
                self._record(client, answered_ms=NEVER, result=None)
