"""All that the scheduler core knows: nodes, requests and who waits. The other modules act on it.

It keeps no clock and draws no random numbers.
"""

from bisect import insort
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from pdd.core.identity import NodeName, NodeState, RequestId
from pdd.scheduler.cordons import Cordon
from pdd.scheduler.decisions import DecisionLog
from pdd.scheduler.effects import Cancel, Effect
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.policy.place import Policy
from pdd.scheduler.pools import Nodes
from pdd.scheduler.quotas import Quotas
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles.book import RoleBook
from pdd.scheduler.settings import SchedulerSettings


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened since the start.

    ``false_rejects``: of the requests refused because their deadline was predicted to pass, those
    that would have been placed in time, going by when one that came later was placed.
    """

    placed: int = 0
    given_back: int = 0
    adopted: int = 0
    rejected_full: int = 0
    rejected_quota: int = 0
    rejected_token_quota: int = 0
    rejected_deadline: int = 0
    false_rejects: int = 0


@dataclass(slots=True, kw_only=True)
class State:
    """``queue``: who waits for room, sorted by ``turn``. ``completions_s``: the latest ones.

    ``kept_for``: the first in turn, the node whose room is kept for it, and whether it is long.
    ``leads``: it gives places; without, only what it holds is here, and waits for the leader's.
    ``rejections``: arrival index and latest useful placement of requests refused by prediction; the
    oldest go first, unjudged. ``cordons``: of nodes by name, which may be lost at the moment.
    ``now_s``: of the latest event. ``quotas``: what a tenant may have. ``tenants``: how many
    requests each has, and ``keyed``: those of each client's key; by ``add`` and ``end``.
    """

    settings: SchedulerSettings
    estimates: Estimates
    policy: Policy
    decisions: DecisionLog
    roles: RoleBook
    counts: Counts = field(default_factory=Counts)
    leads: bool = True
    now_s: float = 0.0
    kept_for: tuple[RequestId, NodeName, bool] | None = None
    quotas: Quotas = field(default_factory=Quotas)
    rejections: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=1024))
    cordons: dict[NodeName, Cordon] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=Nodes)
    requests: OrderedDict[RequestId, Request] = field(default_factory=OrderedDict)
    tenants: Counter[str] = field(default_factory=Counter)
    keyed: dict[bytes, dict[RequestId, Request]] = field(default_factory=dict)
    queue: list[RequestId] = field(default_factory=list)
    arrival_count: int = 0
    completions_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, request: Request) -> None:
        """Know a request, until its ``end``."""
        self.requests[request.id] = request
        self.tenants[request.request.tenant] += 1
        if key := request.request.resume_key:
            self.keyed.setdefault(key, {})[request.id] = request

    def enqueue(self, request: Request) -> None:
        """At its turn among those who wait."""
        insort(self.queue, request.request.request_id, key=self.turn)

    def turn(self, request_id: RequestId) -> tuple[bool, int]:
        """Place in the queue: interrupted requests, then earlier arrival. ``waiting`` says who of
        them goes next."""
        request = self.requests[request_id]
        return request.generation == 0, request.arrival_index

    def current(self, request_id: RequestId, generation: int) -> Request | None:
        """The request, unless it is over or the news is from an older attempt."""
        request = self.requests.get(request_id)
        return request if request is not None and request.generation == generation else None

    def holds(self, name: NodeName, request: Request) -> bool:
        """Whether a node that can be spoken to may run a job of the request."""
        node = self.nodes.get(name)
        return (
            node is not None
            and node.state is not NodeState.LOST
            and request.request.request_id in node.leases
        )

    def cancels(self, request: Request) -> list[Cancel]:
        """What makes its nodes forget the request."""
        return [
            Cancel(node=name, request_id=request.request.request_id)
            for name in (request.prefill, request.decode)
            if name is not None and self.holds(name, request)
        ]

    def release(self, request: Request) -> None:
        """End its leases."""
        for name in (request.prefill, request.decode):
            if name is not None and name in self.nodes:
                self.nodes[name].release(request.request.request_id)

    def count_tokens(self, request: Request, tokens: int) -> None:
        """Its tenant has used at least so many for it, if they are counted since it was let in."""
        bucket = self.quotas.bucket(request.request.tenant)
        counted = request.counted_tokens
        if bucket is not None and counted is not None and tokens > counted:
            bucket.take(tokens - counted, self.now_s)
            request.counted_tokens = tokens

    def settle(self, request: Request, output_tokens: int | None) -> None:
        """It is over, with so many output tokens of all its choices; None: nobody knows, and what
        was expected counts. What its tenant was taken too much for it is given back, or too little
        taken. Once."""
        counted, request.counted_tokens = request.counted_tokens, None
        bucket = self.quotas.bucket(request.request.tenant)
        if counted is None or bucket is None:
            return
        prompt_tokens = len(request.request.prompt_token_ids)
        if request.placed_s is None:
            used = 0
        elif output_tokens is not None:
            used = prompt_tokens + output_tokens
        elif request.first_token_s is None:
            used = prompt_tokens
        else:
            used = max(counted, prompt_tokens + request.said_tokens)
        bucket.take(used - counted, self.now_s)

    def end(self, request: Request) -> list[Effect]:
        """Forget a request. Returns nothing to do, for use inside effect lists."""
        if request.phase is Phase.QUEUED:
            self.queue.remove(request.request.request_id)
        if self.kept_for is not None and self.kept_for[0] == request.id:
            self.kept_for = None
        self.release(request)
        self.settle(request, None)
        request.enter(Phase.FINISHED)
        del self.requests[request.request.request_id]
        tenant = request.request.tenant
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]
        if key := request.request.resume_key:
            del self.keyed[key][request.id]
            if not self.keyed[key]:
                del self.keyed[key]
        return []
