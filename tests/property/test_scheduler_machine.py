"""Random histories of a cluster against the scheduler core, with a dumb book-keeper beside it.

The book-keeper knows only what a driver sees: events in, effects out. It checks that every
accepted request is announced once and ended once, that effects name live nodes, that attempts
that nodes fail are bounded, that nobody gives blocks back twice, and, at the end, that nothing is
stuck.
"""

from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pdd.core.errors import AdmissionRejected, DeadlineExceeded
from pdd.core.frames import FinishReason
from pdd.core.identity import Forking, NodeIdentity, NodeName, NodeState, RequestId, Role
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Disconnect,
    DismissPeer,
    Effect,
    Fail,
    ForgetNode,
    GiveFirstToken,
    IntroducePeers,
    NodeDrained,
    Submit,
)
from pdd.scheduler.events import (
    BlocksEvicted,
    CacheCleared,
    DecodeReady,
    Event,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    NodeCordoned,
    NodeLost,
    NodeReported,
    NodeRoleReleased,
    NodeRoleSet,
    NodeUncordoned,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles.book import RoleNews, SwitchStage
from pdd.scheduler.roles.settings import RoleMode, RoleSettings
from pdd.scheduler.settings import (
    EstimateSettings,
    PathMode,
    PathSettings,
    PullMode,
    SchedulerSettings,
)
from tests.builders import make_finish, make_identity, make_joined, make_request

NAMES = ("prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2")
ATTEMPT_COUNT_MAX = 4
QUEUE_MAX = 5
SILENCE_S = 10.0
BIG = 10**6
ROLES = RoleSettings(
    mode=RoleMode.AUTO,
    window_s=0.5,
    sustain_s=0.5,
    cooldown_s=2.0,
    switch_deadline_s=8.0,
    guard_window_s=2.0,
    guard_count_min=1,
)
"""In a hurry, so that nodes change their duty all the time."""


def chain_of(chain: int, block_count: int) -> bytes:
    """Keys of a prompt that begins like all of its chain."""
    return b"".join(bytes([chain]) * 8 + index.to_bytes(8, "big") for index in range(block_count))


class Directory:
    """Follows some nodes: of every other chain decode nodes hold half, prefill nodes nothing."""

    def is_known(self, node: NodeName) -> bool:
        return node in ("prefill-0", "decode-0", "decode-1")

    def matches(self, keys: bytes) -> dict[NodeName, int]:
        held = 0 if keys[0] % 2 else len(keys) // 32
        return dict.fromkeys(map(NodeName, ("decode-0", "decode-1")), held) if held else {}


@dataclass
class Known:
    """What a client knows of its request."""

    arrived_s: float
    deadline_s: float
    announced: bool = False
    ended: bool = False
    refused: bool = False
    generation: int = -1
    closed: set[int] = field(default_factory=set)

    def open_choices(self, count: int) -> set[int]:
        """Those whose end nobody has told."""
        return set(range(count)) - self.closed


class SchedulerMachine(RuleBasedStateMachine):
    """Outputs are longer than expected as a rule, so that leases grow and nodes run out."""

    mode = PathMode.DISAGGREGATED

    def __init__(self) -> None:
        super().__init__()
        self.core = SchedulerCore(
            SchedulerSettings(
                queue_request_count_max=QUEUE_MAX,
                attempt_count_max=ATTEMPT_COUNT_MAX,
                node_silence_s=SILENCE_S,
                lost_node_memory_s=15.0,
                lost_node_count_max=2,
                path=PathSettings(mode=self.mode, pull=PullMode.ALWAYS),
                estimates=EstimateSettings(output_tokens=8.0),
                decision_count_max=20,
                roles=ROLES,
            ),
            directory=Directory(),
        )
        self.now_s = 0.0
        self.alive: dict[NodeName, NodeIdentity] = {}
        self.epochs: dict[NodeName, int] = {}
        self.known: dict[RequestId, Known] = {}
        self.submits: list[Submit] = []
        self.given_back: dict[RequestId, int] = {}
        self.drained: list[NodeName] = []
        self.peers: dict[NodeName, set[NodeIdentity]] = {}

    # --- the world ---------------------------------------------------------------------------

    @initialize(names=st.sampled_from([NAMES[1:4], NAMES[1:4], NAMES[2:4], NAMES, ()]))
    def the_cluster_starts(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.a_node_joins_in_a_new_life(name, 40, 16)

    @rule(
        name=st.sampled_from(NAMES),
        block_count=st.sampled_from([4, 12, 40]),
        sequences=st.sampled_from([1, 3, 16]),
        forking=st.sampled_from([Forking.SHARED, Forking.SHARED, Forking.APART, Forking.NONE]),
    )
    def a_node_joins_in_a_new_life(
        self, name: str, block_count: int, sequences: int, forking: Forking = Forking.SHARED
    ) -> None:
        node = NodeName(name)
        self.epochs[node] = self.epochs.get(node, 0) + 1
        joined = make_joined(
            name,
            boot_epoch=self.epochs[node],
            block_count=block_count,
            max_num_seqs=sequences,
            forking=forking,
            pulls=forking is Forking.SHARED,
        )
        self.alive[node] = joined.identity
        self.step(joined)

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, BIG))
    def a_node_attaches_again_in_the_same_life(self, pick: int) -> None:
        identity = self.one_alive(pick)
        node = self.core.nodes[identity.name]
        self.step(
            make_joined(
                identity.name,
                boot_epoch=identity.boot_epoch,
                block_count=node.block_count,
                max_num_seqs=node.max_num_seqs,
                forking=node.forking,
                pulls=node.pulls,
            )
        )

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, BIG))
    def a_node_is_lost(self, pick: int) -> None:
        identity = self.one_alive(pick)
        del self.alive[identity.name]
        self.step(NodeLost(identity=identity, reason="connection lost"))

    @precondition(lambda self: self.epochs)
    @rule(pick=st.integers(0, BIG))
    def a_former_life_is_lost_late(self, pick: int) -> None:
        name = sorted(self.epochs)[pick % len(self.epochs)]
        before = self.epochs[name] - 1
        assert self.step(NodeLost(identity=make_identity(name, boot_epoch=before), reason="x")) in (
            [],
        )

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, BIG), is_drain=st.booleans())
    def an_operator_takes_a_node_out(self, pick: int, is_drain: bool) -> None:
        self.step(NodeCordoned(node=self.one_alive(pick).name, is_drain=is_drain))

    @rule(name=st.sampled_from(NAMES))
    def an_operator_gives_a_node_back(self, name: str) -> None:
        self.step(NodeUncordoned(node=NodeName(name)))

    @rule(name=st.sampled_from(NAMES), role=st.sampled_from([Role.PREFILL, Role.DECODE]))
    def an_operator_sets_a_role(self, name: str, role: Role) -> None:
        self.step(NodeRoleSet(node=NodeName(name), role=role))

    @rule(name=st.sampled_from(NAMES))
    def an_operator_leaves_a_role_to_the_controller(self, name: str) -> None:
        self.step(NodeRoleReleased(node=NodeName(name)))

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, BIG), chain=st.integers(0, 2))
    def a_node_evicts_blocks(self, pick: int, chain: int) -> None:
        identity = self.one_alive(pick)
        self.step(BlocksEvicted(identity=identity, keys=chain_of(chain, 8)))
        self.step(CacheCleared(identity=self.one_alive(pick // 2)))

    @rule(silent=st.sampled_from(["", "", "", *NAMES]), sixteenths=st.integers(1, 100))
    def time_passes(self, silent: str, sixteenths: int) -> None:
        self.now_s += sixteenths / 16
        for name in list(self.alive):
            if name != silent:
                self.report(name)
        self.step(Tick())

    # --- clients -----------------------------------------------------------------------------

    @rule(
        prompt=st.sampled_from([20, 1, 33, 100, 400]),
        max_tokens=st.sampled_from([150, 16, 1, 2, 150]),
        deadline_s=st.sampled_from([600.0, 600.0, 60.0, 4.0]),
        looks_back=st.sampled_from([False, False, True]),
        priority=st.sampled_from([0, 0, 1, -1]),
        tenant=st.sampled_from(["", "", "a", "b"]),
        chain=st.integers(0, 2),
        choices=st.sampled_from([1, 1, 1, 2, 3, 5]),
    )
    def a_request_arrives(
        self,
        prompt: int,
        max_tokens: int,
        deadline_s: float,
        looks_back: bool,
        priority: int,
        tenant: str,
        chain: int,
        choices: int,
    ) -> None:
        request = replace(
            make_request(
                f"r{len(self.known)}",
                prompt_token_count=prompt,
                max_tokens=max_tokens,
                deadline_s=deadline_s,
                presence_penalty=0.5 if looks_back else 0.0,
            ),
            priority=priority,
            tenant=tenant,
            choice_count=choices,
        )
        waiting = self.core.queued_request_count
        self.known[request.request_id] = Known(arrived_s=self.now_s, deadline_s=deadline_s)
        effects = self.step(
            RequestArrived(
                request=request,
                keys=chain_of(chain, prompt // 16),
                caller_key=f"caller-{chain}" if prompt % 2 else "",
            )
        )
        if waiting >= QUEUE_MAX:
            (refusal,) = [e for e in effects if isinstance(e, Fail)]
            assert isinstance(refusal.error, AdmissionRejected)
            assert 0 < refusal.error.retry_after_s <= 60

    @precondition(lambda self: self.known)
    @rule(pick=st.integers(0, BIG))
    def a_client_leaves(self, pick: int) -> None:
        request_id = list(self.known)[pick % len(self.known)]
        self.known[request_id].ended = True
        self.step(RequestCancelled(request_id=request_id))

    @precondition(lambda self: self.core.requests)
    @rule(
        pick=st.integers(0, BIG),
        steps=st.integers(1, 3),
        sixteenths=st.integers(0, 8),
        tokens=st.sampled_from([0, 1, 17, 149]),
    )
    def work_goes_on(self, pick: int, steps: int, sixteenths: int, tokens: int) -> None:
        request_id = list(self.core.requests)[pick % len(self.core.requests)]
        for _ in range(steps):
            self.now_s += sixteenths / 16
            self.say_tokens(request_id, tokens)
            self.say_what_comes_next(request_id)
            self.say_tokens(request_id, tokens)

    def say_tokens(self, request_id: RequestId, tokens: int) -> None:
        """As the driver does it: asked for at the token that it is due at, not before."""
        for count in range(1, tokens):
            request = self.core.requests.get(request_id)
            if request is None or request.phase is not Phase.DECODING:
                return
            if count >= request.request.sampling.max_tokens:
                return
            if count >= request.grows_at_tokens:
                generation = request.generation
                self.step(
                    SequenceGrew(
                        request_id=request_id, generation=generation, output_token_count=count
                    )
                )
                if request.generation != generation:
                    return
                assert count < request.grows_at_tokens, "it goes on without blocks"

    # --- what nodes say, of any generation ever submitted ------------------------------------

    @precondition(lambda self: self.submits)
    @rule(
        pick=st.integers(0, BIG),
        reason=st.sampled_from(["handover", "handover", "stop"]),
        choice=st.integers(0, 4),
    )
    def a_first_token_comes(self, pick: int, reason: str, choice: int) -> None:
        submit = self.one_submit(pick)
        if submit.kind == "prefill":
            self.say_first_token(submit, FinishReason(reason), choice)

    @precondition(lambda self: self.submits)
    @rule(pick=st.integers(0, BIG))
    def a_decode_node_is_ready(self, pick: int) -> None:
        submit = self.one_submit(pick)
        if submit.kind == "decode":
            self.say_ready(submit)

    @precondition(lambda self: self.submits)
    @rule(pick=st.integers(0, BIG))
    def tokens_come(self, pick: int) -> None:
        submit = self.one_submit(pick)
        if submit.kind == "local":
            self.say_started(submit)

    @precondition(lambda self: self.submits)
    @rule(pick=st.integers(0, BIG), choice=st.integers(0, 4))
    def an_output_ends(self, pick: int, choice: int) -> None:
        submit = self.one_submit(pick)
        if submit.kind != "prefill":
            self.say_finished(submit, choice)

    @precondition(lambda self: self.submits)
    @rule(
        pick=st.integers(0, BIG),
        kind=st.sampled_from([FailureKind.ENGINE, FailureKind.ENGINE, *FailureKind]),
    )
    def a_job_fails(self, pick: int, kind: FailureKind) -> None:
        submit = self.one_submit(pick)
        self.step(
            JobFailed(
                request_id=submit.request.request_id,
                generation=submit.generation,
                node=submit.node,
                message="broke",
                kind=kind,
            )
        )

    # --- the end -----------------------------------------------------------------------------

    def teardown(self) -> None:
        if len(self.known) % 2:
            self.nodes_behave_until_all_is_done()
        else:
            self.nothing_happens_any_more()
        assert not self.core.requests
        assert not any(node.leases for node in self.core.nodes.values())
        for request_id, known in self.known.items():
            assert known.ended, f"{request_id} is stuck"

    def nodes_behave_until_all_is_done(self) -> None:
        for name in NAMES:
            self.an_operator_gives_a_node_back(name)
            self.a_node_joins_in_a_new_life(name, 40, 16)
        for _ in range(2 * len(self.known) + 2):
            for request_id in list(self.core.requests):
                for _ in range(3):
                    self.say_what_comes_next(request_id)
            self.now_s += 2.0
            for name in list(self.alive):
                self.report(name)

    def nothing_happens_any_more(self) -> None:
        self.now_s += 601.0
        self.step(Tick())

    # --- book-keeping ------------------------------------------------------------------------

    def step(self, event: Event) -> list[Effect]:
        effects = self.core.step(event, now_s=self.now_s)
        self.core.check()
        for effect in effects:
            self.note(effect)
        for request_id, request in self.core.requests.items():
            known = self.known[request_id]
            now_closed = set(range(request.request.choice_count)) - set(request.open_choices)
            assert known.closed <= now_closed, "an output that is complete is open again"
            known.closed = now_closed
            assert not known.ended, f"{request_id} lives on after its end"
            self.note_give_back(request)
            assert request.failed_attempt_count < ATTEMPT_COUNT_MAX
            assert request.failed_attempt_count <= request.generation
        for request_id, known in self.known.items():
            assert known.ended or request_id in self.core.requests, f"{request_id} was forgotten"
        for node in self.core.nodes.values():
            for request_id in node.leases:
                generation = self.core.requests[request_id].generation
                assert any(
                    submit.node == node.name
                    and submit.request.request_id == request_id
                    and submit.generation == generation
                    for submit in self.submits
                ), f"{node.name} promised blocks to {request_id} without a job"
        for name in self.alive:
            assert self.peers.get(name, set()) == self.expected_peers(name), name
        return effects

    def expected_peers(self, name: NodeName) -> set[NodeIdentity]:
        """Those that have a duty which this node has not, or that are about to."""
        nodes = self.core.nodes
        own = set(nodes[name].duties)
        return {
            identity
            for other, identity in self.alive.items()
            if other != name and (len(own) == 2 or set(nodes[other].duties) - own)
        }

    def note_give_back(self, request: Request) -> None:
        """At most once per request: ``interruption`` changes with each."""
        if "gave its blocks back" in request.interruption:
            first = self.given_back.setdefault(request.id, request.generation)
            assert request.generation == first, f"{request.id} gave its blocks back twice"

    def check_pull(self, submit: Submit) -> None:
        """Both of its nodes can, and something is left to compute."""
        assert submit.pull is not None
        assert submit.source is not None
        assert submit.kind in ("prefill", "decode")
        for name in (submit.node, submit.source):
            assert self.core.nodes[name].pulls, f"{name} does not know what that is"
        node = self.core.nodes[submit.node]
        assert submit.pull.token_count % node.block_size == 0
        assert 0 < submit.pull.token_count < len(submit.request.prompt_token_ids)

    def note(self, effect: Effect) -> None:
        match effect:
            case Submit():
                known = self.live(effect.request.request_id)
                assert effect.node in self.alive, f"submit to {effect.node}, which is lost"
                assert self.core.nodes[effect.node].takes_work, f"submit to {effect.node}, cordoned"
                assert effect.source is None or effect.source in self.alive
                if effect.pull is not None:
                    self.check_pull(effect)
                assert known.announced, "work before the client was told"
                assert effect.generation >= known.generation
                assert 0 < effect.deadline_s <= max(known.deadline_s, 0.1)
                assert effect.choices, "a job without a choice that is open"
                count = effect.request.choice_count
                assert count == 1 or self.core.nodes[effect.node].forking is not Forking.NONE
                assert set(effect.choices) <= known.open_choices(count), "a choice runs twice"
                known.generation = effect.generation
                self.submits.append(effect)
            case GiveFirstToken():
                assert effect.node in self.alive
                known = self.live(effect.request_id)
                assert effect.generation == known.generation
                assert effect.token_ids, "nothing goes on"
            case Cancel():
                assert effect.node in self.alive, f"cancel to {effect.node}, which is lost"
            case Announce():
                known = self.live(effect.request_id)
                assert not known.announced, "announced twice"
                known.announced = True
            case Complete():
                known = self.live(effect.request_id)
                assert known.announced
                known.ended = True
                times = effect.times
                parts = (times.queue_s, times.prefill_s, times.transfer_s, times.decode_s)
                assert min(parts) >= 0.0, parts
                assert sum(parts) == self.now_s - known.arrived_s, parts  # sixteenths: exact
            case Fail():
                known = self.live(effect.request_id)
                known.ended = True
                if isinstance(effect.error, DeadlineExceeded):
                    assert known.announced or self.now_s - known.arrived_s >= known.deadline_s
            case NodeDrained():
                assert not self.core.nodes[effect.identity.name].leases
                assert self.core.nodes[effect.identity.name].state in (
                    NodeState.CORDONED,
                    NodeState.LOST,
                )
            case IntroducePeers():
                known_peers = self.peers.setdefault(effect.node, set())
                if effect.complete:
                    known_peers.clear()
                known_peers |= set(effect.peers)
            case DismissPeer():
                self.peers[effect.node].discard(effect.peer)
            case RoleNews() if effect.stage is SwitchStage.DONE:
                assert effect.held_count == 0, "it still has old work"
            case ForgetNode():
                assert effect.node not in self.alive, f"{effect.node} was forgotten and lives"
            case Disconnect():
                if self.alive.get(effect.identity.name) == effect.identity:
                    del self.alive[effect.identity.name]

    def live(self, request_id: RequestId) -> Known:
        known = self.known[request_id]
        assert not known.ended, f"news for {request_id} after its end"
        return known

    def one_alive(self, pick: int) -> NodeIdentity:
        return self.alive[sorted(self.alive)[pick % len(self.alive)]]

    def one_submit(self, pick: int) -> Submit:
        """Mostly a recent one, so that histories get somewhere; sometimes an old one."""
        recent = self.submits if pick % 5 == 0 else self.submits[-4:]
        return recent[pick // 5 % len(recent)]

    def report(self, name: NodeName) -> None:
        self.step(
            NodeReported(
                node=name,
                free_block_count=1,
                running_sequence_count=0,
                waiting_sequence_count=0,
                degraded_reason="warm" if self.core.nodes[name].role is Role.PREFILL else "",
            )
        )

    def say_what_comes_next(self, request_id: RequestId) -> None:
        """What well-behaved nodes would say of a request now."""
        request = self.core.requests.get(request_id)
        if request is None or request.phase is Phase.QUEUED:
            return
        jobs = {
            submit.kind: submit
            for submit in self.submits
            if submit.request.request_id == request_id and submit.generation == request.generation
        }
        match request.phase:
            case Phase.PREFILLING if "prefill" in jobs:
                for choice in request.open_choices:
                    self.say_first_token(jobs["prefill"], FinishReason.HANDOVER, choice)
            case Phase.PREFILLING:
                self.say_started(jobs["local"])
            case Phase.TRANSFERRING:
                self.say_ready(jobs["decode"])
            case _:
                for choice in request.open_choices:
                    self.say_finished(jobs.get("decode") or jobs["local"], choice)

    def say_first_token(self, submit: Submit, reason: FinishReason, choice: int) -> None:
        self.step(
            FirstTokenSampled(
                request_id=submit.request.request_id,
                generation=submit.generation,
                node=submit.node,
                token_id=7,
                finish=make_finish(reason, queue_s=0.5, cached_tokens=16),
                choice_index=choice,
            )
        )

    def say_ready(self, submit: Submit) -> None:
        self.step(
            DecodeReady(
                request_id=submit.request.request_id,
                generation=submit.generation,
            )
        )

    def say_started(self, submit: Submit) -> None:
        self.step(
            SequenceStarted(request_id=submit.request.request_id, generation=submit.generation)
        )

    def say_finished(self, submit: Submit, choice: int) -> None:
        self.step(
            SequenceFinished(
                request_id=submit.request.request_id,
                generation=submit.generation,
                node=submit.node,
                finish=make_finish(queue_s=0.25, cached_tokens=400),
                choice_index=choice,
            )
        )


class FreePathMachine(SchedulerMachine):
    """The same, where the scheduler chooses the path by what it has measured."""

    mode = PathMode.AUTO


_SETTINGS = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = _SETTINGS
TestFreePath = FreePathMachine.TestCase
TestFreePath.settings = settings(_SETTINGS, max_examples=100)
