"""A cluster in virtual time around the real scheduler core: nodes that compute at true speeds,
clients that want true numbers of tokens. One seed, one history.

Nodes compute prompts first come, first served, at ``prefill_tokens_per_s``, and every sequence at
``decode_tokens_per_s``. What the core believes of that is its own affair. After every event the
core's invariants are checked, and that no node's sequences need more blocks than it has.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pdd.core.frames import EngineFacts, Finish, FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import GenerateRequest, Path
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Effect,
    Fail,
    GiveFirstToken,
    Submit,
)
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FirstTokenSampled,
    NodeJoined,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.settings import SchedulerSettings
from tests.builders import make_joined

TICK_S = 0.25


@dataclass(slots=True)
class Job:
    """One submit on one node. ``token_count``: output tokens that the client has from it."""

    submit: Submit
    is_alive: bool = True
    runs: bool = False


@dataclass(slots=True)
class SimNode:
    """A node as it really is."""

    joined: NodeJoined
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    link_bytes_per_s: float
    jobs: dict[RequestId, Job] = field(default_factory=dict)
    busy_until_s: float = 0.0


@dataclass(slots=True)
class Client:
    """What became of one request. ``emitted``: output tokens that it has."""

    request: GenerateRequest
    output_tokens: int
    arrived_s: float
    emitted: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    path: Path | None = None
    error: Exception | None = None
    placements: list[str] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None, f"{self.request.request_id} has no token"
        return self.first_token_s - self.arrived_s


class World:
    """Owns the clock. ``run`` until everything is over, or until a time."""

    def __init__(self, settings: SchedulerSettings, **core: Any) -> None:
        self.core = SchedulerCore(settings, **core)
        self.now_s = 0.0
        self.nodes: dict[NodeName, SimNode] = {}
        self.clients: dict[RequestId, Client] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.at(TICK_S, self._tick)

    # --- what a test does --------------------------------------------------------------------

    def at(self, time_s: float, what: Callable[[], None]) -> None:
        """Do ``what`` at a time; equal times in the order of these calls."""
        self._count += 1
        heapq.heappush(self._due, (max(time_s, self.now_s), self._count, what))

    def join(
        self,
        name: str,
        *,
        prefill_tokens_per_s: float = 5000.0,
        decode_tokens_per_s: float = 50.0,
        link_bytes_per_s: float = 1e9,
        **joined: Any,
    ) -> None:
        """A node comes, or comes again in a new life."""
        event = make_joined(name, **joined)
        self.nodes[event.identity.name] = SimNode(
            joined=event,
            prefill_tokens_per_s=prefill_tokens_per_s,
            decode_tokens_per_s=decode_tokens_per_s,
            link_bytes_per_s=link_bytes_per_s,
        )
        self.step(event)

    def lose(self, name: str) -> None:
        """A node is gone with all it had."""
        node = self.nodes.pop(NodeName(name))
        for job in node.jobs.values():
            job.is_alive = False
        self.step(NodeLost(identity=node.joined.identity, reason="gone"))

    def arrive(self, request: GenerateRequest, *, output_tokens: int, **event: Any) -> Client:
        """A client asks; its output would end by itself after ``output_tokens``."""
        client = Client(
            request=request,
            output_tokens=min(output_tokens, request.sampling.max_tokens),
            arrived_s=self.now_s,
        )
        self.clients[request.request_id] = client
        self.step(RequestArrived(request=request, **event))
        return client

    def leave(self, client: Client) -> None:
        """The client has gone."""
        if client.ended_s is None:
            client.ended_s = self.now_s
            self.step(RequestCancelled(request_id=client.request.request_id))

    def run(self, until_s: float) -> None:
        """All that is due before ``until_s``."""
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._due)
            what()
        self.now_s = until_s

    # --- events and effects ------------------------------------------------------------------

    def step(self, event: Event) -> None:
        effects = self.core.step(event, now_s=self.now_s)
        self.core.check()
        for effect in effects:
            self._obey(effect)
        for name, node in self.nodes.items():
            used = sum(
                self.core.nodes[name].blocks_for(
                    len(job.submit.request.prompt_token_ids) + self.clients[request_id].emitted
                )
                for request_id, job in node.jobs.items()
                if job.runs
            )
            assert used < node.joined.block_count, f"{name} has run out of blocks"

    def _obey(self, effect: Effect) -> None:
        match effect:
            case Announce():
                client = self.clients[effect.request_id]
                assert client.path is None, "announced twice"
                client.path = effect.plan.path
            case Submit():
                node = self.nodes[effect.node]
                assert effect.request.request_id not in node.jobs, "submitted twice"
                job = node.jobs[effect.request.request_id] = Job(effect)
                self.clients[effect.request.request_id].placements.append(effect.node)
                if effect.kind != "decode":
                    self._compute(node, job)
            case GiveFirstToken():
                self._transfer(self.nodes[effect.node], effect)
            case Cancel():
                job = self.nodes[effect.node].jobs.pop(effect.request_id)
                job.is_alive = False
            case Complete():
                client = self._end(effect.request_id)
                assert client.emitted == client.output_tokens
            case Fail():
                self._end(effect.request_id).error = effect.error

    def _end(self, request_id: RequestId) -> Client:
        client = self.clients[request_id]
        assert client.ended_s is None, f"{request_id} ended twice"
        client.ended_s = self.now_s
        return client

    def _tick(self) -> None:
        self.at(self.now_s + TICK_S, self._tick)
        for name in list(self.nodes):
            self.step(
                NodeReported(
                    node=name,
                    free_block_count=0,
                    running_sequence_count=0,
                    waiting_sequence_count=0,
                )
            )
        self.step(Tick())

    # --- nodes -------------------------------------------------------------------------------

    def _compute(self, node: SimNode, job: Job) -> None:
        client = self.clients[job.submit.request.request_id]
        tokens = len(job.submit.request.prompt_token_ids) + client.emitted
        node.busy_until_s = max(node.busy_until_s, self.now_s) + tokens / node.prefill_tokens_per_s
        self.at(node.busy_until_s, lambda: self._computed(node, job, client))

    def _computed(self, node: SimNode, job: Job, client: Client) -> None:
        if not job.is_alive:
            return
        if job.submit.kind == "prefill":
            self._token(client)
            is_over = client.emitted >= client.output_tokens
            if is_over:
                del node.jobs[client.request.request_id]
            self.step(
                FirstTokenSampled(
                    request_id=client.request.request_id,
                    generation=job.submit.generation,
                    node=job.submit.node,
                    token_id=1,
                    finish=Finish(
                        reason=FinishReason.STOP if is_over else FinishReason.HANDOVER,
                        facts=EngineFacts(
                            computed_prompt_tokens=len(client.request.prompt_token_ids)
                        ),
                    ),
                )
            )
            return
        job.runs = True
        self._go_on(node, job, client)

    def _transfer(self, node: SimNode, effect: GiveFirstToken) -> None:
        job = node.jobs[effect.request_id]
        core_node = self.core.nodes[effect.node]
        blocks = core_node.blocks_for(len(job.submit.request.prompt_token_ids))
        size_bytes = blocks * core_node.block_bytes
        transfer_s = size_bytes / node.link_bytes_per_s

        def arrived() -> None:
            if job.is_alive:
                job.runs = True
                self.step(
                    DecodeReady(
                        request_id=effect.request_id,
                        generation=effect.generation,
                        transferred_bytes=size_bytes,
                        transfer_s=transfer_s,
                    )
                )
                if job.is_alive:
                    client = self.clients[effect.request_id]
                    self.at(
                        self.now_s + 1 / node.decode_tokens_per_s,
                        lambda: self._go_on(node, job, client),
                    )

        self.at(self.now_s + transfer_s + 0.001, arrived)

    def _go_on(self, node: SimNode, job: Job, client: Client) -> None:
        """One more token of a running sequence."""
        if not job.is_alive:
            return
        request_id, generation = client.request.request_id, job.submit.generation
        request = self.core.requests[request_id]
        self._token(client)
        if client.emitted == 1 or request.ready_s is None or request.phase == "prefilling":
            self.step(SequenceStarted(request_id=request_id, generation=generation))
        if client.emitted >= client.output_tokens:
            del node.jobs[request_id]
            self.step(
                SequenceFinished(
                    request_id=request_id,
                    generation=generation,
                    node=job.submit.node,
                    finish=Finish(reason=FinishReason.STOP),
                    output_token_count=client.emitted,
                )
            )
            return
        if client.emitted >= request.grows_at_tokens:
            self.step(
                SequenceGrew(
                    request_id=request_id,
                    generation=generation,
                    output_token_count=client.emitted,
                )
            )
        if job.is_alive:
            due_s = self.now_s + 1 / node.decode_tokens_per_s
            self.at(due_s, lambda: self._go_on(node, job, client))

    def _token(self, client: Client) -> None:
        client.emitted += 1
        if client.first_token_s is None:
            client.first_token_s = self.now_s
