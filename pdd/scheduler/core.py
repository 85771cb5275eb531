"""The scheduler's decisions: one event in, effects out.

The driver feeds it and obeys; a simulator can do the same with the same object. It keeps no clock
and draws no random numbers. Invariants, checked by ``check``:

* a request is queued, or holds leases on the nodes of its present attempt, or is gone;
* every accepted request gets exactly one ``Complete`` or ``Fail``;
* no effect names a node that is not a member.
"""

from bisect import insort
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import assert_never

from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    InvalidRequest,
    NodeUnavailable,
    PddError,
    RequestFailed,
)
from pdd.core.frames import Finish, FinishReason
from pdd.core.identity import NodeName, NodeState, RequestId, Role
from pdd.core.requests import GenerateRequest, Path, Plan
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Disconnect,
    Effect,
    Fail,
    ForgetNode,
    GiveFirstToken,
    StageTimes,
    Submit,
)
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    NodeJoined,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import NoRoom, Placement, looks_back, place
from pdd.scheduler.requests import Phase, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Bounds of the core.

    ``queue_request_count_max``: requests that wait for room; one more is answered 429, whatever
    its priority. Requests that are planned anew keep their place beyond it.
    ``attempt_count_max``: attempts of one request that nodes may fail before it is given up. An
    attempt that ended because its node was lost does not count (a rolling restart may take every
    node away once); the request's deadline bounds those.
    ``retry_pause_s``: how long a request keeps away from a node whose engine failed it: long enough
    for a dying engine to be noticed, so that it cannot use up all attempts first.
    ``node_silence_s``: a node that reports nothing for so long is treated as lost.
    ``lost_node_memory_s``: how long a lost node is listed, counted from its last report.
    ``lost_node_count_max``: lost nodes that are listed; beyond it those lost longest go early.
    """

    queue_request_count_max: int = 256
    attempt_count_max: int = 4
    retry_pause_s: float = 1.0
    node_silence_s: float = 10.0
    lost_node_memory_s: float = 600.0
    lost_node_count_max: int = 256


class SchedulerCore:
    """Owns nodes, leases and the phase of every request."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self._settings = settings or SchedulerSettings()
        self.nodes: dict[NodeName, Node] = {}
        self.requests: OrderedDict[RequestId, Request] = OrderedDict()
        self._queue: list[RequestId] = []  # sorted by _turn
        self._arrival_count = 0
        self._completions_s: deque[float] = deque(maxlen=64)

    def step(self, event: Event, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s``: monotonic seconds from the driver's clock."""
        match event:
            case NodeJoined():
                effects = self._on_node_joined(event, now_s)
            case NodeReported():
                effects = self._on_node_reported(event, now_s)
            case NodeLost():
                effects = self._on_node_lost(event)
            case RequestArrived():
                effects = self._on_arrived(event, now_s)
            case RequestCancelled():
                effects = self._on_cancelled(event)
            case FirstTokenSampled():
                effects = self._on_first_token(event, now_s)
            case DecodeReady():
                effects = self._on_decode_ready(event, now_s)
            case SequenceStarted():
                effects = self._on_started(event, now_s)
            case SequenceFinished():
                effects = self._on_finished(event, now_s)
            case JobFailed():
                effects = self._on_job_failed(event, now_s)
            case Tick():
                effects = self._on_tick(now_s)
            case _:
                assert_never(event)
        return effects + self._place_waiting(now_s)

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for room."""
        return len(self._queue)

    # --- nodes -------------------------------------------------------------------------------

    def _on_node_joined(self, event: NodeJoined, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        former = self.nodes.get(event.identity.name)
        if former is not None and former.state is not NodeState.LOST:
            if former.identity != event.identity:
                reason = "a newer life has joined"
                effects.append(Disconnect(identity=former.identity, reason=reason))
            effects += self._lose(former, "a newer life of it has joined")
        self.nodes[event.identity.name] = Node(
            identity=event.identity,
            role=event.role,
            address=event.address,
            block_count=event.block_count,
            block_size=event.block_size,
            max_model_len=event.max_model_len,
            max_num_seqs=event.max_num_seqs,
            seen_s=now_s,
            free_block_count=event.block_count - 1,
        )
        return effects

    def _on_node_reported(self, event: NodeReported, now_s: float) -> list[Effect]:
        node = self.nodes.get(event.node)
        if node is None or node.state is NodeState.LOST:
            return []
        node.seen_s = now_s
        node.free_block_count = event.free_block_count
        node.running_sequence_count = event.running_sequence_count
        node.waiting_sequence_count = event.waiting_sequence_count
        if node.state in (NodeState.READY, NodeState.DEGRADED):
            node.state = NodeState.DEGRADED if event.degraded_reason else NodeState.READY
            node.state_reason = event.degraded_reason
        return []

    def _on_node_lost(self, event: NodeLost) -> list[Effect]:
        node = self.nodes.get(event.identity.name)
        if node is None or node.identity != event.identity or node.state is NodeState.LOST:
            return []
        return self._lose(node, event.reason)

    def _lose(self, node: Node, reason: str) -> list[Effect]:
        node.state = NodeState.LOST
        node.state_reason = reason
        effects: list[Effect] = []
        for request_id in list(node.leases):
            request = self.requests[request_id]
            if request.phase is Phase.DECODING and node.name != request.runs_on():
                node.release(request_id)
                continue
            effects += self._try_again(request, f"node {node.name} was lost: {reason}")
        return effects

    def _forget_lost(self, now_s: float) -> list[Effect]:
        """So that names which never come back do not pile up here, in listings and in metrics."""
        lost = [node for node in self.nodes.values() if node.state is NodeState.LOST]
        lost.sort(key=lambda node: node.seen_s)
        excess_count = max(len(lost) - self._settings.lost_node_count_max, 0)
        effects: list[Effect] = []
        for index, node in enumerate(lost):
            if index < excess_count or now_s - node.seen_s >= self._settings.lost_node_memory_s:
                assert not node.leases, f"{node.name} is lost and holds leases"
                del self.nodes[node.name]
                effects.append(ForgetNode(node=node.name))
        return effects

    # --- requests ----------------------------------------------------------------------------

    def _on_arrived(self, event: RequestArrived, now_s: float) -> list[Effect]:
        self._arrival_count += 1
        request = Request(request=event.request, arrived_s=now_s, arrival_index=self._arrival_count)
        request_id = event.request.request_id
        assert request_id not in self.requests, f"request id {request_id} is in use"
        if len(self._queue) >= self._settings.queue_request_count_max:
            return [
                Fail(
                    request_id=request_id,
                    error=AdmissionRejected(
                        f"{len(self._queue)} requests are waiting, the limit is "
                        f"{self._settings.queue_request_count_max}: try again later",
                        retry_after_s=self._retry_after_s(now_s),
                    ),
                )
            ]
        verdict = place(event.request, self.nodes.values(), emitted_token_count=0)
        if isinstance(verdict, NoRoom) and not verdict.ever:
            return [Fail(request_id=request_id, error=self._refusal(event.request, verdict))]
        self.requests[request_id] = request
        self._enqueue(request)
        return []

    def _place_waiting(self, now_s: float) -> list[Effect]:
        """In the order of ``_turn``: nobody overtakes a request that waits for room.

        So one class is served first come, first served, and a request starves only while more
        urgent ones keep coming; waiting does not make it more urgent, its deadline ends its wait.
        One that no present node can hold, or that keeps away from a node which failed it, is
        passed by.
        """
        effects: list[Effect] = []
        for request_id in list(self._queue):
            request = self.requests[request_id]
            verdict = place(
                request.request,
                self.nodes.values(),
                emitted_token_count=0 if request.first_token_s is None else 1,
                avoid=[node for node, until_s in request.rests_until_s.items() if until_s > now_s],
            )
            if not isinstance(verdict, NoRoom):
                self._queue.remove(request_id)
                effects += self._start(request, verdict, now_s)
            elif not verdict.others_may_pass:
                break
        return effects

    def _start(self, request: Request, placement: Placement, now_s: float) -> list[Effect]:
        prompt_tokens = len(request.request.prompt_token_ids)
        request.enter(Phase.PREFILLING)
        if request.first_token_s is None:  # else the client waits for decoding, not in a queue
            request.placed_s = now_s
        request.prefill = placement.prefill.name if placement.prefill else None
        request.decode = placement.decode.name if placement.decode else None
        request.plan = Plan(
            path=placement.path,
            prefill_node=request.prefill,
            decode_node=request.decode,
            reason=placement.reason,
        )
        effects: list[Effect] = []
        if not request.announced:
            request.announced = True
            effects.append(Announce(request_id=request.request.request_id, plan=request.plan))
        if placement.decode is not None:
            tokens = prompt_tokens + request.request.sampling.max_tokens
            placement.decode.lease(
                request.request.request_id,
                blocks=placement.decode.blocks_for(tokens),
                queued_tokens=prompt_tokens if placement.path is Path.LOCAL else 0,
            )
            kind = "local" if placement.path is Path.LOCAL else "decode"
            effects.append(self._submit(request, placement.decode, kind, now_s))
        if placement.prefill is not None:
            placement.prefill.lease(
                request.request.request_id,
                blocks=placement.prefill.blocks_for(prompt_tokens + 1),
                queued_tokens=prompt_tokens,
            )
            kind = "prefill" if placement.decode is not None else "local"
            effects.append(self._submit(request, placement.prefill, kind, now_s))
        return effects

    def _submit(self, request: Request, node: Node, kind: str, now_s: float) -> Submit:
        return Submit(
            node=node.name,
            request=request.request,
            generation=request.generation,
            kind=kind,
            source=request.prefill if kind == "decode" else None,
            deadline_s=max(request.deadline_s - now_s, 0.1),
        )

    def _on_first_token(self, event: FirstTokenSampled, now_s: float) -> list[Effect]:
        request = self._current(event.request_id, event.generation)
        if request is None or request.phase is not Phase.PREFILLING:
            return []
        if event.node != request.prefill:
            return []
        request.first_token_s = now_s
        request.first_token_generation = event.generation
        request.prefill_facts = event.finish.facts
        if event.finish.reason is not FinishReason.HANDOVER:
            return self._complete(request, event.finish, event.node, now_s)
        assert request.decode is not None
        request.enter(Phase.TRANSFERRING)
        self.nodes[event.node].queued_tokens.pop(event.request_id, None)
        return [
            GiveFirstToken(
                node=request.decode,
                request_id=event.request_id,
                generation=event.generation,
                token_id=event.token_id,
            )
        ]

    def _on_decode_ready(self, event: DecodeReady, now_s: float) -> list[Effect]:
        request = self._current(event.request_id, event.generation)
        if request is None or request.phase is not Phase.TRANSFERRING:
            return []
        request.enter(Phase.DECODING)
        request.ready_s = now_s
        assert request.prefill is not None
        prefill = self.nodes[request.prefill]
        prefill.release(event.request_id)
        # Nobody needs its blocks any more, whether they arrived or are computed anew.
        return [Cancel(node=prefill.name, request_id=event.request_id)]

    def _on_started(self, event: SequenceStarted, now_s: float) -> list[Effect]:
        request = self._current(event.request_id, event.generation)
        if request is None or request.phase is not Phase.PREFILLING:
            return []
        request.enter(Phase.DECODING)
        if request.first_token_s is None:
            request.first_token_s = now_s
            request.first_token_generation = event.generation
        request.ready_s = now_s
        if request.decode is not None:
            self.nodes[request.decode].queued_tokens.pop(event.request_id, None)
        return []

    def _on_finished(self, event: SequenceFinished, now_s: float) -> list[Effect]:
        request = self._current(event.request_id, event.generation)
        if request is None or request.phase is Phase.QUEUED or event.node != request.runs_on():
            return []
        return self._complete(request, event.finish, event.node, now_s)

    def _complete(
        self, request: Request, finish: Finish, node: NodeName, now_s: float
    ) -> list[Effect]:
        assert request.plan is not None
        on_decode_node = node == request.decode
        prompt_facts = (
            finish.facts
            if node != request.decode or request.path() is Path.LOCAL
            else request.prefill_facts
        )
        self._completions_s.append(now_s)
        recomputed = (
            on_decode_node
            and request.path() is Path.DISAGGREGATED
            and finish.facts.computed_prompt_tokens > 1
        )
        plan = request.plan
        if recomputed:
            plan = replace(
                plan,
                path=Path.LOCAL,
                reason="blocks were lost: the decode node computed the prompt",
            )
        complete = Complete(
            request_id=request.request.request_id,
            plan=plan,
            prompt_token_count=len(request.request.prompt_token_ids),
            finish=finish,
            times=_stage_times(request, finish, now_s),
            # A resumed job's prompt holds the emitted tokens too.
            cached_tokens=min(prompt_facts.cached_tokens, len(request.request.prompt_token_ids)),
            transferred_bytes=finish.facts.transferred_bytes if on_decode_node else 0,
            decode_computed_prompt_tokens=(
                finish.facts.computed_prompt_tokens if on_decode_node else 0
            ),
            prompt_recomputed=recomputed,
        )
        # The node that finished has forgotten the request; the other one may still hold blocks.
        effects: list[Effect] = [cancel for cancel in self._cancels(request) if cancel.node != node]
        return [*effects, *self._end(request), complete]

    def _on_cancelled(self, event: RequestCancelled) -> list[Effect]:
        request = self.requests.get(event.request_id)
        if request is None:
            return []
        return [*self._cancels(request), *self._end(request)]

    def _on_job_failed(self, event: JobFailed, now_s: float) -> list[Effect]:
        request = self._current(event.request_id, event.generation)
        if request is None or request.phase is Phase.QUEUED:
            return []
        if event.node not in (request.prefill, request.decode):
            return []
        if request.phase is Phase.DECODING and event.node != request.runs_on():
            return []  # the prefill node's part was over already
        match event.kind:
            case FailureKind.INVALID:
                error: PddError = InvalidRequest(event.message, code="invalid_value")
            case FailureKind.DEADLINE:
                error = _too_late(request)
            case FailureKind.ENGINE:
                identity = self.nodes[event.node].identity
                request.rests_until_s[identity] = now_s + self._settings.retry_pause_s
                request.failed_attempt_count += 1
                return self._try_again(request, f"node {event.node}: {event.message}")
            case _:
                assert_never(event.kind)
        return [*self._cancels(request), *self._end(request), self._fail(request, error)]

    def _try_again(self, request: Request, why: str) -> list[Effect]:
        """Give up the present attempt; queue the next one ahead of everybody new."""
        effects: list[Effect] = [*self._cancels(request)]
        parameter = looks_back(request.request.sampling)
        if request.failed_attempt_count >= self._settings.attempt_count_max:
            why = f"{why}; gave up after {request.failed_attempt_count} failed attempts"
        elif request.first_token_s is not None and parameter is not None:
            why = f"{why}; output with {parameter} cannot be continued on another engine"
        else:
            self._release(request)
            request.enter(Phase.QUEUED)
            request.generation += 1
            self._enqueue(request)
            return effects
        return [*effects, *self._end(request), self._fail(request, RequestFailed(why))]

    def _on_tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for node in list(self.nodes.values()):
            silent_s = now_s - node.seen_s
            if node.state is not NodeState.LOST and silent_s > self._settings.node_silence_s:
                reason = f"silent for {silent_s:.1f} s"
                effects.append(Disconnect(identity=node.identity, reason=reason))
                effects += self._lose(node, reason)
        effects += self._forget_lost(now_s)
        for request in list(self.requests.values()):
            if now_s >= request.deadline_s:
                effects += [
                    *self._cancels(request),
                    *self._end(request),
                    self._fail(request, _too_late(request)),
                ]
        return effects

    # --- helpers -----------------------------------------------------------------------------

    def _refusal(self, request: GenerateRequest, verdict: NoRoom) -> PddError:
        """The client's fault only if no decode node that is known could ever hold the request."""
        tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
        decodes = [node for node in self.nodes.values() if node.role is Role.DECODE]
        absent = sorted(
            node.name
            for node in decodes
            if not node.takes_work and tokens <= node.token_count_max()
        )
        if absent:
            return NodeUnavailable(
                f"{verdict.reason}; {absent[0]} could hold it and is not ready: try again later"
            )
        if any(node.takes_work for node in decodes):
            return InvalidRequest(
                verdict.reason, field="max_tokens", code="context_length_exceeded"
            )
        return NodeUnavailable(f"{verdict.reason}: start one, or try again later")

    def _enqueue(self, request: Request) -> None:
        insort(self._queue, request.request.request_id, key=self._turn)

    def _turn(self, request_id: RequestId) -> tuple[bool, int, int]:
        """Place in the queue: interrupted requests, then lower priority, then earlier arrival."""
        request = self.requests[request_id]
        return request.generation == 0, request.request.priority, request.arrival_index

    def _current(self, request_id: RequestId, generation: int) -> Request | None:
        """The request, unless it is over or the news is from an older attempt."""
        request = self.requests.get(request_id)
        return request if request is not None and request.generation == generation else None

    def _holds(self, name: NodeName, request: Request) -> bool:
        node = self.nodes.get(name)
        return (
            node is not None
            and node.state is not NodeState.LOST
            and request.request.request_id in node.leases
        )

    def _cancels(self, request: Request) -> list[Cancel]:
        return [
            Cancel(node=name, request_id=request.request.request_id)
            for name in (request.prefill, request.decode)
            if name is not None and self._holds(name, request)
        ]

    def _release(self, request: Request) -> None:
        for name in (request.prefill, request.decode):
            if name is not None and name in self.nodes:
                self.nodes[name].release(request.request.request_id)

    def _end(self, request: Request) -> list[Effect]:
        """Forget a request. Returns nothing to do, for use inside effect lists."""
        if request.phase is Phase.QUEUED:
            self._queue.remove(request.request.request_id)
        self._release(request)
        request.enter(Phase.FINISHED)
        del self.requests[request.request.request_id]
        return []

    def _fail(self, request: Request, error: PddError) -> Effect:
        return Fail(request_id=request.request.request_id, error=error)

    def _retry_after_s(self, now_s: float) -> float:
        """How long the present queue takes at the rate of the latest completions."""
        recent = [t for t in self._completions_s if now_s - t <= 60.0]
        if len(recent) < 2 or now_s <= recent[0]:
            return 5.0
        return min(max(len(self._queue) * (now_s - recent[0]) / len(recent), 1.0), 60.0)

    def check(self) -> None:
        """Assert the invariants; for tests and for idle moments."""
        assert self._queue == sorted(self._queue, key=self._turn), "the queue is out of order"
        queued = set(self._queue)
        assert len(queued) == len(self._queue), "a request is queued twice"
        for request_id, request in self.requests.items():
            assert (request.phase is Phase.QUEUED) == (request_id in queued), request_id
            if request.phase is not Phase.QUEUED:
                runs_on = request.runs_on()
                assert runs_on is not None, f"{request_id} runs nowhere"
                assert request_id in self.nodes[runs_on].leases, f"{request_id} holds no lease"
        for node in self.nodes.values():
            for request_id in node.leases:
                holder = self.requests.get(request_id)
                assert holder is not None, f"{node.name} leases blocks to nobody: {request_id}"
                assert node.name in (holder.prefill, holder.decode), request_id
                assert holder.phase is not Phase.QUEUED, request_id
            assert node.unleased_block_count() >= 0, f"{node.name} promised too many blocks"


def _too_late(request: Request) -> DeadlineExceeded:
    limit_s = request.request.deadline_s
    return DeadlineExceeded(f"not finished within its deadline of {limit_s:g} s")


def _stage_times(request: Request, finish: Finish, now_s: float) -> StageTimes:
    """Cut the time from arrival to end at the moments the scheduler saw itself."""
    placed_s = request.placed_s if request.placed_s is not None else now_s
    first_s = request.first_token_s if request.first_token_s is not None else now_s
    handed_over = request.path() is Path.DISAGGREGATED and request.decode is not None
    facts = request.prefill_facts if handed_over or request.resumed else finish.facts
    queue_s = max(placed_s - request.arrived_s, 0.0)
    engine_queue_s = min(max(facts.queue_s, 0.0), max(first_s - placed_s, 0.0))
    ready_s = request.ready_s if handed_over and request.ready_s is not None else first_s
    ready_s = max(ready_s, first_s)
    return StageTimes(
        queue_s=queue_s + engine_queue_s,
        prefill_s=max(first_s - placed_s - engine_queue_s, 0.0),
        transfer_s=ready_s - first_s,
        decode_s=max(now_s - ready_s, 0.0),
    )
