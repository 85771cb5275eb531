"""Drives the scheduler core: RPCs and timers become events, effects become messages.

::

    front door ──start, cancel──────────────────┐            ┌─► request_stream ──► front door
    node_said ──frames──────► frame_intake ─────┤            │
        ├──────what is held──► takeovers ───────┼► step, obey┼─► node_orders ──► nodes
        └──────the rest──────► node_events ─────┤            │
    agreement ──► agreement_desk ───────────────┘            └─► agreement_desk, group_desk

``node_admission`` says which nodes may attach, ``node_book`` what is known of them. Token frames do
not pass through the core; only a request's first token and its end do.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable

import structlog

from pdd.cell.sequences import SequenceTable, SoftOperation
from pdd.config.sections import Config
from pdd.control.cluster_ports import MAY_BE_OLD
from pdd.control.convert import identity_from_proto
from pdd.control.node_session import NodeSession
from pdd.core.identity import NodeIdentity, NodeName, RequestId, Role
from pdd.core.ports import Adopter, Clock, Sink
from pdd.core.requests import Ended, GenerateRequest, RequestUsage
from pdd.daemon.agreement import Agreement, AgreementOfOne
from pdd.daemon.agreement_desk import AgreementDesk
from pdd.daemon.block_locator import BlockLocator
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.frame_intake import FrameIntake
from pdd.daemon.group_desk import GroupDesk
from pdd.daemon.node_admission import NodeAdmission, refuse_intruder
from pdd.daemon.node_book import NodeBook
from pdd.daemon.node_events import decode_ready, job_failed, node_joined, node_reported
from pdd.daemon.node_orders import NodeOrders
from pdd.daemon.operator_desk import OperatorDesk
from pdd.daemon.prompt_keys import PromptKeys
from pdd.daemon.request_stream import RequestStream
from pdd.daemon.role_desk import RoleDesk, log_news
from pdd.daemon.sequence_desk import SequenceDesk
from pdd.daemon.takeovers import Takeovers
from pdd.directory import compiled_keys
from pdd.rpc.v1 import cluster_pb2
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
    Event,
    HeldSequence,
    NodeLost,
    OutputRecovered,
    RequestArrived,
    RequestCancelled,
    SequenceFound,
    Tick,
)
from pdd.scheduler.group_events import LeadershipChanged
from pdd.scheduler.nodes import not_ready_reason
from pdd.scheduler.roles.book import RoleNews
from pdd.scheduler.state import Counts
from pdd.tls.security import Security

log = structlog.get_logger(__name__)

TICK_INTERVAL_S = 0.25
_OWN_PAUSE_S = 1.0


class SchedulerDriver:
    """Implements ``Inference`` for the front door and ``ClusterHandler`` for the nodes."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        directory: DirectoryFeed,
        clock: Clock,
        model: str,
        tokenizer_digest: str = "",
        agreement: Agreement | None = None,
        sequences: SequenceTable | None = None,
        config: Config | None = None,
    ) -> None:
        """
        Args:
            directory: the one that the core asks.
            tokenizer_digest: nodes with another one are refused; empty compares nothing.
            agreement: with the other schedulers; None: kept in memory, for as long as this lives.
            sequences: what all schedulers have said of their requests; None: there is one.
            config: the core's, over which what operators set is laid; None: they set nothing.
        """
        self._core = core
        self._clock = clock
        self._sessions: dict[NodeName, NodeSession] = {}
        self._prompt_keys = PromptKeys(model=model, chain=compiled_keys.chain)
        self.directory = directory
        directory.on_news(self._step)
        agreement = agreement or AgreementOfOne()
        self._agreement = agreement
        self._agreed = AgreementDesk(
            core=core, agreement=agreement, clock=clock, step=self._step, config=config
        )
        self.operator = OperatorDesk(core=core, clock=clock, agreement=agreement)
        self.role_operator = RoleDesk(core=core, clock=clock, agreement=agreement)
        self._book = NodeBook(
            core=core, sessions=self._sessions, agreement=agreement, role_desk=self.role_operator
        )
        self._admission = NodeAdmission(
            core=core,
            agreement=agreement,
            hellos=self._book.hellos,
            model=model,
            tokenizer_digest=tokenizer_digest,
        )
        self._streams: dict[RequestId, RequestStream] = {}
        self._sequences = SequenceTable() if sequences is None else sequences
        self.blocks = BlockLocator(
            core=core,
            sessions=self._sessions,
            streams=self._streams,
            holders=directory.machine.holders,
            now=clock,
            table=self._sequences,
        )
        self._takeovers = Takeovers(
            streams=self._streams,
            keys_of=self._prompt_keys.of,
            recovered=self._on_recovered,
            overdue=self._join,
        )
        self._frames = FrameIntake(
            core=core, streams=self._streams, takeovers=self._takeovers, step=self._step
        )
        self._orders = NodeOrders(
            core=core,
            sessions=self._sessions,
            streams=self._streams,
            hellos=self._book.hellos,
            clock=clock,
        )
        self.life = secrets.token_hex(8)
        """See ``ClusterHandler.life``."""
        self._events: deque[Event] = deque()
        self._stepping = False
        self._crash: BaseException | None = None
        self._crashed = asyncio.Event()
        self._group: GroupDesk | None = None
        self.sequence_desk: SequenceDesk | None = None
        self._agreed.follow()

    def join_group(
        self,
        *,
        name: str,
        addresses: dict[str, str],
        security: Security,
        say: Callable[[SoftOperation], None],
    ) -> GroupDesk:
        """Before anything is served: several schedulers rule the cluster, and until one is known to
        lead, nobody gives places. ``addresses``: of their gRPC servers, by name. ``say``: to all of
        them, some time soon."""
        self._group = GroupDesk(
            name=name,
            addresses=addresses,
            core=self._core,
            clock=self._clock,
            security=security,
            step=self._step,
            output_token_count=self._output_token_count,
            crashed=self.note_crash,
        )
        desk = SequenceDesk(name=name, core=self._core, table=self._sequences, say=say)
        self.sequence_desk = desk
        self._group.on_leader_attached = desk.say_all
        self._group.on_holder_lost = desk.holder_lost
        self._step(LeadershipChanged(leads=False))
        return self._group

    def _output_token_count(self, request_id: RequestId) -> int:
        stream = self._streams.get(request_id)
        return 0 if stream is None else max(len(shown.token_ids) for shown in stream.choices)

    # --- for the front door ------------------------------------------------------------------

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        """See ``Inference.start``."""
        self._streams[request.request_id] = RequestStream(sink, choice_count=request.choice_count)
        keys = self._prompt_keys.of(request)
        self._step(RequestArrived(request=request, keys=keys, caller_key=request.affinity_key))

    def take_over_with(self, adopter: Adopter) -> None:
        """Who answers for requests that nodes hold from a scheduler that is gone. Without one they
        are cancelled."""
        self._takeovers.adopter = adopter

    def cancel(self, request_id: RequestId) -> None:
        """See ``Inference.cancel``."""
        if (stream := self._streams.pop(request_id, None)) is not None:
            self._takeovers.forget(request_id)
            count = stream.open_token_count
            self._step(RequestCancelled(request_id=request_id, output_token_count=count))

    def ready_counts(self) -> tuple[int, int]:
        """``(prefill nodes, decode nodes)`` that take work."""
        ready = [node.role for node in self._core.nodes.values() if node.takes_work]
        return ready.count(Role.PREFILL), ready.count(Role.DECODE)

    def not_ready_reason(self, role: Role) -> str:
        """Why no node of a role takes work; empty where one does."""
        return not_ready_reason(self._core.nodes.values(), role)

    @property
    def decision_counts(self) -> Counts:
        """What the scheduler decided since its start. To be read only."""
        return self._core.counts

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for room."""
        return self._core.queued_request_count

    @property
    def running_request_count(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    # --- for the nodes -----------------------------------------------------------------------

    async def node_joining(self, hello: cluster_pb2.Hello) -> None:
        """See ``ClusterHandler.node_joining``."""
        self._admission.refuse_misfit(hello)
        identity = identity_from_proto(hello.identity)
        session = self._sessions.get(identity.name)
        if session is not None:
            refuse_intruder(identity, session.identity)
        await self._admission.agree(hello)

    def node_attached(self, session: NodeSession) -> None:
        """See ``ClusterHandler.node_attached``."""
        hello = session.hello
        self._admission.refuse_misfit(hello)
        name = session.identity.name
        former = self._sessions.get(name)
        if former is not None:
            refuse_intruder(session.identity, former.identity)
            reason = (
                "this node has opened another stream"
                if former.identity == session.identity
                else "a newer life of this node has joined"
            )
            former.close(reason)
            del self._sessions[name]
            self._takeovers.detached(former)
            self._step(NodeLost(identity=former.identity, reason=reason))
        self._sessions[name] = session
        self._book.attached(session)
        self._prompt_keys.fit(block_size_tokens=hello.block_size, fingerprint=hello.fingerprint)
        self.directory.attached(session)
        if hello.holds_requests:
            self._takeovers.expect(session)
        else:
            self._join(session)

    def _join(self, session: NodeSession) -> None:
        """It is a member, and what runs there is taken over in the same step."""
        hello, name = session.hello, session.identity.name
        running = self._takeovers.take(session)
        log.info("node_joined", node=name, role=hello.role, boot_epoch=session.identity.boot_epoch)
        self._note_taken_over(running)
        self._step(node_joined(session, running))
        self._claim(session, running)

    def seek(self, request_id: RequestId, resume_key: bytes) -> bool:
        """Ask nodes for a request that a client has come back for, by its id or else by its key;
        whether any node was asked. What is found comes to the ``Adopter``."""
        asked = [
            session
            for name, session in self._sessions.items()
            if request_id or self._book.held_counts.get(name)
        ]
        for session in asked:
            session.seek(request_id, resume_key)
        return bool(asked)

    def _on_found(self, session: NodeSession, message: cluster_pb2.HeldRequest) -> None:
        held = self._takeovers.found(session, message)
        if held is not None:
            self._note_taken_over((held,))
            self._step(SequenceFound(node=session.identity.name, held=held))
            self._claim(session, (held,))

    def _on_recovered(self, event: OutputRecovered) -> None:
        self._note_taken_over((event.held,))
        self._step(event)

    def _note_taken_over(self, sequences: tuple[HeldSequence, ...]) -> None:
        if self._group is not None:
            for held in sequences:
                self._group.taken_over(held.request.request_id)

    def _claim(self, session: NodeSession, running: tuple[HeldSequence, ...]) -> None:
        """What the core has taken over as it runs."""
        name, requests = session.identity.name, self._core.requests
        self._takeovers.claim(
            session,
            [
                held
                for held in running
                if (request := requests.get(held.request.request_id)) is not None
                and request.runs_on() == name
                and request.generation == held.generation
            ],
        )

    def node_said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        """See ``ClusterHandler.node_said``."""
        name = session.identity.name
        if self._sessions.get(name) is not session:
            return  # a former life
        match message.WhichOneof("message"):
            case "tokens":
                self._frames.on_tokens(session, message.tokens)
            case "frames":
                self._frames.on_frames(session, message.frames.frames)
            case "status":
                self._book.reported(name, message.status)
                self._step(node_reported(name, message.status))
            case "transfer_done":
                self._step(decode_ready(message.transfer_done))
            case "failed":
                failed = message.failed
                request_id = RequestId(failed.request_id)
                if not self._takeovers.stopped(request_id, failed.generation, session):
                    self._step(job_failed(name, failed))
            case "blocks_held":
                self.blocks.answered(name, message.blocks_held)
            case "cache_position" | "cache_delta" | "cache_snapshot":
                self.directory.said(session, message)
            case "found":
                self._on_found(session, message.found)
            case "held":
                if self._takeovers.tell(session, message.held):
                    self._join(session)
            case other:
                log.warning("node_message_ignored", node=name, kind=other)

    def node_detached(self, session: NodeSession, reason: str) -> None:
        """See ``ClusterHandler.node_detached``."""
        name = session.identity.name
        if self._sessions.get(name) is not session:
            return  # another stream, perhaps of the same life, has taken over, or it was cut
        del self._sessions[name]
        self.directory.detached(session)
        self._takeovers.detached(session)
        log.warning("node_lost", node=name, reason=reason)
        self._step(NodeLost(identity=session.identity, reason=reason))

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        """See ``ClusterHandler.list_nodes``."""
        return self._book.list_nodes()

    @property
    def stale_reason(self) -> str:
        """See ``ClusterHandler.stale_reason``."""
        if self._group is None:
            return ""
        if not self._group.is_connected:
            return f"no scheduler leads: {MAY_BE_OLD}"
        if fault := self._agreement.fault:
            return f"the replica of this scheduler does not run ({fault}): {MAY_BE_OLD}"
        return ""

    def transfer_counters(self) -> dict[NodeName, dict[str, float]]:
        """What each node's transfer engine counted when it last reported, by node."""
        return self._book.transfer_counters

    async def tick(self) -> None:
        """Feed the passing of time to the core, for ever.

        After a pause of this process itself (stopped, swapped out) the nodes' reports wait unread
        in their sockets; they are read first, or every node would look silent.
        """
        while True:
            due_s = self._clock() + TICK_INTERVAL_S
            await asyncio.sleep(TICK_INTERVAL_S)
            late_s = self._clock() - due_s
            if late_s > _OWN_PAUSE_S:
                log.warning("scheduler_was_paused", duration_s=round(late_s, 1))
                await asyncio.sleep(_OWN_PAUSE_S)
            self._step(Tick())
            self._agreed.forget_absent()

    # --- events in, effects out --------------------------------------------------------------

    async def wait_crashed(self) -> None:
        """Raises what a bug raised in a decision; the daemon ends with it.

        Decisions are made inside streams and requests, whose servers would only log the error and
        go on with a core that is half way through an event.
        """
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    def _step(self, event: Event) -> None:
        """Decide and act. A sink that cancels in the middle of an event's effects is heard after
        them: their order means something to the nodes."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                effects = self._core.step(event, now_s=self._clock())
                for effect in effects:
                    self._obey(effect)
                if self._group is not None:
                    self._group.stepped(event, effects)
                if self.sequence_desk is not None:
                    self.sequence_desk.stepped(event, effects)
        except Exception as error:
            self.note_crash(error)
            raise
        finally:
            self._stepping = False

    def note_crash(self, error: BaseException) -> None:
        """A bug in what runs beside: the daemon ends with it."""
        self._crash = error
        self._crashed.set()

    def _obey(self, effect: Effect) -> None:
        if self._group is not None and self._group.takes(effect):
            return
        match effect:
            case Submit():
                self._orders.submit(effect)
            case Cancel():
                self._orders.cancel(effect)
            case GiveFirstToken():
                self._orders.give_first_token(effect)
            case Announce():
                stream = self._streams.get(effect.request_id)
                if stream is not None:
                    stream.plan(effect.plan)
            case Complete():
                self._complete(effect)
            case Fail():
                stream = self._streams.pop(effect.request_id, None)
                if stream is not None:
                    log.warning(
                        "request_failed",
                        request_id=effect.request_id,
                        error=type(effect.error).__name__,
                        why=str(effect.error),
                    )
                    stream.fail(effect.error)
            case Disconnect():
                self._disconnect(effect.identity, effect.reason)
            case NodeDrained():
                log.info(
                    "node_drained",
                    node=effect.identity.name,
                    duration_s=round(effect.drained_s, 1),
                )
            case RoleNews():
                log_news(effect)
                if (role_set := self.role_operator.agreed_on(effect)) is not None:
                    self._agreed.say(role_set)
            case ForgetNode():
                log.info("node_forgotten", node=effect.node)
                self._book.forget(effect.node)
                self.directory.forget(effect.node)
                if (released := self.role_operator.forgotten(effect.node)) is not None:
                    self._agreed.say(released)
            case IntroducePeers():
                self._orders.introduce(effect)
            case DismissPeer():
                self._orders.dismiss(effect)

    def _complete(self, effect: Complete) -> None:
        stream = self._streams.pop(effect.request_id, None)
        if stream is None:
            return
        usage = RequestUsage(
            prompt_tokens=effect.prompt_token_count,
            completion_tokens=stream.token_count,
            cached_tokens=effect.cached_tokens,
            path=effect.plan.path,
            prefill_node=effect.plan.prefill_node,
            decode_node=effect.plan.decode_node,
            queue_ms=effect.times.queue_s * 1e3,
            prefill_ms=effect.times.prefill_s * 1e3,
            transfer_ms=effect.times.transfer_s * 1e3,
            decode_ms=effect.times.decode_s * 1e3,
            transferred_bytes=effect.transferred_bytes,
            decode_computed_prompt_tokens=effect.decode_computed_prompt_tokens,
            pulled_tokens=effect.pulled_tokens,
            pulled_bytes=effect.pulled_bytes,
        )
        stream.end(Ended(finish=effect.finish, usage=usage))
        if effect.prompt_recomputed:
            log.warning(
                "prompt_recomputed_on_decode_node",
                request_id=effect.request_id,
                decode_node=usage.decode_node,
                computed_prompt_tokens=usage.decode_computed_prompt_tokens,
            )

    def _disconnect(self, identity: NodeIdentity, reason: str) -> None:
        session = self._sessions.get(identity.name)
        if session is not None and session.identity == identity:
            log.warning("node_lost", node=identity.name, reason=reason)
            session.close(reason)
            del self._sessions[identity.name]
            self.directory.detached(session)
            self._takeovers.detached(session)
